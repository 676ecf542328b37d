"""The engine's noise against NumPy: the same bits."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from draftgauge._door import core
from draftgauge.reference import noise

U32 = st.integers(0, 2**32 - 1)
U64 = st.integers(0, 2**64 - 1)

# The rows "philox4x32 10" of Random123's kat_vectors: counter, key, output.
VECTORS = [
    ([0] * 4, [0] * 2, [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]),
    ([2**32 - 1] * 4, [2**32 - 1] * 2, [0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD]),
    (
        [0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344],
        [0xA4093822, 0x299F31D0],
        [0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1],
    ),
]


def test_philox_gives_the_published_vectors() -> None:
    for counter, key, output in VECTORS:
        assert [int(word) for word in noise.philox4x32_10(counter, key)] == output


@given(U64, U64, U32, st.integers(1, 300))
def test_engine_and_numpy_give_the_same_bits(seed: int, stream: int, position: int, count: int) -> None:
    words, values = core.noise_rows(seed, stream, position, count)
    tokens = np.arange(count)
    assert np.array_equal(words, noise.bits(seed, stream, position=position, tokens=tokens))
    again = noise.gumbel(seed, stream, position=position, tokens=tokens)
    assert np.array_equal(values.view(np.uint64), again.view(np.uint64))


def test_a_whole_vocabulary_gives_the_same_bits() -> None:
    _, values = core.noise_rows(1, 2, 3, 262_144)
    again = noise.gumbel(1, 2, position=3, tokens=np.arange(262_144))
    assert np.array_equal(values.view(np.uint64), again.view(np.uint64))


@given(st.floats(1e-300, 1e300))
def test_logarithm_agrees_with_numpys(x: float) -> None:
    assert abs(noise.ln(x)[0] - np.log(x)) <= 4 * np.finfo(float).eps * max(abs(np.log(x)), 1e-3)


@given(st.floats(-700, 700))
def test_exponential_agrees_with_numpys(x: float) -> None:
    assert abs(noise.exp(x)[0] / np.exp(x) - 1) <= 1e-15


@settings(max_examples=5)
@given(U64, st.integers(0, 1000))
def test_draws_follow_the_softmax(seed: int, stream: int) -> None:
    law = np.array([0.5, 0.25, 0.15, 0.1])
    counts = np.zeros(4)
    positions = 20_000
    # One Philox evaluation serves four tokens, so the counter is vectorized over positions here.
    counter = [0, np.arange(positions), stream, 0]
    words = np.stack(noise.philox4x32_10(counter, [seed & 0xFFFFFFFF, seed >> 32]))
    scores = np.log(law)[:, None] - np.log(-np.log(noise.uniform(words)))
    np.add.at(counts, scores.argmax(axis=0), 1)
    chi_square = ((counts - law * positions) ** 2 / (law * positions)).sum()
    assert chi_square < 46, counts  # Under 1e-9 with 3 degrees of freedom, for any seed that hypothesis may try.
