"""Draft trees and acceptance: pure functions of trees, choices and noise.

:mod:`draftgauge.reference.verify` has the same names in plain NumPy.

Examples
--------
>>> from draftgauge import verify
>>> tree = verify.DraftTree([9, 1, 4, 2], [-1, 0, 0, 1])      # the anchor 9, then 1 or 4, and 2 after 1
>>> verify.accept_greedy(tree, [1, 2, 0, 5])
Outcome(path=[1, 3], accepted=2, bonus=5)
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from draftgauge._door import core
from draftgauge.types import Outcome

if TYPE_CHECKING:
    import numpy.typing as npt

DraftTree = core.DraftTree

__all__ = ["DraftTree", "Outcome", "accept_greedy", "chain", "choose"]


def chain(tokens: Sequence[int]) -> DraftTree:
    """The chain of some tokens.

    Parameters
    ----------
    tokens : sequence of int
        ``tokens[0]`` is the anchor; each token is the child of the one before it.

    Returns
    -------
    DraftTree

    Raises
    ------
    TreeError
        Without a token.

    Examples
    --------
    >>> from draftgauge import verify
    >>> verify.chain([9, 1, 2]).parents
    [-1, 0, 1]
    """
    return core.verify_chain(tokens)


def accept_greedy(tree: DraftTree, choices: Sequence[int]) -> Outcome:
    """Follows the target's own tokens down the tree until no child carries one.

    Greedy and match verification are this one walk: the choices are argmaxes for the one and keyed draws for the other.

    Parameters
    ----------
    tree : DraftTree
        The drafts.
    choices : sequence of int, [nodes]
        The target's own token at each node.

    Returns
    -------
    Outcome
        The accepted nodes in order of depth, their number, and the choice at the last of them.

    Raises
    ------
    TreeError
        When there is not one choice a node.

    Examples
    --------
    >>> from draftgauge import verify
    >>> verify.accept_greedy(verify.chain([9, 1, 2, 3]), [1, 2, 7, 0])
    Outcome(path=[1, 2], accepted=2, bonus=7)
    """
    path, bonus = core.verify_accept_greedy(tree, choices)
    return Outcome(path, len(path), bonus)


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
    """The token of each row of logits, drawn as generation draws it.

    Parameters
    ----------
    logits : array_like of float32, [rows, vocab]
        Raw logits.
    seed, stream : int
        Key of the noise, 64 bits each.
    positions : sequence of int, [rows]
        Absolute position at which each token would stand: the position of its row plus one.
    temperature, top_k, top_p, min_p
        As for :func:`draftgauge.generate`; temperature 0 takes the largest logit, the lowest id on ties.

    Returns
    -------
    list of int, [rows]

    Raises
    ------
    ValueError
        For an option out of range, or when there is not one position a row.
    ModelError
        When a logit is NaN or +inf; the message names the row.

    Examples
    --------
    >>> from draftgauge import verify
    >>> verify.choose([[0.0, 2.0, 2.0], [5.0, 0.0, 0.0]], seed=0, stream=0, positions=[1, 2])
    [1, 0]
    """
    import numpy as np

    rows = np.ascontiguousarray(logits, dtype=np.float32)
    if rows.ndim != 2:
        raise ValueError(f"logits: expected an array [rows, vocab], found {rows.ndim} dimensions")
    options = {
        "temperature": temperature,
        "top_k": top_k,
        "top_p": top_p,
        "min_p": min_p,
        "repeat_penalty": 1.0,
        "presence_penalty": 0.0,
        "frequency_penalty": 0.0,
        "repeat_last_n": 0,
        "logit_bias": [],
        "banned": [],
        "seed": seed,
        "stream": stream,
    }
    return core.verify_choose(rows, list(positions), options, [])
