"""Whole quantized files against llama-quantize's own, byte for byte (``tests/golden/make_llama_quantize.py``)."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path

import numpy as np
import pytest

import draftgauge as dg
import quantize_models
from draftgauge.requantize import file_types, quantize_file

GOLDEN = json.loads((Path(__file__).parents[1] / "golden" / "llama_quantize.json").read_text(encoding="utf-8"))


@pytest.fixture(scope="module", params=list(quantize_models.MODELS))
def written(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path, Path]:
    model, matrix = quantize_models.write(tmp_path_factory.mktemp(request.param), request.param)
    assert hashlib.sha256(model.read_bytes()).hexdigest() == GOLDEN[request.param]["source"]
    return request.param, model, matrix


@pytest.mark.parametrize("weighed", [False, True], ids=["plain", "imatrix"])
def test_files_are_those_of_llama_quantize(
    written: tuple[str, Path, Path], weighed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    name, model, matrix = written
    # The matrix's name becomes a value of the file.
    monkeypatch.chdir(model.parent)
    for kind in file_types():
        wanted = GOLDEN[name][f"{kind} with imatrix" if weighed else kind]
        output = model.parent / f"{kind}-{weighed}.gguf"
        if wanted is None:
            with pytest.raises(dg.QuantError, match="useless without an importance matrix"):
                quantize_file(model, output, kind)
            assert not output.exists()
            continue
        report = quantize_file(model, output, kind, imatrix=matrix.name if weighed else None, threads=2)
        assert hashlib.sha256(output.read_bytes()).hexdigest() == wanted, (name, kind)
        assert not report["kept"] and report["bytes_after"] == sum(one["bytes"] for one in report["tensors"])


def test_threads_change_no_byte(written: tuple[str, Path, Path], tmp_path: Path) -> None:
    _, model, _ = written
    for threads in (1, 3):
        quantize_file(model, tmp_path / f"{threads}.gguf", "Q4_K_M", threads=threads)
    assert (tmp_path / "1.gguf").read_bytes() == (tmp_path / "3.gguf").read_bytes()


def test_types_of_single_tensors(written: tuple[str, Path, Path], tmp_path: Path) -> None:
    _, model, _ = written
    report = quantize_file(
        model,
        tmp_path / "a.gguf",
        "Q4_0",
        token_embedding_type="Q8_0",
        tensor_types=[("ffn_(up|gate)", "Q5_1"), ("ffn", "Q8_0")],
    )
    types = {one["name"]: one["to"] for one in report["tensors"]}
    assert types["token_embd.weight"] == "Q8_0"
    assert types["blk.1.ffn_up.weight"] == types["blk.1.ffn_gate.weight"] == "Q5_1"
    assert types["blk.1.ffn_down.weight"] == "Q8_0"
    assert types["blk.1.attn_q.weight"] == "Q4_0" and types["blk.1.attn_norm.weight"] == "F32"
    pure = quantize_file(model, tmp_path / "b.gguf", "Q5_0", pure=True)
    assert {one["to"] for one in pure["tensors"]} == {"F32", "Q5_0"}


def test_a_finished_file_is_kept_and_another_is_not(written: tuple[str, Path, Path], tmp_path: Path) -> None:
    _, model, _ = written
    output = tmp_path / "a.gguf"
    quantize_file(model, output, "Q8_0")
    before = output.stat().st_mtime_ns
    assert quantize_file(model, output, "Q8_0")["kept"]
    assert output.stat().st_mtime_ns == before
    assert not quantize_file(model, output, "Q5_0")["kept"]
    output.write_bytes(output.read_bytes()[:-100])
    assert not quantize_file(model, output, "Q5_0")["kept"], "a torn file is no result"
    model.touch()
    assert not quantize_file(model, output, "Q5_0")["kept"], "the input is younger"
    other = quantize_other(tmp_path, model)
    assert not quantize_file(other, output, "Q5_0")["kept"], "another model with the same header"
    other.unlink()
    assert [path.name for path in tmp_path.iterdir()] == ["a.gguf"]


def quantize_other(folder: Path, model: Path) -> Path:
    """The same model with other weights, older than anything made of it."""
    file = dg.gguf.open(model)
    tensors = {name: file.dequantize(name) for name in file.tensors}
    halved = {name: values if values.ndim == 1 else (values / 2).astype(np.float16) for name, values in tensors.items()}
    other = folder / "other.gguf"
    dg.gguf.write(other, file.metadata, halved)
    os.utime(other, (1, 1))
    return other


def test_a_given_type_does_not_count_for_the_rules(written: tuple[str, Path, Path], tmp_path: Path) -> None:
    name, model, _ = written
    if name == "narrow":
        pytest.skip("its rows have one stand-in for all mixed types")
    report = quantize_file(
        model, tmp_path / "a.gguf", "Q4_K_M", tensor_types=[(r"blk\.0\.ffn_down", "Q8_0")], output_tensor_type="Q8_0"
    )
    types = {one["name"]: one["to"] for one in report["tensors"]}
    layers = quantize_models.MODELS[name][0]
    # llama-quantize b11434: the layers after the given one count from 0.
    expected = ["Q6_K" if i < layers // 8 or i >= 7 * layers // 8 or (i - layers // 8) % 3 == 2 else "Q4_K"
                for i in range(layers - 1)]  # fmt: skip
    assert [types[f"blk.{layer}.ffn_down.weight"] for layer in range(1, layers)] == expected
    assert types["token_embd.weight" if name == "tied" else "output.weight"] == "Q8_0"


def test_quantized_files_are_read_by_the_model(written: tuple[str, Path, Path], tmp_path: Path) -> None:
    _, model, _ = written
    output = tmp_path / "a.gguf"
    quantize_file(model, output, "Q8_0")
    first, second = (dg.Target.from_gguf(path, numerics="reference") for path in (model, output))
    a, b = first.logits([1, 7, 300]), second.logits([1, 7, 300])
    assert abs(a - b).max() < 0.2 * abs(a).max()
