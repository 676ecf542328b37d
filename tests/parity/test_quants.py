"""Dequantization against gguf-py: random bytes of every type, equal to the last bit."""

from __future__ import annotations

import gguf
import numpy as np
import pytest

import draftgauge as dg
from draftgauge.reference import quants as twin

BLOCKS = 1536

# gguf-py 0.19 names these and does not read them; Q2_0 is newer than it.
NOT_IN_GGUF_PY = {"Q1_0", "Q2_0"}


def random_rows(name: str, rows: int, seed: int) -> tuple[np.ndarray, tuple[int, int]]:
    block_len, block_bytes = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[name]]
    blocks = BLOCKS // rows if block_len > 1 else 4096
    data = np.random.default_rng(seed).integers(0, 256, size=(rows, blocks * block_bytes), dtype=np.uint8)
    return data, (rows, blocks * block_len)


def assert_same_bits(found: np.ndarray, expected: np.ndarray) -> None:
    """Equal bits, but for which of two NaNs a sum of both passes on: IEEE 754 leaves that to the compiler."""
    np.testing.assert_array_equal(np.isnan(found), np.isnan(expected))
    number = ~np.isnan(expected)
    np.testing.assert_array_equal(found[number].view(np.uint32), expected[number].view(np.uint32))


@pytest.mark.parametrize("name", [name for name in dg.quant.types() if name not in NOT_IN_GGUF_PY])
@pytest.mark.parametrize("rows", [1, 3])
def test_d01_equals_gguf_py_bit_for_bit(name: str, rows: int) -> None:
    data, shape = random_rows(name, rows, seed=rows)
    with np.errstate(all="ignore"):
        expected = gguf.dequantize(data, gguf.GGMLQuantizationType[name])
    found = dg.quant.dequantize(data, name, shape)
    assert found.dtype == np.float32
    assert found.shape == expected.shape == shape
    assert_same_bits(found, expected)


def test_d01_every_type_that_gguf_py_reads_is_here() -> None:
    read = {"F32", "F16"} | {ty.name for ty in gguf.quants._type_traits}
    assert read <= set(dg.quant.types())


@pytest.mark.parametrize("name", twin.types())
def test_twin_equals_the_engine_bit_for_bit(name: str) -> None:
    data, shape = random_rows(name, 2, seed=7)
    found = twin.dequantize(data, name, shape)
    assert_same_bits(found, dg.quant.dequantize(data, name, shape))


def test_d03_q4_k_scales_and_mins_count() -> None:
    block = np.zeros(144, dtype=np.uint8)
    block[:4] = np.array([1, 1], dtype="<f2").view(np.uint8)
    block[4], block[8], block[16:] = 2, 5, 0x33
    for read in (dg.quant.dequantize, twin.dequantize):
        np.testing.assert_array_equal(read(block, "Q4_K", (1, 256))[0, :32], np.float32(1))


def test_d06_the_smallest_half_is_kept() -> None:
    data = np.array([0x0001], dtype="<u2").view(np.uint8)
    assert dg.quant.dequantize(data, "F16", (1,))[0] == np.float32(5.9604645e-8)


def test_d08_bf16_is_not_f16() -> None:
    data = np.array([0x3F80], dtype="<u2").view(np.uint8)
    assert dg.quant.dequantize(data, "BF16", (1,))[0] == 1.0
