"""The Python face on a real model: targets, sessions, streams, and what they refuse."""

from __future__ import annotations

import json
import signal
import threading
import time
from pathlib import Path

import numpy as np
import pytest

import draftgauge as dg

PROMPT = "one two three one two three one two three"


@pytest.fixture(scope="module")
def target(model: Path) -> dg.Target:
    return dg.Target.from_gguf(model)


def test_properties(target: dg.Target) -> None:
    assert (target.architecture, target.num_layers, target.hidden_size) == ("llama", 30, 576)
    assert target.vocab_size == 49152 == target.tokenizer.vocab_size
    assert target.ctx_size == 8192


def test_logits_of_chosen_rows(target: dg.Target) -> None:
    tokens = target.tokenizer.encode(PROMPT)
    whole = target.logits(tokens)
    assert whole.shape == (len(tokens), target.vocab_size) and whole.dtype == np.float32
    chosen = target.logits(tokens, [len(tokens) - 1, 0])
    np.testing.assert_array_equal(chosen, whole[[-1, 0]])


def test_logits_do_not_depend_on_threads(target: dg.Target, model: Path) -> None:
    tokens = target.tokenizer.encode(PROMPT)
    single = dg.Target.from_gguf(model, threads=1)
    np.testing.assert_array_equal(single.logits(tokens, [4]), target.logits(tokens, [4]))


def test_features(target: dg.Target) -> None:
    tokens = target.tokenizer.encode(PROMPT)
    features = target.features(tokens, ["embeddings", 0, 29, "final"])
    assert features.shape == (len(tokens), 4, target.hidden_size) and features.dtype == np.float32
    assert np.isfinite(features).all()
    np.testing.assert_array_equal(target.features(tokens, [29])[:, 0], features[:, 2])
    for layer, kind in ((-1, ValueError), (30, ValueError), ("first", ValueError), (1.5, TypeError)):
        with pytest.raises(kind):
            target.features(tokens, [layer])


@pytest.mark.parametrize(
    ("tokens", "rows", "kind"),
    [([], None, ValueError), ([49152], None, ValueError), ([1], [1], ValueError), ([-1], None, ValueError),
     ([1.0], None, TypeError), ([True], None, TypeError)],
)  # fmt: skip
def test_what_logits_refuses(target: dg.Target, tokens: list, rows: list | None, kind: type[Exception]) -> None:
    with pytest.raises(kind):
        target.logits(tokens, rows)


@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.parametrize("draft_len", [1, 8])
def test_speculation_changes_no_token(target: dg.Target, temperature: float, draft_len: int) -> None:
    options = {"max_tokens": 32, "temperature": temperature, "seed": 5, "raw": True}
    plain = dg.generate(target, PROMPT, **options)
    speculative = dg.generate(target, PROMPT, drafter=dg.Drafter.ngram(draft_len=draft_len), **options)
    assert speculative.tokens == plain.tokens and speculative.identity == plain.identity
    assert speculative.text == plain.text


def test_prompts_of_three_kinds(target: dg.Target) -> None:
    template = target.chat_template
    assert template is not None
    messages = [{"role": "user", "content": "Hi"}]
    text = dg.generate(target, "Hi", max_tokens=4)
    turns = dg.generate(target, messages, max_tokens=4)
    ids = dg.generate(target, target.tokenizer.encode(template.render(messages), add_special=False), max_tokens=4)
    assert text.tokens == turns.tokens == ids.tokens
    assert dg.generate(target, "Hi", max_tokens=4, raw=True).prompt_tokens == len(target.tokenizer.encode("Hi"))


def test_the_result_is_the_json_as_a_value(target: dg.Target) -> None:
    result = dg.generate(target, PROMPT, raw=True, max_tokens=4)
    assert json.loads(result.to_json())["identity"] == result.identity
    with pytest.raises(AttributeError):
        result.text = "other"  # type: ignore[misc]


def test_a_stream_brings_what_generate_gives(target: dg.Target) -> None:
    drafter = dg.Drafter.ngram()
    whole = dg.generate(target, PROMPT, raw=True, max_tokens=40, drafter=drafter)
    chunks = list(dg.stream(target, PROMPT, raw=True, max_tokens=40, drafter=drafter))
    assert [token for chunk in chunks for token in chunk.tokens] == whole.tokens
    assert "".join(chunk.text for chunk in chunks) == whole.text
    assert sum(chunk.num_accepted for chunk in chunks) == whole.draft.accepted > 0
    # The first token is the prompt pass's own; after it, one chunk a step.
    assert len(chunks) == whole.draft.steps + 1
    assert all(chunk.text.startswith(chunk.accepted_text) for chunk in chunks)


