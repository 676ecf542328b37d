"""``draftgauge measure``: paired runs, traces that resume, and what is refused."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import drafter_file

ROWS = [
    {"prompt": "Repeat after me: red, green, blue, red, green, blue.", "category": "copy"},
    {"prompt": "Why is the sky blue?", "category": "why"},
    {"prompt": "Count from one to ten.", "category": "copy"},
]


@pytest.fixture(scope="module")
def questions(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("measure") / "questions.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in ROWS), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def run(cli, model: Path, questions: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[dict, Path]:
    trace = tmp_path_factory.mktemp("trace") / "run.jsonl"
    drafter = drafter_file.write(trace.with_name("drafter.gguf"), markov=True)
    outcome = cli(*_options(model, questions, trace), "-md", drafter)
    assert outcome.returncode == 0, outcome.stderr
    return json.loads(outcome.stdout), trace


def _options(model: Path, questions: Path, trace: Path) -> list[object]:
    return ["measure", "-m", model, "--prompts", questions, "-n", "16", "--temp", "0.5", "--trace", trace, "--json"]


def test_a_run_reports_pairs_with_equal_outputs(run: tuple[dict, Path]) -> None:
    figures, _ = run
    assert figures["prompts"] == 3 and figures["identity"]["equal"]
    assert figures["drafted"] == sum(figures["proposed_at"]) > 0
    assert set(figures["categories"]) == {"copy", "why"}
    assert figures["speed"]["ratio"] > 0 and len(figures["speed"]["interval_95"]) == 2
    assert figures["drafter"]["kind"] == "dspark" and figures["block_size"] == 5
    assert any("3 prompts are few" in notice for notice in figures["notices"])


def test_every_figure_comes_from_the_trace(cli, run: tuple[dict, Path]) -> None:
    figures, trace = run
    assert json.loads(cli("measure", "--from-trace", trace, "--json").stdout) == figures


@pytest.mark.parametrize("share", [0.1, 0.6, 1.0])
def test_a_killed_run_goes_on_where_it_stopped(
    cli, model: Path, questions: Path, run: tuple[dict, Path], tmp_path: Path, share: float
) -> None:
    figures, whole = run
    trace = tmp_path / "run.jsonl"
    data = whole.read_bytes()
    trace.write_bytes(data[: int(share * len(data))])
    outcome = cli(*_options(model, questions, trace), "-md", whole.with_name("drafter.gguf"))
    assert outcome.returncode == 0, outcome.stderr
    again = json.loads(outcome.stdout)
    for name in ("prompts", "tokens", "steps", "drafted", "accepted", "accepted_at", "identity"):
        assert again[name] == figures[name], name
    if share == 1.0:
        assert again == figures and trace.read_bytes() == data


def test_a_trace_of_another_run_is_refused(cli, model: Path, questions: Path, run: tuple[dict, Path]) -> None:
    _, trace = run
    before = trace.read_bytes()
    options = [*_options(model, questions, trace), "-md", trace.with_name("drafter.gguf"), "--seed", "9"]
    outcome = cli(*options)
    assert outcome.returncode == 2 and outcome.stdout == b""
    assert b"trace is of another run" in outcome.stderr and b"settings.seed: expected 9, found 0" in outcome.stderr
    assert trace.read_bytes() == before


@pytest.mark.parametrize(
    "content",
    [b"no newline at all", b"a line\nand a torn one", b'{"prompt": "x"}\n', b"GGUF\x03\0\0\0\n\0"],
    ids=["one-line", "torn", "prompts", "gguf"],
)
def test_a_file_that_is_no_trace_is_kept(cli, model: Path, questions: Path, tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "precious"
    path.write_bytes(content)
    outcome = cli(*_options(model, questions, path), "--spec-type", "ngram")
    assert outcome.returncode == 2 and outcome.stdout == b""
    assert str(path).encode() in outcome.stderr
    assert path.read_bytes() == content


def test_a_trace_of_nothing_but_a_header_is_begun_anew(
    cli, model: Path, questions: Path, run: tuple[dict, Path], tmp_path: Path
) -> None:
    figures, whole = run
    path = tmp_path / "run.jsonl"
    first = whole.read_bytes().split(b"\n")[0]
    for content in (b"", first[:40], first.replace(b'"seed":0', b'"seed":9') + b"\n"):
        path.write_bytes(content)
        outcome = cli(*_options(model, questions, path), "-md", whole.with_name("drafter.gguf"))
        assert outcome.returncode == 0, outcome.stderr
        assert json.loads(outcome.stdout)["identity"] == figures["identity"]


def test_other_weights_under_the_same_name_are_another_run(cli, model: Path, questions: Path, tmp_path: Path) -> None:
    trace, drafter = tmp_path / "run.jsonl", tmp_path / "drafter.gguf"
    options = [*_options(model, questions, trace), "--limit", "1", "-md", drafter]
    drafter_file.write(drafter, seed=1)
    assert cli(*options).returncode == 0
    before = trace.read_bytes()
    drafter_file.write(drafter, seed=2)
    outcome = cli(*options)
    assert outcome.returncode == 2 and b"trace is of another run" in outcome.stderr
    assert b"drafter.sha256: expected " in outcome.stderr and trace.read_bytes() == before


def test_ctrl_c_prints_the_figures_so_far(model: Path, questions: Path, tmp_path: Path) -> None:
    trace = tmp_path / "run.jsonl"
    command = [sys.executable, "-m", "draftgauge", "measure", "-m", model, "--prompts", questions, "--spec-type",
               "ngram", "--temp", "1", "-n", "2000", "--limit", "2", "--trace", trace, "--json"]  # fmt: skip
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        # A shell that runs the tests in the background ignores the signal, and its children inherit that.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )  # fmt: skip
    # The first pair is done when the third sequence begins.
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline and process.poll() is None:
        if trace.exists() and trace.read_bytes().count(b'"begin"') == 3:
            break
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    stdout, stderr = process.communicate(timeout=60)
    assert process.returncode == 130, stderr.decode()
    figures = json.loads(stdout)
    assert figures["interrupted"] is True and figures["prompts"] == 1 and figures["identity"]["equal"]
    assert b"Traceback" not in stderr


def test_a_fork_is_exit_code_one(cli, run: tuple[dict, Path], tmp_path: Path) -> None:
    lines = run[1].read_text(encoding="utf-8").splitlines()
    index = max(n for n, line in enumerate(lines) if '"bonus"' in line)
    step = json.loads(lines[index])
    lines[index] = json.dumps({**step, "bonus": step["bonus"] + 1})
    forked = tmp_path / "forked.jsonl"
    forked.write_text("\n".join(lines) + "\n", encoding="utf-8")
    outcome = cli("measure", "--from-trace", forked, "--json")
    assert outcome.returncode == 1
    assert len(json.loads(outcome.stdout)["identity"]["forks"]) == 1
    # Candle's devices promise equality in law alone: there a fork is reported, and no failure.
    header = json.loads(lines[0])
    assert header["settings"]["device"] == "cpu"
    header["settings"]["device"] = "candle-cpu"
    forked.write_text("\n".join([json.dumps(header), *lines[1:]]) + "\n", encoding="utf-8")
    outcome = cli("measure", "--from-trace", forked, "--json")
    assert outcome.returncode == 0
    assert len(json.loads(outcome.stdout)["identity"]["forks"]) == 1


def test_the_table_and_the_picture(cli, run: tuple[dict, Path], tmp_path: Path) -> None:
    for name, start in (("a.png", b"\x89PNG"), ("a.svg", b"<?xml")):
        outcome = cli("measure", "--from-trace", run[1], "--plot", tmp_path / name)
        assert outcome.returncode == 0, outcome.stderr
        assert b"kept / proposed" in outcome.stdout and b"outputs are the target's own" in outcome.stdout
        assert (tmp_path / name).read_bytes().startswith(start)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.png", "a.svg"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ([], "missing argument: -m"),
        (["-m", "x.gguf"], "missing argument: --prompts"),
        (["-m", "x.gguf", "--prompts", "QUESTIONS"], "missing drafter"),
        (["-m", "x.gguf", "--prompts", "QUESTIONS", "--spec-type", "ngram", "-n", "0"], "-n: expected at least 1"),
        (["--from-trace", "t.jsonl", "-m", "x.gguf"], "--from-trace: expected no -m"),
        (["--from-trace", "t.jsonl", "--plot", "a.pdf"], "--plot: expected a .png or .svg file"),
        (["--from-trace", "none.jsonl"], "no such file"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_what_is_refused(cli, questions: Path, options: list[str], message: str) -> None:
    outcome = cli("measure", *[str(questions) if one == "QUESTIONS" else one for one in options])
    assert outcome.returncode == 2 and outcome.stdout == b""
    assert outcome.stderr.count(b"\n") == 1 and message in outcome.stderr.decode()
