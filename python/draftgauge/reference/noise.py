"""Keyed Gumbel noise: a function of (seed, stream, absolute position, token id) and of nothing else.

The generator is Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC'11) with

    key     = [seed low, seed high]
    counter = [token id >> 2, position, stream low, stream high]
    bits    = word (token id & 3) of the output

The uniform is ``(bits + 0.5) / 2**32`` and the noise ``-ln(-ln u)``. Logarithm and exponential are made of ``+ - * /``
and bit operations alone, which round the same everywhere, so the compiled engine computes the same bits.

Examples
--------
>>> from draftgauge.reference import noise
>>> [f"{word:08x}" for word in noise.philox4x32_10([0, 0, 0, 0], [0, 0])]
['6627e8d5', 'e169c58d', 'bc57ac4c', '9b00dbd8']
>>> float(noise.gumbel(0, 0, position=5, tokens=[7])[0]) == float(noise.gumbel(0, 0, position=5, tokens=[1, 7])[1])
True
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import numpy.typing as npt

__all__ = ["bits", "exp", "gumbel", "ln", "philox4x32_10", "uniform"]

_MULTIPLIERS = (np.uint64(0xD2511F53), np.uint64(0xCD9E8D57))
_WEYL = (0x9E3779B9, 0xBB67AE85)
_LOW = np.uint64(0xFFFFFFFF)
_SHIFT = np.uint64(32)
_LN2_HI = 6.931471803691238e-1
_LN2_LO = 1.9082149292705877e-10
_LOG2_E = 1.4426950408889634
_SQRT_2 = 1.4142135623730951
# Adding and subtracting this rounds to the nearest integer, ties to even.
_ROUND = 6755399441055744.0


def philox4x32_10(counter: Sequence[npt.ArrayLike], key: Sequence[int]) -> list[npt.NDArray[np.uint32]]:
    """Philox4x32 with ten rounds.

    Parameters
    ----------
    counter : four integers or arrays of them
        The counter words; they broadcast against each other.
    key : two integers
        The key words.

    Returns
    -------
    list of four uint32 arrays
        The output words.
    """
    c0, c1, c2, c3 = np.broadcast_arrays(*(np.asarray(word, dtype=np.uint64) for word in counter))
    k0, k1 = int(key[0]), int(key[1])
    for _ in range(10):
        product_0 = _MULTIPLIERS[0] * c0
        product_1 = _MULTIPLIERS[1] * c2
        c0, c1, c2, c3 = (
            (product_1 >> _SHIFT) ^ c1 ^ np.uint64(k0),
            product_1 & _LOW,
            (product_0 >> _SHIFT) ^ c3 ^ np.uint64(k1),
            product_0 & _LOW,
        )
        k0 = (k0 + _WEYL[0]) & 0xFFFFFFFF
        k1 = (k1 + _WEYL[1]) & 0xFFFFFFFF
    return [word.astype(np.uint32) for word in (c0, c1, c2, c3)]


def bits(seed: int, stream: int, *, position: int, tokens: npt.ArrayLike) -> npt.NDArray[np.uint32]:
    """The 32 bits of each token at the position where it would stand.

    Parameters
    ----------
    seed, stream : int
        Integers of 64 bits.
    position : int
        Absolute position in the sequence, 32 bits.
    tokens : array_like of int, [n]
        Token ids.

    Returns
    -------
    uint32 array, [n]
    """
    ids = np.atleast_1d(np.asarray(tokens, dtype=np.uint64))
    counter = [ids >> np.uint64(2), position, stream & 0xFFFFFFFF, stream >> 32]
    words = np.stack(philox4x32_10(counter, [seed & 0xFFFFFFFF, seed >> 32]))
    picked: npt.NDArray[np.uint32] = words[(ids & np.uint64(3)).astype(np.intp), np.arange(ids.size)]
    return picked


def uniform(words: npt.ArrayLike) -> npt.NDArray[np.float64]:
    """The uniform of 32 bits, strictly between 0 and 1."""
    result: npt.NDArray[np.float64] = (np.asarray(words, dtype=np.uint32).astype(np.float64) + 0.5) * (1.0 / 2.0**32)
    return result


def gumbel(seed: int, stream: int, *, position: int, tokens: npt.ArrayLike) -> npt.NDArray[np.float64]:
    """The standard Gumbel variate of each token at the position where it would stand; parameters as in :func:`bits`."""
    result: npt.NDArray[np.float64] = -ln(-ln(uniform(bits(seed, stream, position=position, tokens=tokens))))
    return result


def ln(x: npt.ArrayLike) -> npt.NDArray[np.float64]:
    """Natural logarithm of positive finite normal numbers, within 2 ulp."""
    value = np.atleast_1d(np.asarray(x, dtype=np.float64))
    word = value.view(np.uint64)
    exponent = ((word >> np.uint64(52)) & np.uint64(0x7FF)).astype(np.int64) - 1023
    mantissa: npt.NDArray[Any] = ((word & np.uint64(0x000FFFFFFFFFFFFF)) | np.uint64(0x3FF0000000000000)).view(
        np.float64
    )
    large = mantissa > _SQRT_2
    mantissa = np.where(large, mantissa * 0.5, mantissa)
    e = (exponent + large).astype(np.float64)
    s = (mantissa - 1.0) / (mantissa + 1.0)
    s2 = s * s
    total = np.zeros_like(s)
    for k in range(23, 2, -2):
        total = (total + 1.0 / k) * s2
    result: npt.NDArray[np.float64] = e * _LN2_HI + (2.0 * s + (2.0 * s * total + e * _LN2_LO))
    return result


def exp(x: npt.ArrayLike) -> npt.NDArray[np.float64]:
    """Exponential of numbers between -700 and 700, within 2 ulp."""
    value = np.atleast_1d(np.asarray(x, dtype=np.float64))
    shifted = value * _LOG2_E + _ROUND
    k = shifted - _ROUND
    r = (value - k * _LN2_HI) - k * _LN2_LO
    inverse = [1.0]
    factorial = 1.0
    for n in range(1, 15):
        factorial *= n
        inverse.append(1.0 / factorial)
    total = np.full_like(r, inverse[14])
    for n in range(13, -1, -1):
        total = total * r + inverse[n]
    power = ((shifted.view(np.uint64) + np.uint64(1023)) << np.uint64(52)).view(np.float64)
    result: npt.NDArray[np.float64] = total * power
    return result
