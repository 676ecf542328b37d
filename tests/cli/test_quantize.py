"""``draftgauge quantize``: what it prints and what it refuses."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

import quantize_models


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return quantize_models.write(tmp_path_factory.mktemp("quantize"), "narrow")[0]


def test_a_table_and_an_object(cli, small: Path, tmp_path: Path) -> None:
    outcome = cli("quantize", small, tmp_path / "a.gguf", "q4_k_m", "2")
    assert outcome.returncode == 0, outcome.stderr
    assert b"Q5_0" in outcome.stdout and b"stand-ins" in outcome.stderr
    report = json.loads(cli("quantize", small, tmp_path / "a.gguf", "Q4_K_M", "--json").stdout)
    assert report["kept"] and report["file_type"] == "Q4_K_M"
    assert {one["to"] for one in report["tensors"]} == {"F32", "Q5_0", "Q8_0"}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["SMALL", "OUT", "Q4_X"], "unknown type: type: expected F32, F16, BF16, Q8_0, Q4_0"),
        (["SMALL", "OUT", "IQ3_S"], "a later release quantizes to this type"),
        (["SMALL", "SMALL", "Q4_0"], "a file cannot be quantized onto itself"),
        (["SMALL", "OUT", "Q4_0", "0"], "THREADS: expected at least 1, found 0"),
        (["SMALL", "OUT", "Q4_0", "--imatrix", "none.gguf"], "none.gguf"),
        (["SMALL", "OUT", "Q4_0", "--imatrix", "SMALL"], "importance matrix cannot be used"),
        (["SMALL", "OUT", "Q4_0", "--tensor-type", "ffn"], "--tensor-type: expected REGEX=TYPE, found ffn"),
        (["SMALL", "OUT", "Q4_0", "--tensor-type", "(=Q8_0"], "expected a regular expression"),
        (["SMALL", "OUT", "Q4_0", "--tensor-type", "ffn=Q9"], "Q9"),
        (["SMALL", "OUT", "Q2_K_S"], None),
        (["MODEL", "OUT", "Q4_0"], "weights are quantized already.*expected F32, F16 or BF16, found Q4_1"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_what_is_refused(
    cli, small: Path, model: Path, tmp_path: Path, arguments: list[str], message: str | None
) -> None:
    places = {"SMALL": small, "OUT": tmp_path / "out.gguf", "MODEL": model}
    before = small.read_bytes()
    outcome = cli("quantize", *[places.get(one, one) for one in arguments])
    if message is None:
        # Rows of 96 fall back to Q4_0, which needs no matrix.
        assert outcome.returncode == 0
        return
    assert outcome.returncode == 2 and outcome.stdout == b""
    assert outcome.stderr.count(b"\n") == 1 and re.search(message, outcome.stderr.decode()), outcome.stderr
    assert list(tmp_path.iterdir()) == [] and small.read_bytes() == before
