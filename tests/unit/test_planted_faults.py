"""A drafter that uses its features, and what each planted fault costs it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import draftgauge as dg
import planted_drafter

TEXT = Path(__file__).parents[1] / "data" / "harbour.txt"
LENGTH, START = 1200, 8


@pytest.fixture(scope="module")
def target(model: Path) -> dg.Target:
    return dg.Target.from_gguf(model, ctx_size=LENGTH)


@pytest.fixture(scope="module")
def tokens(target: dg.Target) -> np.ndarray:
    return np.array(target.tokenizer.encode(TEXT.read_text(encoding="utf-8")))[:LENGTH]


@pytest.fixture(scope="module")
def drafter(target: dg.Target, tokens: np.ndarray, tmp_path_factory: pytest.TempPathFactory) -> dg.Drafter:
    choices = dg.score(target, dg.Drafter.ngram(), tokens.tolist()).choices
    path = tmp_path_factory.mktemp("planted") / "drafter.gguf"
    planted_drafter.write(path, target, tokens, choices, tap=3, fit=LENGTH)
    return dg.Drafter.from_gguf(path, target=target)


@pytest.fixture(scope="module")
def accepted(target: dg.Target, tokens: np.ndarray, drafter: dg.Drafter) -> dict[str, int]:
    """Drafts kept on the text that the regression was fitted to, under each fault."""
    faults: dict[str, dict[str, object]] = {
        "none": {},
        "a layer late": {"tap_offset": 1},
        "a layer early": {"tap_offset": -1},
        "no features": {"features": "zero"},
        "shuffled features": {"features": "shuffle"},
        "slot late": {"sample_from_anchor": False},
    }
    counts = {}
    for name, overrides in faults.items():
        scores = dg.score(target, drafter.with_overrides(overrides), tokens.tolist(), start=START)
        counts[name] = int(scores.accepted[:-2].sum())
    return counts


def test_the_drafter_is_right_often_enough_to_tell(accepted: dict[str, int]) -> None:
    assert accepted["none"] > 0.3 * (LENGTH - START), accepted


def test_a03_taps_of_the_neighbouring_layer_cost_drafts(accepted: dict[str, int]) -> None:
    assert accepted["a layer late"] < 0.98 * accepted["none"], accepted
    assert accepted["a layer early"] < 0.98 * accepted["none"], accepted


def test_a15_the_wrong_slot_costs_most_of_them(accepted: dict[str, int]) -> None:
    assert accepted["slot late"] < 0.4 * accepted["none"], accepted


def test_a01_missing_features_cost_more_than_a_neighbouring_layer(accepted: dict[str, int]) -> None:
    assert accepted["no features"] < accepted["a layer late"], accepted
    assert accepted["shuffled features"] < 0.9 * accepted["none"], accepted
