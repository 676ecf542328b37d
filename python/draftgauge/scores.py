"""Teacher-forced scores of a drafter on a given text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from draftgauge._door import core
from draftgauge.drafters import Drafter
from draftgauge.targets import Target

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

__all__ = ["Scores", "score"]


@dataclass(frozen=True)
class Scores:
    """What a drafter proposed after every position of a text, beside the target's own choices.

    Attributes
    ----------
    anchors : np.ndarray of int64, [anchors]
        Position of each anchor. The drafts at anchor p are for positions p + 1, p + 2, ...
    drafts : np.ndarray of int64, [anchors, draft_len]
        Drafted tokens; -1 where there was no draft.
    choices : np.ndarray of int64, [tokens]
        The target's choice after each position of the text: its largest logit.
    margins : np.ndarray of float32, [tokens]
        By how much the largest logit leads.
    confidence : np.ndarray of float32, [anchors, draft_len], or None
        The drafter's confidence in each draft, where it has a head for that; NaN where there was no draft.
    """

    anchors: npt.NDArray[np.int64]
    drafts: npt.NDArray[np.int64]
    choices: npt.NDArray[np.int64]
    margins: npt.NDArray[np.float32]
    confidence: npt.NDArray[np.float32] | None

    @property
    def scored(self) -> npt.NDArray[np.bool_]:
        """Which drafts exist and have a choice of the target to be compared with. [anchors, draft_len]"""
        within: npt.NDArray[np.bool_] = self._places() < len(self.choices)
        return within & (self.drafts >= 0)

    @property
    def matches(self) -> npt.NDArray[np.bool_]:
        """Which scored drafts are the target's choice, given the text before them. [anchors, draft_len]"""
        import numpy as np

        places = np.minimum(self._places(), len(self.choices) - 1)
        same: npt.NDArray[np.bool_] = self.drafts == self.choices[places]
        return self.scored & same

    @property
    def accepted(self) -> npt.NDArray[np.int64]:
        """Leading matches at each anchor: what a step there would accept. [anchors]

        On a text that the target generated greedily this is what free running accepts from the same anchor, as long as
        the text goes on for the whole draft.
        """
        import numpy as np

        accepted: npt.NDArray[np.int64] = np.cumprod(self.matches, axis=1, dtype=np.int64).sum(axis=1)
        return accepted

    def _places(self) -> npt.NDArray[np.int64]:
        import numpy as np

        places: npt.NDArray[np.int64] = self.anchors[:, None] + np.arange(self.drafts.shape[1])
        return places


def score(
    target: Target,
    drafter: Drafter,
    tokens: Sequence[int],
    start: int = 0,
    *,
    draft_n_max: int | None = None,
    draft_block: int | None = None,
) -> Scores:
    """Score a drafter on a text: one pass of the target, then the drafts at every anchor, in batches.

    Parameters
    ----------
    target : Target
        The model whose features and choices count.
    drafter : Drafter
        The drafter, loaded for this target.
    tokens : sequence of int
        The text. [tokens]
    start : int
        Position of the first anchor.
    draft_n_max, draft_block : int, optional
        Most drafts at an anchor, and width of the block; by default the drafter's own.

    Returns
    -------
    Scores
        Drafts, choices and margins as arrays.

    Raises
    ------
    ValueError
        For tokens that the target does not have, a text longer than its context, or no anchor after `start`.
    PairingError
        When the drafter lacks features.

    Examples
    --------
    >>> import draftgauge as dg
    >>> from draftgauge.targets import demo_path
    >>> target = dg.Target.from_gguf(demo_path())
    >>> scores = dg.score(target, dg.Drafter.ngram(draft_len=4), [504, 1671, 504, 1671, 504], start=4)
    >>> scores.drafts[0, :2]
    array([1671,  504])
    """
    import numpy as np

    anchors, drafts, confidence, choices, margins = core.score_tokens(
        target._inner, drafter._inner, [int(token) for token in tokens], start, draft_n_max, draft_block
    )
    return Scores(anchors.astype(np.int64), drafts, choices.astype(np.int64), margins, confidence)
