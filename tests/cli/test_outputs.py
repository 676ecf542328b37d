"""What the commands print when all is well: the interface's shapes, and nothing else on stdout."""

from __future__ import annotations

import hashlib
import json
import os
import pty
import re
import signal
import struct
import subprocess
import sys
import time
from pathlib import Path

import pytest

import draftgauge as dg

# Loops soon under greedy decoding, so that there is something for the n-gram drafter to find.
PROMPT = "one two three one two three one two three"

GENERATE_KEYS = {
    "text", "tokens", "prompt_tokens", "finish_reason", "identity", "timings", "draft", "settings", "device", "kernels",
    "notices",
}  # fmt: skip
DRAFT_KEYS = {
    "status", "type", "steps", "drafted", "accepted", "bonus", "proposed_at", "accepted_at", "draft_s", "verify_s",
}  # fmt: skip


def json_of(outcome: subprocess.CompletedProcess[bytes], code: int = 0) -> dict:
    assert outcome.returncode == code, outcome.stderr.decode()
    assert outcome.stdout.endswith(b"}\n") and outcome.stdout.count(b"\n") == 1
    return json.loads(outcome.stdout, parse_constant=lambda word: pytest.fail(f"{word} is not JSON"))


@pytest.fixture(scope="module")
def speculative(cli, model: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[dict, Path]:
    """One run with the n-gram drafter, and its trace."""
    trace = tmp_path_factory.mktemp("trace") / "run.jsonl"
    outcome = cli(
        "generate", "-m", model, "--raw", "-p", PROMPT, "-n", "40", "--spec-type", "ngram", "--json", "--trace", trace
    )
    return json_of(outcome), trace


def test_generate_json_has_the_shape_of_the_interface(speculative: tuple[dict, Path]) -> None:
    result, _ = speculative
    assert set(result) == GENERATE_KEYS
    assert set(result["draft"]) == DRAFT_KEYS
    assert set(result["timings"]) == {"load_s", "prefill_s", "decode_s", "prefill_tok_s", "decode_tok_s"}
    assert result["finish_reason"] == "length" and len(result["tokens"]) == 40
    ids = struct.pack(f"<{len(result['tokens'])}I", *result["tokens"])
    assert result["identity"] == hashlib.sha256(ids).hexdigest()
    assert result["kernels"].split()[0] in ("scalar", "avx2", "avx512")


def test_i04_counts_a_position_add_up(speculative: tuple[dict, Path]) -> None:
    draft = speculative[0]["draft"]
    assert draft["status"] == "active" and draft["type"] == "ngram" and draft["accepted"] > 0
    assert draft["drafted"] == sum(draft["proposed_at"])
    assert draft["accepted"] == sum(draft["accepted_at"])
    assert all(kept <= proposed for kept, proposed in zip(draft["accepted_at"], draft["proposed_at"], strict=True))
    # The prompt pass gives the first token; every step after it gives its accepted drafts and at most one bonus.
    assert 1 + draft["accepted"] + draft["bonus"] == len(speculative[0]["tokens"])


def test_speculation_changes_no_token(cli, model: Path, speculative: tuple[dict, Path]) -> None:
    plain = json_of(cli("generate", "-m", model, "--raw", "-p", PROMPT, "-n", "40", "--json"))
    assert plain["identity"] == speculative[0]["identity"]
    assert plain["draft"]["status"] == "none" and plain["draft"]["type"] is None
    assert plain["draft"]["drafted"] == 0


def test_h04_the_scalar_kernels_change_no_token(cli, model: Path, speculative: tuple[dict, Path]) -> None:
    arguments = ["generate", "-m", model, "--raw", "-p", PROMPT, "-n", "40", "--spec-type", "ngram", "--json"]
    scalar = json_of(cli(*arguments, DRAFTGAUGE_ISA="scalar"))
    assert scalar["kernels"].startswith("scalar")
    assert scalar["identity"] == speculative[0]["identity"]


def test_the_trace_tells_the_same_story(speculative: tuple[dict, Path]) -> None:
    result, path = speculative
    trace = dg.trace.load(path)
    assert trace.header is not None and trace.header["trace"] == "draftgauge" and trace.header["version"] == 1
    (sequence,) = trace.sequences
    assert sequence.tokens == result["tokens"]
    assert sequence.end is not None
    assert sequence.end["identity"] == result["identity"] and sequence.end["tokens"] == len(result["tokens"])
    assert len(sequence.steps) == result["draft"]["steps"]
    assert sum(step["accepted"] for step in sequence.steps) == result["draft"]["accepted"]
    assert sum(len(step["proposed"]) for step in sequence.steps) == result["draft"]["drafted"]


@pytest.mark.parametrize("cut", [1, 57])
def test_a_trace_that_was_cut_loads_up_to_its_last_whole_line(
    speculative: tuple[dict, Path], cut: int, tmp_path: Path
) -> None:
    data = speculative[1].read_bytes()
    short = tmp_path / "cut.jsonl"
    short.write_bytes(data[:-cut])
    whole, loaded = dg.trace.load(speculative[1]), dg.trace.load(short)
    assert loaded.sequences[0].end is None
    assert loaded.sequences[0].steps == whole.sequences[0].steps[: len(loaded.sequences[0].steps)]


def test_text_goes_to_stdout_and_the_rest_to_stderr(cli, model: Path, speculative: tuple[dict, Path]) -> None:
    outcome = cli("generate", "-m", model, "--raw", "-p", PROMPT, "-n", "40", "--spec-type", "ngram")
    assert outcome.returncode == 0
    assert outcome.stdout.decode() == speculative[0]["text"] + "\n"
    stderr = outcome.stderr.decode()
    draft = speculative[0]["draft"]
    assert f"{draft['accepted']}/{draft['drafted']} drafts accepted" in stderr


def test_b19_a_drafter_says_what_it_will_do(cli, model: Path) -> None:
    active = cli("generate", "-m", model, "-p", "Hello", "-n", "1", "--spec-type", "ngram")
    assert b"drafter: ngram active, depth 8" in active.stderr
    idle = cli("generate", "-m", model, "-p", "Hello", "-n", "4", "--spec-type", "ngram", "--spec-draft-n-max", "0")
    assert idle.returncode == 0
    assert b"notice: the ngram drafter was given and cannot draft" in idle.stderr


def test_zero_proposals_are_inactive_and_never_an_acceptance_of_zero(cli, model: Path) -> None:
    result = json_of(cli("generate", "-m", model, "--raw", "-p", "Hi", "-n", "2", "--spec-type", "ngram", "--json"))
    assert result["draft"]["drafted"] == 0 and result["draft"]["status"] == "inactive"
    assert any("proposed nothing" in notice for notice in result["notices"])


def test_the_prompt_alone(cli, model: Path) -> None:
    result = json_of(cli("generate", "-m", model, "-p", "Hello", "-n", "0", "--json"))
    assert (result["tokens"], result["text"], result["finish_reason"]) == ([], "", "length")
    assert result["identity"] == hashlib.sha256(b"").hexdigest()


def test_a_seed_of_minus_one_is_drawn_and_printed(cli, model: Path) -> None:
    arguments = ["generate", "-m", model, "--raw", "-p", "Once", "-n", "8", "--temp", "1", "--json"]
    drawn = cli(*arguments, "--seed", "-1")
    result = json_of(drawn)
    seed = result["settings"]["seed"]
    assert f"seed: {seed}" in drawn.stderr.decode()
    assert json_of(cli(*arguments, "--seed", seed))["identity"] == result["identity"]


def test_the_prompt_from_stdin(cli, model: Path) -> None:
    piped = json_of(cli("generate", "-m", model, "--raw", "-f", "-", "-n", "4", "--json", stdin=PROMPT.encode()))
    given = json_of(cli("generate", "-m", model, "--raw", "-p", PROMPT, "-n", "4", "--json"))
    assert piped["identity"] == given["identity"]


def test_a_stop_string_ends_the_text_before_it(cli, model: Path, speculative: tuple[dict, Path]) -> None:
    result = json_of(cli("generate", "-m", model, "--raw", "-p", PROMPT, "-n", "40", "-r", " three", "--json"))
    assert result["finish_reason"] == "stop"
    assert result["text"] == speculative[0]["text"].split(" three")[0]


def test_f04_another_template_and_its_hash(cli, model: Path, tmp_path: Path) -> None:
    source = "{{ messages[0]['content'] }}"
    path = tmp_path / "template.jinja"
    path.write_text(source)
    result = json_of(cli("generate", "-m", model, "-p", PROMPT, "-n", "8", "--chat-template", path, "--json"))
    assert result["settings"]["chat_template"] == hashlib.sha256(source.encode()).hexdigest()
    raw = json_of(cli("generate", "-m", model, "--raw", "-p", PROMPT, "-n", "8", "--json"))
    assert result["identity"] == raw["identity"]


def test_f04_a_broken_template_leaves_raw_prompts_alone(cli, model: Path) -> None:
    broken = ["--override-kv", "tokenizer.chat_template=str:{% if %}"]
    outcome = cli("generate", "-m", model, "-p", PROMPT, "-n", "4", *broken)
    assert outcome.returncode == 2 and b"chat template" in outcome.stderr
    result = json_of(cli("generate", "-m", model, "--raw", "-p", PROMPT, "-n", "4", *broken, "--json"))
    assert len(result["tokens"]) == 4
    assert any("chat template" in notice for notice in result["notices"])


def test_the_memory_plan_comes_before_loading(cli, model: Path) -> None:
    outcome = cli("generate", "-m", model, "-p", "Hello", "-n", "1", "-v")
    line = outcome.stderr.decode().splitlines()[0]
    assert line.startswith("draftgauge: memory: ")
    # G07: each purpose with its own figure, which together are the sum.
    total, *parts = (float(figure) for figure in re.findall(r"([0-9.]+) MiB", line))
    assert re.search(r"weights in the file .*, weights beside it .*, cache .*, logits .*, features ", line)
    assert len(parts) == 5 and abs(total - sum(parts)) < 0.5
    # Rows of a pass, times the vocabulary, times four bytes.
    assert f"logits {128 * 49152 * 4 / 2**20:.1f} MiB" in line


def test_inspect_json_has_the_shape_of_the_interface(cli, model: Path) -> None:
    report = json_of(cli("inspect", model, "--json"))
    assert {
        "path", "version", "alignment", "shards", "architecture", "name", "parameters", "bytes", "types", "metadata",
        "tensors", "problems", "notices", "pairing",
    } == set(report)  # fmt: skip
    assert report["problems"] == [] and report["pairing"] is None
    assert report["bytes"] == model.stat().st_size == sum(shard["bytes"] for shard in report["shards"])
    assert sum(total["tensors"] for total in report["types"].values()) == len(report["tensors"])
    assert {"name", "type", "shape", "offset", "bytes"} == set(report["tensors"][0])


def test_inspect_prints_one_value(cli, model: Path) -> None:
    outcome = cli("inspect", model, "--metadata", "general.architecture")
    assert (outcome.returncode, outcome.stdout) == (0, b"llama\n")


def test_inspect_finds_problems(cli, tmp_path: Path) -> None:
    import numpy as np

    path = tmp_path / "nan.gguf"
    dg.gguf.write(path, {"general.architecture": "llama"}, {"w": np.full((1, 32), np.nan, np.float32)})
    assert cli("inspect", path).returncode == 0
    outcome = cli("inspect", path, "--validate", "--json")
    assert len(json_of(outcome, code=1)["problems"]) == 1


def test_inspect_tells_two_files_apart(cli, tmp_path: Path) -> None:
    import numpy as np

    one, other = tmp_path / "one.gguf", tmp_path / "other.gguf"
    w = np.arange(64, dtype=np.float32).reshape(2, 32)
    dg.gguf.write(one, {"general.architecture": "llama", "a": 1}, {"w": w})
    dg.gguf.write(other, {"general.architecture": "llama", "a": 2}, {"w": w + 1})
    same = cli("inspect", one, "--diff", one, "--data")
    assert (same.returncode, same.stdout) == (0, b"no difference\n")
    different = cli("inspect", one, "--diff", other, "--data")
    assert different.returncode == 1
    assert b"! metadata: a: " in different.stdout and b"! data: w: relative error" in different.stdout
    assert json_of(cli("inspect", one, "--diff", other, "--json"), code=1)["equal"] is False


def test_bench_json_has_the_shape_of_the_interface(cli, model: Path) -> None:
    report = json_of(cli("bench", "-m", model, "-p", "16", "-n", "4", "--rows", "1,3", "-r", "2", "--json"))
    assert {
        "prefill", "decode", "verify", "draft", "bandwidth_gb_s", "bytes_per_token", "bandwidth_share", "threads",
        "kernels", "model",
    } <= set(report)  # fmt: skip
    assert [run["n"] for run in report["prefill"]] == [16] and len(report["prefill"][0]["runs"]) == 2
    assert report["decode"]["n"] == 4 and len(report["decode"]["runs"]) == 2
    assert [cost["rows"] for cost in report["verify"]] == [1, 3] and report["verify"][0]["ratio"] == 1
    # The tied embedding is the head as well, so that a step reads nearly the whole file.
    assert 0.9 * model.stat().st_size < report["bytes_per_token"] < 1.1 * model.stat().st_size
    share = report["bytes_per_token"] * report["decode"]["tok_s"] / (report["bandwidth_gb_s"] * 1e9)
    assert report["bandwidth_share"] == pytest.approx(share)
    assert report["draft"] is None


def test_i12_every_row_of_a_bench_carries_its_hash(cli, model: Path) -> None:
    report = json_of(cli("bench", "-m", model, "-p", "16", "-n", "4", "--rows", "1,2", "-r", "1", "--json"))
    figures = [*report["prefill"], report["decode"], *report["verify"]]
    assert all(len(figure["identity"]) == 64 and figure["equal"] is True for figure in figures)


def test_evaluate_scores_a_text(cli, model: Path, tmp_path: Path) -> None:
    path = tmp_path / "text.txt"
    path.write_text("The quick brown fox jumps over the lazy dog. " * 20)
    arguments = ["evaluate", "-m", model, "--text", path, "-c", "32", "--windows", "2", "--json"]
    report = json_of(cli(*arguments))
    assert report["window"] == 32 and report["perplexity"]["windows"] == 2
    # A window of 32 scores its second half but for the last row.
    assert report["perplexity"]["tokens"] == 2 * 15
    assert report["perplexity"]["perplexity"] > 1
    assert 0 <= report["divergence"]["mean_kl"] < 0.1
    assert 0.5 < report["divergence"]["argmax_agreement"] <= 1
    same = json_of(cli(*arguments, "--against", model))
    assert same["divergence"]["mean_kl"] == 0 and same["divergence"]["argmax_agreement"] == 1


def test_ctrl_c_prints_what_there_is(model: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "draftgauge", "generate", "-m", model, "--raw", "-p", PROMPT, "-n", "5000",
         "--ignore-eos", "--json"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        # A shell that runs the tests in the background ignores the signal, and its children inherit that.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )  # fmt: skip
    time.sleep(6)
    process.send_signal(signal.SIGINT)
    stopped = time.monotonic()
    stdout, stderr = process.communicate(timeout=60)
    assert process.returncode == 130, stderr.decode()
    assert time.monotonic() - stopped < 10
    result = json.loads(stdout)
    assert result["interrupted"] is True
    assert b"Traceback" not in stderr


def test_a_closed_pipe_ends_quietly(model: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "draftgauge", "generate", "-m", model, "--raw", "-p", PROMPT, "-n", "400",
         "--ignore-eos"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    assert process.stdout is not None and process.stderr is not None
    process.stdout.read(1)
    process.stdout.close()
    assert process.wait(timeout=60) == 141
    assert process.stderr.read() == b""


def test_accepted_drafts_are_coloured_on_a_terminal_alone(model: Path) -> None:
    command = [sys.executable, "-m", "draftgauge", "generate", "-m", str(model), "--raw", "-p", PROMPT, "-n", "40",
               "--spec-type", "ngram"]  # fmt: skip
    assert b"\x1b[32m" in on_a_terminal(command, TERM="xterm")
    assert b"\x1b" not in on_a_terminal(command, TERM="xterm", NO_COLOR="1")


def on_a_terminal(command: list[str], **environment: str) -> bytes:
    """What a command writes to a terminal."""
    ours, theirs = pty.openpty()
    clean = {key: value for key, value in os.environ.items() if key != "NO_COLOR"}
    process = subprocess.Popen(command, stdout=theirs, stderr=subprocess.DEVNULL, env={**clean, **environment})
    os.close(theirs)
    written = b""
    while True:
        try:
            part = os.read(ours, 4096)
        except OSError:
            break
        if not part:
            break
        written += part
    assert process.wait(timeout=60) == 0
    os.close(ours)
    return written


@pytest.mark.parametrize("command", ["inspect", "generate", "evaluate", "bench"])
@pytest.mark.parametrize("option", ["-h", "--help"])
def test_help_has_a_worked_example(cli, command: str, option: str) -> None:
    outcome = cli(command, option)
    assert (outcome.returncode, outcome.stderr) == (0, b"")
    assert b"Example:" in outcome.stdout and f"draftgauge {command} ".encode() in outcome.stdout


def test_the_overview(cli) -> None:
    for arguments in ([], ["-h"]):
        outcome = cli(*arguments)
        assert outcome.returncode == 0
        assert b"generate" in outcome.stdout and b"Example:" in outcome.stdout
