"""Reads quantized tensors in plain NumPy: the slow twin of ``draftgauge.quant.dequantize``.

Written from the block layouts of ggml (``ggml-common.h``; sizes also in gguf-py's ``constants.py``), one function a
type, so that each can be checked against the layout by eye. Floating-point operations are f32, in ggml's order: the
values equal those of ``draftgauge.quant`` and of gguf-py to the bit.

In every function ``blocks`` is ``uint8 [n, block_bytes]`` and the result ``float32 [n, block_len]``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

__all__ = ["dequantize", "types"]

Bytes = npt.NDArray[np.uint8]
Floats = npt.NDArray[np.float32]
Ints = npt.NDArray[np.int32]

# Twice the values of E2M1, so that they are integers; code 8 is minus zero.
E2M1_DOUBLED: Final = np.array([0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12], dtype=np.float32)
IQ4_LEVELS: Final = np.array(
    [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113], dtype=np.float32
)


def _half(blocks: Bytes, at: int) -> Floats:
    """The f16 field at byte ``at`` of every block, ``[n, 1]``."""
    return np.ascontiguousarray(blocks[:, at : at + 2]).view("<f2").astype(np.float32)


def _nibbles(packed: Bytes, width: int) -> Ints:
    """Low nibbles of ``width`` bytes, then their high nibbles, and so on for the next ``width`` bytes."""
    groups = packed.reshape(len(packed), -1, 1, width)
    return np.concatenate([groups & 0xF, groups >> 4], axis=2).reshape(len(packed), -1).astype(np.int32)


def _pairs(packed: Bytes, width: int) -> Ints:
    """Bits 0-1 of ``width`` bytes, then their bits 2-3, 4-5, 6-7, and so on for the next ``width`` bytes."""
    groups = packed.reshape(len(packed), -1, 1, width)
    fields = [groups >> shift & 3 for shift in (0, 2, 4, 6)]
    return np.concatenate(fields, axis=2).reshape(len(packed), -1).astype(np.int32)


def _bits(packed: Bytes) -> Ints:
    """Bit 0 of all bytes, then bit 1 of all bytes, up to bit 7."""
    return np.concatenate([packed >> shift & 1 for shift in range(8)], axis=1).astype(np.int32)


def _scaled(scales: Floats, q: Ints) -> Floats:
    """``scales`` ``[n, subs]`` times the integers ``q`` ``[n, block_len]`` of their sub-blocks."""
    n, subs = scales.shape
    return np.asarray(scales[:, :, None] * q.reshape(n, subs, -1).astype(np.float32), dtype=np.float32)


def f32(blocks: Bytes) -> Floats:
    """Plain f32."""
    return blocks.view("<f4").astype(np.float32)


def f16(blocks: Bytes) -> Floats:
    """Plain f16."""
    return _half(blocks, 0)


def bf16(blocks: Bytes) -> Floats:
    """The upper 16 bits of an f32."""
    return (blocks.view("<u2").astype(np.uint32) << 16).view(np.float32)


def q4_0(blocks: Bytes) -> Floats:
    """``d`` f16, ``qs`` 16 bytes: ``d * (q - 8)``."""
    return _half(blocks, 0) * (_nibbles(blocks[:, 2:], 16) - 8).astype(np.float32)


def q4_1(blocks: Bytes) -> Floats:
    """``d`` f16, ``m`` f16, ``qs`` 16 bytes: ``d * q + m``."""
    return _half(blocks, 0) * _nibbles(blocks[:, 4:], 16).astype(np.float32) + _half(blocks, 2)


def _fifth_bits(qh: Bytes) -> Ints:
    """Bit ``j`` of a little-endian u32 is the fifth bit of value ``j``."""
    return np.unpackbits(qh, axis=1, bitorder="little").astype(np.int32) << 4


def q5_0(blocks: Bytes) -> Floats:
    """``d`` f16, ``qh`` u32, ``qs`` 16 bytes: ``d * (q - 16)``."""
    q = _nibbles(blocks[:, 6:], 16) | _fifth_bits(blocks[:, 2:6])
    return _half(blocks, 0) * (q - 16).astype(np.float32)


def q5_1(blocks: Bytes) -> Floats:
    """``d`` f16, ``m`` f16, ``qh`` u32, ``qs`` 16 bytes: ``d * q + m``."""
    q = _nibbles(blocks[:, 8:], 16) | _fifth_bits(blocks[:, 4:8])
    return _half(blocks, 0) * q.astype(np.float32) + _half(blocks, 2)


def q8_0(blocks: Bytes) -> Floats:
    """``d`` f16, ``qs`` 32 signed bytes: ``q * d``."""
    return blocks[:, 2:].view(np.int8).astype(np.float32) * _half(blocks, 0)


def q2_k(blocks: Bytes) -> Floats:
    """``scales`` 16 bytes, ``qs`` 64 bytes, ``d`` f16, ``dmin`` f16.

    ``d * scale * q - dmin * min`` for 16 values each.
    """
    scales = _half(blocks, 80) * (blocks[:, :16] & 0xF).astype(np.float32)
    mins = _half(blocks, 82) * (blocks[:, :16] >> 4).astype(np.float32)
    values = _scaled(scales, _pairs(blocks[:, 16:80], 32)) - mins[:, :, None]
    return values.reshape(-1, 256)


def q3_k(blocks: Bytes) -> Floats:
    """``hmask`` 32 bytes, ``qs`` 64 bytes, ``scales`` 12 bytes, ``d`` f16: ``d * (scale - 32) * q`` for 16 values each.

    A set bit of ``hmask`` means that 4 is not taken off.
    """
    low = _nibbles(blocks[:, 96:104], 8)
    high = _pairs(blocks[:, 104:108], 4)
    scales = _half(blocks, 108) * ((low | high << 4) - 32).astype(np.float32)
    q = _pairs(blocks[:, 32:96], 32) - 4 * (1 - _bits(blocks[:, :32]))
    return _scaled(scales, q).reshape(-1, 256)


def _scales_mins(packed: Bytes) -> tuple[Floats, Floats]:
    """Eight 6-bit scales and eight 6-bit minimums from 12 bytes, both ``[n, 8]``."""
    first, second, third = packed[:, :4], packed[:, 4:8], packed[:, 8:]
    scales = np.concatenate([first & 0x3F, third & 0xF | first >> 6 << 4], axis=1)
    mins = np.concatenate([second & 0x3F, third >> 4 | second >> 6 << 4], axis=1)
    return scales.astype(np.float32), mins.astype(np.float32)


def q4_k(blocks: Bytes) -> Floats:
    """``d`` f16, ``dmin`` f16, ``scales`` 12 bytes, ``qs`` 128 bytes.

    ``d * scale * q - dmin * min`` for 32 values each.
    """
    scales, mins = _scales_mins(blocks[:, 4:16])
    scaled = _scaled(_half(blocks, 0) * scales, _nibbles(blocks[:, 16:], 32))
    return (scaled - (_half(blocks, 2) * mins)[:, :, None]).reshape(-1, 256)


def q5_k(blocks: Bytes) -> Floats:
    """As ``q4_k`` with ``qh`` 32 bytes of fifth bits before ``qs``."""
    scales, mins = _scales_mins(blocks[:, 4:16])
    q = _nibbles(blocks[:, 48:], 32) | _bits(blocks[:, 16:48]) << 4
    scaled = _scaled(_half(blocks, 0) * scales, q)
    return (scaled - (_half(blocks, 2) * mins)[:, :, None]).reshape(-1, 256)


def q6_k(blocks: Bytes) -> Floats:
    """``ql`` 128 bytes, ``qh`` 64 bytes, ``scales`` 16 signed bytes, ``d`` f16.

    ``d * scale * (q - 32)`` for 16 values each.
    """
    scales = _half(blocks, 208) * blocks[:, 192:208].view(np.int8).astype(np.float32)
    q = _nibbles(blocks[:, :128], 64) | _pairs(blocks[:, 128:192], 32) << 4
    return _scaled(scales, q - 32).reshape(-1, 256)


def iq4_nl(blocks: Bytes) -> Floats:
    """``d`` f16, ``qs`` 16 bytes: ``d * IQ4_LEVELS[q]``."""
    return np.asarray(_half(blocks, 0) * IQ4_LEVELS[_nibbles(blocks[:, 2:], 16)], dtype=np.float32)


def iq4_xs(blocks: Bytes) -> Floats:
    """``d`` f16, ``scales_h`` u16, ``scales_l`` 4 bytes, ``qs`` 128 bytes.

    ``d * (scale - 32) * IQ4_LEVELS[q]`` for 32 values each.
    """
    low = np.stack([blocks[:, 4:8] & 0xF, blocks[:, 4:8] >> 4], axis=2).reshape(-1, 8).astype(np.int32)
    word = np.ascontiguousarray(blocks[:, 2:4]).view("<u2").astype(np.int32)
    high = word >> np.arange(0, 16, 2) & 3
    scales = _half(blocks, 0) * ((low | high << 4) - 32).astype(np.float32)
    levels = IQ4_LEVELS[_nibbles(blocks[:, 8:], 16)].reshape(-1, 8, 32)
    return np.asarray(scales[:, :, None] * levels, dtype=np.float32).reshape(-1, 256)


def mxfp4(blocks: Bytes) -> Floats:
    """``e`` E8M0, ``qs`` 16 bytes: ``2^(e - 128) * E2M1_DOUBLED[q]``."""
    scale = np.ldexp(np.float32(1), blocks[:, :1].astype(np.int32) - 128).astype(np.float32)
    return np.asarray(scale * E2M1_DOUBLED[_nibbles(blocks[:, 1:], 16)], dtype=np.float32)


class _Layout(NamedTuple):
    block_len: int
    block_bytes: int
    read: Callable[[Bytes], Floats]


_LAYOUTS: Final = {
    "F32": _Layout(1, 4, f32),
    "F16": _Layout(1, 2, f16),
    "BF16": _Layout(1, 2, bf16),
    "Q4_0": _Layout(32, 18, q4_0),
    "Q4_1": _Layout(32, 20, q4_1),
    "Q5_0": _Layout(32, 22, q5_0),
    "Q5_1": _Layout(32, 24, q5_1),
    "Q8_0": _Layout(32, 34, q8_0),
    "Q2_K": _Layout(256, 84, q2_k),
    "Q3_K": _Layout(256, 110, q3_k),
    "Q4_K": _Layout(256, 144, q4_k),
    "Q5_K": _Layout(256, 176, q5_k),
    "Q6_K": _Layout(256, 210, q6_k),
    "IQ4_NL": _Layout(32, 18, iq4_nl),
    "IQ4_XS": _Layout(256, 136, iq4_xs),
    "MXFP4": _Layout(32, 17, mxfp4),
}


def types() -> list[str]:
    """Names of the types that this twin reads.

    Returns
    -------
    list of str
        ggml's names.

    Examples
    --------
    >>> "Q4_K" in types()
    True
    """
    return list(_LAYOUTS)


def dequantize(data: npt.NDArray[Any], quant_type: str, shape: Sequence[int]) -> Floats:
    """Reads the bytes of a tensor.

    Parameters
    ----------
    data : uint8 array
        The tensor's bytes, of any shape.
    quant_type : str
        ggml's name of the type, such as ``"Q4_K"``.
    shape : sequence of int
        Row-major shape of the result; its last extent is a multiple of the type's block length.

    Returns
    -------
    float32 array of the given shape

    Raises
    ------
    ValueError
        If the type is not known here, or the bytes are not those of the shape.

    Examples
    --------
    One block of Q8_0 with scale 0.5:

    >>> block = np.zeros(34, dtype=np.uint8)
    >>> block[:2] = np.array([0.5], dtype="<f2").view(np.uint8)
    >>> block[2:] = np.arange(32)
    >>> dequantize(block, "Q8_0", (1, 32))[0, :4]
    array([0. , 0.5, 1. , 1.5], dtype=float32)
    """
    layout = _LAYOUTS.get(quant_type)
    if layout is None:
        raise ValueError(f"quant_type: expected one of {', '.join(_LAYOUTS)}, found {quant_type!r}")
    columns = shape[-1] if len(shape) else 1
    if columns % layout.block_len:
        raise ValueError(f"{quant_type} row: expected a multiple of {layout.block_len} values, found {columns}")
    raw = np.ascontiguousarray(data, dtype=np.uint8).reshape(-1)
    expected = int(np.prod(shape, dtype=np.int64)) // layout.block_len * layout.block_bytes
    if raw.size != expected:
        raise ValueError(f"{quant_type} data: expected {expected} bytes, found {raw.size}")
    with np.errstate(all="ignore"):
        values = layout.read(raw.reshape(-1, layout.block_bytes))
    return np.ascontiguousarray(values, dtype=np.float32).reshape(tuple(shape))