def test_closing_a_stream_stops_the_run(target: dg.Target) -> None:
    session = dg.Session(target)
    chunks = session.stream(PROMPT, raw=True, max_tokens=2000, ignore_eos=True)
    next(chunks)
    chunks.close()
    length = len(session.tokens)
    time.sleep(0.3)
    assert len(session.tokens) == length < 100


def test_a_session_keeps_its_caches_between_turns(target: dg.Target) -> None:
    session = dg.Session(target, dg.Drafter.ngram())
    first = session.generate(PROMPT, raw=True, max_tokens=8)
    assert session.tokens[-8:] == first.tokens
    more = [*session.tokens, *target.tokenizer.encode(" four")]
    second = session.generate(more, max_tokens=8)
    assert second.tokens == dg.generate(target, more, max_tokens=8).tokens
    session.truncate(5)
    assert len(session.tokens) == 5
    assert session.generate(more, max_tokens=8).tokens == second.tokens
    with pytest.raises(ValueError):
        session.truncate(10_000)


def test_a_session_that_generates_refuses_a_second_run(target: dg.Target) -> None:
    session = dg.Session(target)
    chunks = session.stream(PROMPT, raw=True, max_tokens=100, ignore_eos=True)
    next(chunks)
    with pytest.raises(RuntimeError, match="session is generating"):
        session.generate(PROMPT, raw=True)
    chunks.close()


def test_ctrl_c_raises_within_a_step(target: dg.Target) -> None:
    # A shell that runs the tests in the background has made this process ignore the signal.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        timer = threading.Timer(1.0, signal.raise_signal, (signal.SIGINT,))
        timer.start()
        started = time.monotonic()
        with pytest.raises(KeyboardInterrupt):
            dg.generate(target, PROMPT, raw=True, max_tokens=5000, ignore_eos=True)
        assert time.monotonic() - started < 20
        timer.join()
    finally:
        signal.signal(signal.SIGINT, before)


def test_the_gil_is_released(target: dg.Target) -> None:
    ticks = 0
    done = threading.Event()

    def work() -> None:
        dg.generate(target, PROMPT, raw=True, max_tokens=24)
        done.set()

    thread = threading.Thread(target=work)
    thread.start()
    while not done.wait(0.001):
        ticks += 1
    thread.join()
    assert ticks > 20


@pytest.mark.parametrize(
    "options",
    [{"tree_budget": 4}, {"draft_block": 8}, {"draft_p_min": 0.5}, {"verify": "rejection"}, {"verify": "block"},
     {"temperature": -1.0}, {"temperature": float("nan")}, {"top_p": 2.0}, {"draft_n_max": 3}, {"max_tokens": -2},
     {"stop": [""]}, {"verify": "other"}, {"seed": -1}],
    ids=str,
)  # fmt: skip
def test_options_that_are_refused(target: dg.Target, options: dict) -> None:
    with pytest.raises(ValueError):
        dg.generate(target, PROMPT, raw=True, **options)
    with pytest.raises(ValueError):
        list(dg.stream(target, PROMPT, raw=True, **options))


def test_a_file_without_a_drafter_is_refused(target: dg.Target, model: Path, tmp_path: Path) -> None:
    with pytest.raises(dg.ModelError, match=r"holds no drafter that runs here.*found llama"):
        dg.Drafter.from_gguf(model, target=target)
    with pytest.raises(FileNotFoundError):
        dg.Drafter.from_gguf(tmp_path / "no.gguf", target=target)


def test_overrides_as_a_mapping(model: Path) -> None:
    target = dg.Target.from_gguf(model, overrides={"llama.context_length": 256})
    assert target.ctx_size == 256
    with pytest.raises(TypeError):
        dg.Target.from_gguf(model, overrides={"llama.context_length": None})


def test_text_without_weights(model: Path) -> None:
    tokenizer = dg.Tokenizer.from_gguf(model)
    ids = tokenizer.encode("Hello, wörld 🙂")
    assert tokenizer.decode(ids) == "Hello, wörld 🙂"
    template = dg.ChatTemplate.from_gguf(model)
    assert "Hello" in template.render([{"role": "user", "content": "Hello"}])


def test_progress_reports_what_is_loaded(model: Path) -> None:
    shares: list[float] = []
    plans: list[str] = []
    dg.Target.from_gguf(model, on_progress=shares.append, on_plan=plans.append)
    assert shares == sorted(shares) and shares[-1] == 1.0
    assert len(plans) == 1 and "MiB" in plans[0]


def test_an_error_in_a_callback_ends_the_loading(model: Path) -> None:
    def fail(share: float) -> None:
        raise RuntimeError("enough")

    with pytest.raises(RuntimeError, match="enough"):
        dg.Target.from_gguf(model, on_progress=fail)
