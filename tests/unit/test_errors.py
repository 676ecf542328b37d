"""Errors of the core arrive as the right classes, with the evidence that their message shows."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import draftgauge as dg


def test_a_missing_file_stays_pythons_own(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError) as caught:
        dg.Target.from_gguf(tmp_path / "no.gguf")
    assert caught.value.filename is not None and Path(caught.value.filename).name == "no.gguf"
    assert caught.value.errno == 2 and "os error" not in str(caught.value)


def test_a_wrong_file_names_path_expected_and_found(tmp_path: Path) -> None:
    path = tmp_path / "text.gguf"
    path.write_bytes(b"hello, world, this is no model")
    with pytest.raises(dg.GgufError) as caught:
        dg.gguf.open(path)
    error = caught.value
    assert error.path == str(path)
    assert error.expected is not None and error.found is not None
    assert error.tensor is None
    assert str(path) in str(error) and f"expected {error.expected}, found {error.found}" in str(error)


def test_quantized_data_of_the_wrong_size() -> None:
    with pytest.raises(dg.QuantError) as caught:
        dg.quant.dequantize(np.zeros(17, np.uint8), "Q4_0", (1, 32))
    assert (caught.value.expected, caught.value.found) == ("18 bytes", "17 bytes")


def test_a_wrong_argument_is_a_value_error_with_evidence(model: Path) -> None:
    target = dg.Target.from_gguf(model)
    with pytest.raises(ValueError) as caught:
        target.logits([])
    assert not isinstance(caught.value, dg.DraftgaugeError)
    assert vars(caught.value)["key"] == "tokens"


def test_each_class_is_one_of_ours() -> None:
    for name in ("GgufError", "QuantError", "ModelError", "PairingError", "TreeError", "DeviceError"):
        assert issubclass(getattr(dg, name), dg.DraftgaugeError)
    error = dg.ModelError("broken", key="a key")
    assert (error.what, error.key, error.path) == ("broken", "a key", None)
