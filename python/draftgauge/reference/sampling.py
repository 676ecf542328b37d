"""From a row of logits to a token: bias, penalties, top-k, top-p, min-p, temperature, draw.

Every step is defined to the last bit. Bias and penalties are computed in float32, weights in float64, sums one after
the other; ties go to the larger logit first and then to the lower id.

Examples
--------
>>> import numpy as np
>>> from draftgauge.reference import sampling
>>> sampling.choose(np.array([0.0, 2.0, 1.0], np.float32), position=4)
1
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from draftgauge.reference import noise

if TYPE_CHECKING:
    import numpy.typing as npt

__all__ = ["choose", "log_weights"]


def _edited(
    logits: npt.NDArray[np.float32],
    history: Sequence[int],
    logit_bias: Mapping[int, float] | Sequence[tuple[int, float]],
    banned: Sequence[int],
    repeat_penalty: float,
    presence_penalty: float,
    frequency_penalty: float,
    repeat_last_n: int,
) -> npt.NDArray[np.float32]:
    row = np.array(logits, dtype=np.float32)
    row[list(banned)] = -np.inf
    for token, bias in logit_bias.items() if isinstance(logit_bias, Mapping) else logit_bias:
        row[token] += np.float32(bias)
    window = list(history) if repeat_last_n < 0 else list(history)[max(0, len(history) - repeat_last_n) :]
    repeat, presence, frequency = (np.float32(x) for x in (repeat_penalty, presence_penalty, frequency_penalty))
    if repeat == 1 and presence == 0 and frequency == 0:
        return row
    for token in sorted(set(window)):
        if token < row.size:
            value = row[token]
            # Dividing a negative logit would raise it, so the repeat penalty multiplies there.
            value = value * repeat if value <= 0 else value / repeat
            row[token] = value - (np.float32(window.count(token)) * frequency + presence)
    return row


def log_weights(
    logits: npt.ArrayLike,
    *,
    history: Sequence[int] = (),
    temperature: float = 0.0,
    top_k: int = 0,
    top_p: float = 1.0,
    min_p: float = 0.0,
    repeat_penalty: float = 1.0,
    presence_penalty: float = 0.0,
    frequency_penalty: float = 0.0,
    repeat_last_n: int = 64,
    logit_bias: Mapping[int, float] | Sequence[tuple[int, float]] = (),
    banned: Sequence[int] = (),
) -> npt.NDArray[np.float64]:
    """The unnormalised log-weights of a row after everything but the noise.

    Parameters
    ----------
    logits : array_like of float32, [vocab]
        Raw logits; -inf marks tokens that cannot be chosen.
    history : sequence of int
        Prompt and output before the token, along the path of drafts that leads to the row.
    temperature, top_k, top_p, min_p, repeat_penalty, presence_penalty, frequency_penalty, repeat_last_n, logit_bias
        As for :func:`draftgauge.generate`.
    banned : sequence of int
        Tokens whose logit is -inf before everything else.

    Returns
    -------
    float64 array, [vocab]
        ``(l - max) / temperature`` for the tokens that survive, -inf for the others; at temperature 0 the argmax alone
        survives.
    """
    row = _edited(
        np.asarray(logits, dtype=np.float32),
        history,
        logit_bias,
        banned,
        repeat_penalty,
        presence_penalty,
        frequency_penalty,
        repeat_last_n,
    )
    out = np.full(row.size, -np.inf)
    best = int(np.argmax(row))
    if row[best] == -np.inf:
        return out
    if temperature == 0:
        out[best] = 0.0
        return out
    with np.errstate(invalid="ignore"):
        distance = row.astype(np.float64) - np.float64(row[best])
    order = np.lexsort((np.arange(row.size), -row))
    order = order[row[order] != -np.inf]
    if top_k > 0:
        order = order[:top_k]
    if top_p < 1:
        weights = np.zeros(row.size)
        kept = np.sort(order)
        values = noise.exp(np.maximum(distance[kept], -700.0))
        weights[kept] = np.where(distance[kept] < -700.0, 0.0, values)
        # cumsum adds one after the other, unlike sum.
        total = np.cumsum(weights)[-1]
        reached = np.cumsum(weights[order]) >= top_p * total
        order = order[: int(np.argmax(reached)) + 1] if reached.any() else order
    if min_p > 0:
        order = order[distance[order] >= noise.ln(min_p)[0]]
    out[order] = distance[order] / temperature
    return out


def choose(
    logits: npt.ArrayLike,
    *,
    position: int,
    seed: int = 0,
    stream: int = 0,
    history: Sequence[int] = (),
    temperature: float = 0.0,
    top_k: int = 0,
    top_p: float = 1.0,
    min_p: float = 0.0,
    repeat_penalty: float = 1.0,
    presence_penalty: float = 0.0,
    frequency_penalty: float = 0.0,
    repeat_last_n: int = 64,
    logit_bias: Mapping[int, float] | Sequence[tuple[int, float]] = (),
    banned: Sequence[int] = (),
) -> int:
    """The token that will stand at `position`; the other parameters are those of :func:`log_weights`.

    Raises
    ------
    ValueError
        When a logit is NaN or +inf, or when no token is left.
    """
    row = np.asarray(logits, dtype=np.float32)
    if np.isnan(row).any() or (row == np.inf).any():
        raise ValueError("a logit is not finite")
    weights = log_weights(
        row,
        history=history,
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        min_p=min_p,
        repeat_penalty=repeat_penalty,
        presence_penalty=presence_penalty,
        frequency_penalty=frequency_penalty,
        repeat_last_n=repeat_last_n,
        logit_bias=logit_bias,
        banned=banned,
    )
    survivors = np.flatnonzero(weights != -np.inf)
    if survivors.size == 0:
        raise ValueError("no token is left to choose from")
    if temperature == 0:
        return int(survivors[0])
    scores = weights[survivors] + noise.gumbel(seed, stream, position=position, tokens=survivors)
    return int(survivors[int(np.argmax(scores))])
