"""From a trace to the figures of a measurement: all from the trace alone, so that anybody can recompute them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from draftgauge.lab.counts import Counts, Pair, fork, identity, loops, pairs
from draftgauge.trace import Trace

if TYPE_CHECKING:
    import numpy as np

__all__ = ["FEW_PROMPTS", "report"]

RESAMPLES = 2000
FEW_PROMPTS = 20
"""Below this number of prompts a result is labelled as one of few prompts."""


def report(trace: Trace) -> dict[str, Any]:
    """Figures of the finished pairs of a trace.

    Rates without a denominator are ``None``. `acceptance_rate` is accepted / drafted; `acceptance_length` the mean over
    steps of accepted + 1; `acceptance_length_deepspec` leaves the 1 out in a step that ends at a stop token among its
    drafts; `acceptance_at[i]` is accepted_at[i] / proposed_at[i]. Intervals are percentiles of a bootstrap over
    prompts.

    Raises
    ------
    ValueError
        When the trace has no header or no finished pair.
    """
    header = trace.header
    if header is None:
        raise ValueError("trace cannot be measured: expected a header line, found none")
    found = pairs(trace.sequences)
    if not found:
        raise ValueError("trace cannot be measured: expected a plain and a speculative run of a prompt, found none")
    looping = {pair.id for pair in found if loops(pair.plain.tokens)}
    rest = [pair for pair in found if pair.id not in looping]
    forks = [parting for pair in found if (parting := fork(pair)) is not None]
    plain = identity(token for pair in found for token in pair.plain.tokens)
    told = identity(token for pair in found for token in pair.speculative.tokens)
    categories = sorted({pair.category for pair in found if pair.category is not None})
    settings = header["settings"]
    figures = _figures(found)
    notices = list(header["notices"])
    drafter = header["drafter"] or {}
    if len(found) < FEW_PROMPTS:
        notices.append(f"{len(found)} prompts are few: differences between drafters need {FEW_PROMPTS} or more")
    if figures["drafted"] == 0:
        notices.append(
            f"the {drafter.get('kind')} drafter proposed nothing in {figures['steps']} steps: it is inactive"
        )
    return {
        **figures,
        "status": "active" if figures["drafted"] else "inactive",
        "block_size": drafter.get("block_size"),
        "draft_len": drafter.get("draft_len"),
        "identity": {"plain": plain, "speculative": told, "equal": not forks, "forks": forks},
        "categories": {name: _figures([pair for pair in found if pair.category == name]) for name in categories},
        "loop_rate": len(looping) / len(found),
        "without_loops": _figures(rest) if looping and rest else None,
        "settings": settings,
        "target": header["target"],
        "drafter": header["drafter"],
        "machine": header["machine"],
        "kernels": header["kernels"],
        "notices": list(dict.fromkeys(notices)),
    }


def _figures(found: list[Pair]) -> dict[str, Any]:
    """Counts, rates, intervals and speeds of some pairs."""
    told = [Counts.of(pair.speculative) for pair in found]
    plain = [Counts.of(pair.plain) for pair in found]
    whole, alone = Counts.total(told), Counts.total(plain)
    import numpy as np

    rows = np.array(
        [
            (one.accepted, one.drafted, one.steps, one.committed, one.seconds, base.committed, base.seconds)
            for one, base in zip(told, plain, strict=True)
        ],
        dtype=np.float64,
    )
    sums = _resampled_sums(rows)
    accepted, drafted, steps, committed, seconds, plain_committed, plain_seconds = sums.T
    speed = _ratio(whole.committed, whole.seconds)
    plain_speed = _ratio(alone.committed, alone.seconds)
    return {
        "prompts": len(found),
        "tokens": sum(len(pair.speculative.tokens) for pair in found),
        "steps": whole.steps,
        "drafted": whole.drafted,
        "accepted": whole.accepted,
        "bonus": whole.bonus,
        "acceptance_rate": _ratio(whole.accepted, whole.drafted),
        "acceptance_length": _ratio(whole.accepted + whole.steps, whole.steps),
        "acceptance_length_deepspec": _ratio(whole.committed, whole.steps),
        "drafted_per_step": _ratio(whole.drafted, whole.steps),
        "accepted_per_step": _ratio(whole.accepted, whole.steps),
        "proposed_at": whole.proposed_at,
        "accepted_at": whole.accepted_at,
        "acceptance_at": [_ratio(*at) for at in zip(whole.accepted_at, whole.proposed_at, strict=True)],
        "interval_95": {
            "acceptance_rate": _interval(accepted, drafted),
            "acceptance_length": _interval(accepted + steps, steps),
            "acceptance_at": _position_intervals(told, len(whole.proposed_at)),
        },
        "speed": {
            "plain_tok_s": plain_speed,
            "speculative_tok_s": speed,
            "ratio": None if speed is None or plain_speed is None else speed / plain_speed,
            "interval_95": _interval(committed * plain_seconds, seconds * plain_committed),
        },
        "seconds_per_step": {
            "plain": _ratio(alone.seconds, alone.steps),
            "draft": _ratio(whole.draft_s, whole.steps),
            "verify": _ratio(whole.verify_s, whole.steps),
            "commit": _ratio(whole.commit_s, whole.steps),
        },
    }


def _ratio(numerator: float, denominator: float) -> float | None:
    return numerator / denominator if denominator else None


def _resampled_sums(rows: np.ndarray) -> np.ndarray:
    """Sums over prompts drawn with replacement. [RESAMPLES, columns]"""
    import numpy as np

    # Always the same draws: a report is a function of its trace.
    generator = np.random.default_rng(0)
    drawn = generator.integers(0, len(rows), size=(RESAMPLES, len(rows)))
    sums: np.ndarray = rows[drawn].sum(axis=1)
    return sums


def _interval(numerators: np.ndarray, denominators: np.ndarray) -> list[float] | None:
    """Middle 95 % of a ratio of sums, over the resamples that have it; ``None`` where none does."""
    import numpy as np

    defined = denominators != 0
    if not defined.any():
        return None
    low, high = np.percentile(numerators[defined] / denominators[defined], [2.5, 97.5])
    return [float(low), float(high)]


def _position_intervals(told: list[Counts], places: int) -> list[list[float] | None]:
    import numpy as np

    def padded(values: list[int]) -> list[int]:
        return values + [0] * (places - len(values))

    rows = np.array([padded(one.accepted_at) + padded(one.proposed_at) for one in told], dtype=np.float64)
    sums = _resampled_sums(rows)
    return [_interval(sums[:, place], sums[:, places + place]) for place in range(places)]
