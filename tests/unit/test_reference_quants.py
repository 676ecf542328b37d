"""The NumPy twin of dequantization against gguf-py's own values (``tests/golden/make_quants.py``)."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from draftgauge.reference import quants

GOLDEN = Path(__file__).parents[1] / "golden" / "quants"


def golden(name: str) -> tuple[np.ndarray, np.ndarray]:
    layout = quants._LAYOUTS[name]
    raw = np.fromfile(GOLDEN / f"{name}.bin", dtype=np.uint8)
    n = raw.size // (layout.block_bytes + 4 * layout.block_len)
    cut = n * layout.block_bytes
    return raw[:cut], raw[cut:].view("<f4")


@pytest.mark.parametrize("name", quants.types())
def test_d01_twin_equals_gguf_py_bit_for_bit(name: str) -> None:
    data, expected = golden(name)
    found = quants.dequantize(data, name, expected.shape)
    np.testing.assert_array_equal(found.view(np.uint32), expected.view(np.uint32))


def test_types_cover_what_the_twin_promises() -> None:
    promised = {"F16", "BF16", "MXFP4", "IQ4_NL", "IQ4_XS"}
    promised |= {"Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0"} | {f"Q{bits}_K" for bits in range(2, 7)}
    assert promised <= set(quants.types())


def test_rejects_what_does_not_fit() -> None:
    with pytest.raises(ValueError, match="expected 36 bytes, found 35"):
        quants.dequantize(np.zeros(35, np.uint8), "Q4_0", (2, 32))
    with pytest.raises(ValueError, match="multiple of 256 values, found 64"):
        quants.dequantize(np.zeros(36, np.uint8), "Q4_K", (64,))
    with pytest.raises(ValueError, match=r"expected one of F32, .* found 'Q9'"):
        quants.dequantize(np.zeros(36, np.uint8), "Q9", (64,))
