"""A picture of a measurement: acceptance by position, and speed."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

__all__ = ["plot"]


def plot(figures: dict[str, Any], path: str | os.PathLike[str]) -> None:
    """Draw acceptance at every draft position with its interval, and the two speeds beside it.

    Parameters
    ----------
    figures : dict
        What :func:`draftgauge.lab.measure` gave.
    path : path
        A ``.png`` or ``.svg`` file.

    Raises
    ------
    ValueError
        For another kind of file, or without matplotlib; the message has the command that installs it.
    """
    kind = Path(path).suffix.lower()
    if kind not in (".png", ".svg"):
        raise ValueError(f"picture cannot be written: {os.fspath(path)}: expected .png or .svg, found {kind or 'none'}")
    try:
        import matplotlib
    except ImportError as error:
        raise ValueError(
            "matplotlib is missing: --plot: expected `pip install 'draftgauge[plot]'`, found none"
        ) from error
    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, (left, right) = pyplot.subplots(1, 2, figsize=(10, 4), width_ratios=(3, 1), layout="constrained")
    places = [place for place, rate in enumerate(figures["acceptance_at"]) if rate is not None]
    rates = [figures["acceptance_at"][place] for place in places]
    bounds = [figures["interval_95"]["acceptance_at"][place] for place in places]
    errors = [
        [max(rate - pair[0], 0) if pair else 0 for rate, pair in zip(rates, bounds, strict=True)],
        [max(pair[1] - rate, 0) if pair else 0 for rate, pair in zip(rates, bounds, strict=True)],
    ]
    left.bar([place + 1 for place in places], rates, yerr=errors, capsize=3, color="#4c78a8")
    left.set_ylim(0, 1)
    left.set_xticks([place + 1 for place in places])
    left.set_xlabel("draft position")
    left.set_ylabel("steps that kept the draft / steps that proposed one")
    kind_of_drafter = (figures["drafter"] or {}).get("kind", "no")
    left.set_title(f"{kind_of_drafter} drafter, {figures['prompts']} prompts, {figures['steps']} steps")
    speed = figures["speed"]
    values = [speed["plain_tok_s"] or 0, speed["speculative_tok_s"] or 0]
    right.bar(["plain", "speculative"], values, color=["#9d9d9d", "#4c78a8"])
    right.set_ylabel("tokens a second")
    if speed["ratio"] is not None:
        right.set_title(f"{speed['ratio']:.2f} x")
    figure.savefig(os.fspath(path), dpi=150)
    pyplot.close(figure)
