"""Acceptance as pure functions, in plain Python; the names are those of :mod:`draftgauge.verify`.

Examples
--------
>>> from draftgauge.reference import verify
>>> verify.accept_greedy(verify.chain([9, 1, 2, 3]), [1, 2, 7, 0])
Outcome(path=[1, 2], accepted=2, bonus=7)
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from draftgauge.reference import sampling
from draftgauge.reference.tree import DraftTree, chain
from draftgauge.types import Outcome

if TYPE_CHECKING:
    import numpy.typing as npt

__all__ = ["DraftTree", "Outcome", "accept_greedy", "chain", "choose"]


def accept_greedy(tree: DraftTree, choices: Sequence[int]) -> Outcome:
    """Follows the target's own tokens down the tree until no child carries one.

    Parameters
    ----------
    tree : DraftTree
        The drafts.
    choices : sequence of int, [nodes]
        The target's own token at each node: its argmax, or its keyed draw.

    Returns
    -------
    Outcome
    """
    if len(choices) != len(tree):
        raise ValueError(f"verification needs one choice a node: expected {len(tree)}, found {len(choices)}")
    path: list[int] = []
    node = 0
    while (child := tree.child(node, int(choices[node]))) is not None:
        path.append(child)
        node = child
    return Outcome(path, len(path), int(choices[node]))


def choose(
    logits: npt.ArrayLike,
    *,
    seed: int,
    stream: int,
    positions: Sequence[int],
    temperature: float = 0.0,
    top_k: int = 0,
    top_p: float = 1.0,
    min_p: float = 0.0,
) -> list[int]:
    """The token of each row of logits, as :func:`draftgauge.verify.choose` gives it."""
    rows = np.asarray(logits, dtype=np.float32)
    if rows.ndim != 2 or len(positions) != len(rows):
        raise ValueError("logits must be [rows, vocab] with one position a row")
    return [
        sampling.choose(
            row,
            position=position,
            seed=seed,
            stream=stream,
            temperature=temperature,
            top_k=top_k,
            top_p=top_p,
            min_p=min_p,
        )
        for row, position in zip(rows, positions, strict=True)
    ]
