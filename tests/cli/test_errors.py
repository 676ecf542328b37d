"""Whatever is wrong: one line on stderr, nothing on stdout, exit code 2, and never a traceback."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

COMMANDS = ["inspect", "generate", "evaluate", "bench"]
LATER = "ladder compare economics diagnose capture distil train convert serve".split()


def refused(outcome: subprocess.CompletedProcess[bytes], pattern: str) -> None:
    """The form of every refusal."""
    stderr = outcome.stderr.decode()
    assert outcome.returncode == 2, stderr
    assert outcome.stdout == b""
    assert stderr.count("\n") == 1, stderr
    assert re.match(r"draftgauge: [^:]+: ", stderr), stderr
    assert re.search(pattern, stderr), stderr


def arguments(command: str, file: object, text: object) -> list[object]:
    """A command with a model, and everything else that it needs."""
    return {
        "inspect": ["inspect", file],
        "generate": ["generate", "-m", file, "-p", "Hello", "-n", "2"],
        "evaluate": ["evaluate", "-m", file, "--text", text],
        "bench": ["bench", "-m", file, "-p", "8", "-n", "2", "-r", "1", "--rows", "1"],
    }[command]


@pytest.fixture
def text(tmp_path: Path) -> Path:
    path = tmp_path / "text.txt"
    path.write_text("word " * 100)
    return path


@pytest.mark.parametrize("command", COMMANDS)
def test_a_missing_file(cli, command: str, text: Path) -> None:
    refused(cli(*arguments(command, "no/such/file.gguf", text)), r"no such file.*: no/such/file\.gguf")


@pytest.mark.parametrize("command", COMMANDS)
def test_a_file_of_another_kind(cli, command: str, text: Path) -> None:
    refused(cli(*arguments(command, text, text)), r"text\.txt: expected magic GGUF, found")


@pytest.mark.parametrize("command", COMMANDS)
def test_a_file_that_breaks_off(cli, command: str, text: Path, model: Path, tmp_path: Path) -> None:
    cut = tmp_path / "cut.gguf"
    with model.open("rb") as whole:
        cut.write_bytes(whole.read(5000))
    refused(cli(*arguments(command, cut, text)), r"cut\.gguf")


@pytest.mark.parametrize("command", ["generate", "evaluate", "bench"])
def test_data_that_breaks_off(cli, command: str, text: Path, model: Path, tmp_path: Path) -> None:
    cut = tmp_path / "cut.gguf"
    with model.open("rb") as whole:
        cut.write_bytes(whole.read(20_000_000))
    refused(cli(*arguments(command, cut, text)), r"cut\.gguf.*(end of|bytes|problem)")


@pytest.mark.parametrize("command", ["generate", "evaluate", "bench"])
def test_an_unknown_device(cli, command: str, text: Path, model: Path) -> None:
    refused(cli(*arguments(command, model, text), "--device", "tpu"), "device: expected cpu.*, found tpu")


@pytest.mark.parametrize("command", ["generate", "evaluate", "bench"])
@pytest.mark.parametrize(
    ("options", "pattern"),
    [
        (["--numerics", "exact"], "numerics: expected fast or reference, found exact"),
        (["-t", "0"], "threads: expected 1 to"),
        (["-t", "many"], "-t/--threads: expected a whole number, found many"),
        (["-ctk", "q8_0"], "cache_type_k: expected f16 or f32, found q8_0"),
        (["--override-kv", "nonsense"], "override-kv"),
        (["--device", "cuda:x"], "found cuda:x"),
        # Candle's devices have threads and layouts of their own: an option without effect is not ignored.
        (["--device", "candle-cpu", "-t", "2"], "threads: expected no number on a Candle device.*, found 2"),
        (["--device", "candle-cpu", "--no-pack"], "no_pack: expected a CPU.*, found candle-cpu"),
    ],
)
def test_shared_options(cli, command: str, options: list[str], pattern: str, text: Path, model: Path) -> None:
    refused(cli(*arguments(command, model, text), *options), pattern)


@pytest.mark.parametrize("command", COMMANDS)
def test_an_unknown_option(cli, command: str) -> None:
    refused(cli(command, "--frobnicate"), f"--frobnicate: expected an option listed by `draftgauge {command} -h`")


@pytest.mark.parametrize("command", ["generate", "evaluate", "bench"])
def test_a_missing_model(cli, command: str) -> None:
    refused(cli(command), "-m/--model: expected a value")


def test_inspect_needs_a_file(cli) -> None:
    refused(cli("inspect"), "missing argument: FILE: expected a value")


def test_a_missing_value(cli) -> None:
    refused(cli("generate", "-m"), "-m: expected a value")


def test_an_argument_too_many(cli) -> None:
    refused(cli("generate", "-m", "x", "-p", "y", "z"), "unexpected argument: z")


def test_an_unknown_command(cli) -> None:
    refused(cli("generat"), "unknown command: generat")


@pytest.mark.parametrize("command", LATER)
def test_a_command_of_a_later_release(cli, command: str) -> None:
    refused(cli(command, "-m", "x.gguf", "--whatever"), f"a later release brings the command {command}")


@pytest.mark.parametrize(
    "options",
    [
        ["--spec-type", "mtp"],
        ["--spec-type", "draft-mtp"],
        ["-md", "demo"],
        ["--spec-type", "ngram", "--spec-draft-n-max", "auto"],
        ["--tree-budget", "16"],
        ["--tree-budget", "auto"],
        ["--verify", "rejection"],
        ["--verify", "block"],
    ],
    ids=" ".join,
)
def test_an_option_of_a_later_release_is_never_ignored(cli, options: list[str]) -> None:
    refused(cli("generate", "-m", "x.gguf", "-p", "Hello", *options), "a later release brings")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--spec-type", "dflash"], "missing drafter: -md: expected the file of a dflash drafter"),
        (["--spec-type", "draft-dspark"], "missing drafter: -md: expected the file of a dspark drafter"),
        (["--spec-type", "ngram", "-md", "d.gguf"], "option without effect: -md"),
        (["--spec-type", "none", "-md", "d.gguf"], "option without effect: -md"),
        (["--draft-override-kv", "a=int:1"], "option without effect: --draft-override-kv"),
        (["--target-layers", "1,2"], "option without effect: --target-layers"),
        (["--target-layers", "1,x", "-md", "d.gguf"], "invalid value: --target-layers"),
        (["--spec-draft-block", "8"], "option without effect: --spec-draft-block"),
        (["--spec-draft-p-min", "0.5"], "option without effect: --spec-draft-p-min"),
        (["--spec-type", "ngram", "--spec-draft-block", "8"], "option without effect: --spec-draft-block"),
        (["--spec-type", "ngram", "--spec-draft-p-min", "0.5"], "option without effect: --spec-draft-p-min"),
        (["-md", "d.gguf", "--spec-draft-p-min", "1.5"], "invalid value: --spec-draft-p-min"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_options_of_a_drafter_that_contradict_each_other(cli, options: list[str], message: str) -> None:
    refused(cli("generate", "-m", "x.gguf", "-p", "Hello", *options), message)


@pytest.mark.parametrize("command", ["inspect", "bench", "generate"])
def test_a_target_given_as_a_drafter_is_refused(cli, model: Path, command: str) -> None:
    options = {"inspect": [model], "bench": ["-m", model], "generate": ["-m", model, "-p", "Hi"]}[command]
    refused(cli(command, *options, "-md", model), "file holds no drafter that runs here.*found llama")


@pytest.mark.parametrize(
    ("options", "pattern"),
    [
        (["--temp", "-0.5"], "--temp: expected a finite number of at least 0, found -0.5"),
        (["--temp", "nan"], "--temp: expected a finite number"),
        (["--temp", "inf"], "--temp: expected a finite number"),
        (["--temp", "warm"], "--temp: expected a number, found warm"),
        (["-n", "-2"], "-n: expected -1 or more, found -2"),
        (["-n", "1.5"], "-n/--predict: expected a whole number, found 1.5"),
        (["--seed", "-2"], "--seed: expected -1 to"),
        (["--logit-bias", "5"], "--logit-bias: expected ID"),
        (["--logit-bias", "5+inf"], "--logit-bias: expected ID"),
        (["--spec-type", "magic"], "--spec-type: expected one of auto, none, ngram"),
        (["--verify", "faith"], "--verify: expected match, found faith"),
        (["--spec-draft-n-max", "4"], "--spec-draft-n-max: expected a drafter"),
        (["--spec-type", "ngram", "--spec-draft-n-max", "-1"], "--spec-draft-n-max: expected a number"),
        (["-f", "prompt.txt"], "expected one of the two, found both"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_values_that_generate_refuses_before_loading(cli, options: list[str], pattern: str) -> None:
    refused(cli("generate", "-m", "x.gguf", "-p", "Hello", *options), pattern)


@pytest.mark.parametrize(
    ("options", "pattern"),
    [
        (["--top-p", "1.5"], "top_p: expected 0 to 1, found 1.5"),
        (["--min-p", "-1"], "min_p: expected 0 to 1"),
        (["--top-k", "-1"], "top_k: expected 0 to"),
        (["--repeat-penalty", "0"], "repeat_penalty: expected a number above 0"),
        (["--repeat-last-n", "-2"], "repeat_last_n: expected -1 or more"),
        (["--logit-bias", "49152+1"], "logit_bias: expected a token id below 49152"),
        (["-r", ""], "a stop string is empty"),
        (["-c", "999999"], "ctx_size: expected 1 to 8192"),
        (["--override-kv", "llama.block_count=int:900"], "llama.block_count: expected at most 512, found 900"),
        (["--chat-template", "no/such/template"], "no such file"),
        (["--raw", "-sys", "Be brief."], "a system message needs a chat template"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_e16_values_that_the_engine_refuses(cli, model: Path, options: list[str], pattern: str) -> None:
    refused(cli("generate", "-m", model, "-p", "Hello", "-n", "2", *options), pattern)


def test_no_prompt(cli) -> None:
    refused(cli("generate", "-m", "x.gguf"), "expected one of the two, found neither")


def test_a_prompt_file_that_is_not_utf8(cli, tmp_path: Path) -> None:
    path = tmp_path / "prompt.txt"
    path.write_bytes(b"caf\xe9")
    refused(cli("generate", "-m", "x.gguf", "-f", path), "not UTF-8.*found byte 0xe9 at 3")


def test_stdin_that_is_not_utf8(cli) -> None:
    refused(cli("generate", "-m", "x.gguf", "-f", "-", stdin=b"\xff\xfe"), "not UTF-8.*found byte 0xff at 0")


def test_a_prompt_argument_that_is_not_utf8(cli) -> None:
    outcome = subprocess.run(
        [*_program(), b"generate", b"-m", b"x.gguf", b"-p", b"\xff"], capture_output=True, timeout=60, check=False
    )
    refused(outcome, "not UTF-8")


def test_a_text_that_is_not_utf8(cli, tmp_path: Path) -> None:
    path = tmp_path / "text.txt"
    path.write_bytes(b"\x80")
    refused(cli("evaluate", "-m", "x.gguf", "--text", path), "not UTF-8")


def test_a_text_too_short_to_score(cli, model: Path, text: Path) -> None:
    refused(cli("evaluate", "-m", model, "--text", text, "--no-compare"), "too short to score: expected at least 1024")


@pytest.mark.parametrize(
    ("options", "pattern"),
    [
        (["--rows", "0"], "--rows: expected numbers of at least 1"),
        (["--rows", "1,x"], "--rows: expected numbers"),
        (["-p", ""], "-p: expected numbers"),
        (["-n", "-1"], "-n: expected at least 0"),
        (["-r", "0"], "-r: expected at least 1"),
        (["-d", "-5"], "-d: expected at least 0"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_values_that_bench_refuses(cli, options: list[str], pattern: str) -> None:
    refused(cli("bench", "-m", "x.gguf", *options), pattern)


def test_runs_that_the_context_does_not_hold(cli, model: Path) -> None:
    refused(
        cli("bench", "-m", model, "-c", "64", "-p", "128"), "do not fit the context.*expected at least 128, found 64"
    )


@pytest.mark.parametrize("options", [["--data"], ["--diff", "b.gguf", "--tensors"]], ids=" ".join)
def test_options_of_inspect_that_do_not_go_together(cli, options: list[str]) -> None:
    refused(cli("inspect", "a.gguf", *options), "option")


def test_a_metadata_key_that_is_not_there(cli, model: Path) -> None:
    refused(cli("inspect", model, "--metadata", "no.such.key"), r"no such metadata key: .*no\.such\.key")


def test_a_kernel_path_that_does_not_exist(cli, model: Path) -> None:
    outcome = cli("generate", "-m", model, "-p", "Hello", "-n", "2", DRAFTGAUGE_ISA="mmx")
    refused(outcome, "DRAFTGAUGE_ISA|kernel")


def test_debug_shows_the_traceback(cli) -> None:
    outcome = cli("generate", "-m", "no.gguf", "-p", "Hello", "--debug")
    assert outcome.returncode == 2
    assert b"Traceback" in outcome.stderr
    assert outcome.stderr.splitlines()[-1].startswith(b"draftgauge: no such file")


def _program() -> list[bytes]:
    import os
    import sys

    return [os.fsencode(sys.executable), b"-m", b"draftgauge"]
