"""The engine's choices against NumPy: the same tokens and the same log-weights, bit for bit."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import draftgauge as dg
from draftgauge import verify
from draftgauge._door import core
from draftgauge.reference import sampling
from draftgauge.reference import verify as slow

F32 = {"width": 32, "allow_nan": False, "allow_infinity": False}
LOGITS = st.one_of(
    st.floats(-20, 20, **F32),
    st.integers(-3, 3).map(float),
    st.sampled_from([-np.inf, -80.0, 80.0, 0.0, -0.0]),
)


@st.composite
def cases(draw: st.DrawFn) -> tuple[np.ndarray, dict[str, Any], list[int], int]:
    vocab = draw(st.integers(6, 70))
    logits = np.array(draw(st.lists(LOGITS, min_size=vocab, max_size=vocab)), dtype=np.float32)
    logits[5] = 0.5  # One token that is neither -inf nor banned.
    options = {
        "temperature": draw(st.sampled_from([0.0, 0.3, 1.0, 2.0]) | st.floats(1e-3, 100)),
        "top_k": draw(st.just(0) | st.integers(1, 20)),
        "top_p": draw(st.just(1.0) | st.floats(0, 1)),
        "min_p": draw(st.just(0.0) | st.floats(0, 1)),
        "repeat_penalty": draw(st.just(1.0) | st.floats(0.5, 2, **F32)),
        "presence_penalty": draw(st.just(0.0) | st.floats(-1, 2, **F32)),
        "frequency_penalty": draw(st.just(0.0) | st.floats(-1, 2, **F32)),
        "repeat_last_n": draw(st.integers(-1, 8)),
        "logit_bias": draw(st.lists(st.tuples(st.integers(0, 4), st.floats(-5, 5, **F32)), max_size=3)),
        "banned": draw(st.lists(st.integers(0, 4), max_size=3)),
        "seed": draw(st.integers(0, 2**64 - 1)),
        "stream": draw(st.integers(0, 2**64 - 1)),
    }
    history = draw(st.lists(st.integers(0, vocab - 1), max_size=12))
    return logits, options, history, draw(st.integers(0, 2**32 - 1))


@settings(max_examples=400)
@given(cases())
def test_engine_and_numpy_choose_alike(case: tuple[np.ndarray, dict[str, Any], list[int], int]) -> None:
    logits, options, history, position = case
    fast = core.verify_choose(logits[None], [position], options, history)
    assert fast == [sampling.choose(logits, position=position, history=history, **options)]
    weights = core.verify_log_weights(list(logits), options, history)
    law = {key: value for key, value in options.items() if key not in ("seed", "stream")}
    again = sampling.log_weights(logits, history=history, **law)
    assert np.array_equal(weights.view(np.uint64), again.view(np.uint64))


@pytest.mark.parametrize("temperature", [0.0, 0.3, 1.0, 2.0])
@pytest.mark.parametrize(("top_k", "top_p", "min_p"), [(0, 1.0, 0.0), (40, 0.95, 0.05), (0, 0.9, 0.0), (0, 1.0, 0.1)])
def test_rows_of_a_whole_vocabulary(temperature: float, top_k: int, top_p: float, min_p: float) -> None:
    logits = np.random.default_rng(3).normal(0, 3, (12, 49_152)).astype(np.float32)
    options = {"temperature": temperature, "top_k": top_k, "top_p": top_p, "min_p": min_p}
    positions = list(range(100, 112))
    fast = verify.choose(logits, seed=9, stream=4, positions=positions, **options)
    assert fast == slow.choose(logits, seed=9, stream=4, positions=positions, **options)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("temperature", -1.0),
        ("temperature", float("nan")),
        ("top_p", 1.5),
        ("min_p", -0.1),
        ("temperature", float("inf")),
    ],
)
def test_e16_options_out_of_range_are_named(name: str, value: float) -> None:
    with pytest.raises(ValueError, match=name):
        verify.choose([[0.0, 1.0]], seed=0, stream=0, positions=[1], **{name: value})


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_logit_that_is_not_finite_names_its_row(bad: float) -> None:
    with pytest.raises(dg.ModelError, match="row 1, token 2"):
        verify.choose([[0.0, 1.0, 2.0], [0.0, 1.0, bad]], seed=0, stream=0, positions=[1, 2])


def test_shapes_are_checked() -> None:
    with pytest.raises(ValueError, match="dimensions"):
        verify.choose([0.0, 1.0], seed=0, stream=0, positions=[1])
    with pytest.raises(ValueError, match="positions"):
        verify.choose([[0.0, 1.0]], seed=0, stream=0, positions=[1, 2])
