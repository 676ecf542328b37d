"""Quantization against ggml's own, by way of libgguf: the same bytes for any rows, with and without importance."""

from __future__ import annotations

import libgguf
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import draftgauge as dg

TYPES = ["Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K"]
KINDS = {
    "normal": lambda rng, shape: 0.02 * rng.standard_normal(shape),
    "outliers": lambda rng, shape: rng.standard_t(1.5, size=shape),
    "sparse": lambda rng, shape: rng.standard_normal(shape) * (rng.random(shape) < 0.1),
    "positive": lambda rng, shape: rng.exponential(size=shape),
    "few levels": lambda rng, shape: rng.integers(-2, 3, size=shape) / 4,
    "many magnitudes": lambda rng, shape: rng.standard_normal(shape) * np.exp2(rng.integers(-24, 8, size=shape)),
    "one magnitude a row": lambda rng, shape: (
        rng.standard_normal(shape) * np.exp2(rng.integers(-40, 12, (shape[0], 1)))
    ),
}


def same_bytes(x: np.ndarray, name: str, imatrix: np.ndarray | None) -> None:
    expected = libgguf.quantize_rows(x, libgguf.GGMLQuantizationType[name], imatrix)
    found = dg.quant.quantize(x, name, imatrix=imatrix)
    assert found.dtype == np.uint8
    assert found.shape == expected.shape
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("name", TYPES)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("weigh", [False, True], ids=["plain", "weighted"])
def test_equals_ggml_byte_for_byte(name: str, kind: str, weigh: bool) -> None:
    rng = np.random.default_rng(len(kind))
    x = KINDS[kind](rng, (65, 768)).astype(np.float32)
    imatrix = rng.exponential(size=768).astype(np.float32) ** 2 if weigh else None
    same_bytes(x, name, imatrix)


FLOATS = st.floats(-1024, 1024, width=32, allow_subnormal=False)


@settings(deadline=None, suppress_health_check=list(HealthCheck))
@given(
    x=hnp.arrays(np.float32, (1, 256), elements=FLOATS, fill=st.one_of(st.just(0.0), FLOATS)),
    imatrix=st.none() | hnp.arrays(np.float32, 256, elements=st.floats(0, 64, width=32, allow_subnormal=False)),
    name=st.sampled_from(TYPES),
)
def test_equals_ggml_on_what_hypothesis_finds(x: np.ndarray, imatrix: np.ndarray | None, name: str) -> None:
    same_bytes(x, name, imatrix)


@pytest.mark.parametrize("name", ["F16", "BF16", "F32"])
def test_storage_types_round_to_nearest_even(name: str) -> None:
    bits = np.random.default_rng(1).integers(0, 1 << 32, size=(64, 1024), dtype=np.uint64).astype(np.uint32)
    x = bits.view(np.float32)
    x = np.where(np.isnan(x), np.float32(0), x)
    with np.errstate(over="ignore"):
        expected = libgguf.store_rows(x, libgguf.GGMLQuantizationType[name])
    np.testing.assert_array_equal(
        dg.quant.quantize(x, name), np.ascontiguousarray(expected).view(np.uint8).reshape(64, -1)
    )


def test_what_was_quantized_reads_back() -> None:
    x = np.random.default_rng(2).standard_normal((8, 512)).astype(np.float32)
    for name in TYPES:
        back = dg.quant.dequantize(dg.quant.quantize(x, name), name, x.shape)
        bits = int(name[1])
        assert np.sqrt(np.mean((back - x) ** 2)) < 2.2 / (1 << bits), name


def test_errors_name_what_was_found() -> None:
    x = np.ones((2, 256), dtype=np.float32)
    x[1, 3] = np.inf
    with pytest.raises(dg.QuantError, match="inf at index 259"):
        dg.quant.quantize(x, "Q4_K")
    with pytest.raises(dg.QuantError, match="IQ2_XXS is not supported"):
        dg.quant.quantize(x[:1], "IQ2_XXS")
    with pytest.raises(dg.QuantError, match="expected 256 weights, found 5"):
        dg.quant.quantize(x[:1], "Q4_K", imatrix=np.ones(5, np.float32))
