"""Counts of the sequences of a trace: whole numbers and seconds, nothing divided yet."""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterable
from dataclasses import dataclass, field

from draftgauge.trace import Sequence

__all__ = ["Counts", "Pair", "fork", "identity", "loops", "pairs"]

LOOP_TOKENS = 32
"""Fewest tokens at the end of an output that have to repeat."""
LOOP_PERIODS = 4
"""Fewest periods that they have to fill."""


@dataclass
class Counts:
    """What some steps proposed and kept.

    Attributes
    ----------
    steps, drafted, accepted, bonus : int
        Verify passes, drafts, kept drafts, and tokens that the target added itself.
    committed : int
        Tokens of all steps: `accepted` and `bonus`. The token that a prompt pass chose is no step's.
    proposed_at, accepted_at : list of int
        Steps that proposed a draft at a position, and that kept it.
    seconds : float
        Drafting, verifying and committing.
    draft_s, verify_s, commit_s : float
        The same, each for itself.
    """

    steps: int = 0
    drafted: int = 0
    accepted: int = 0
    bonus: int = 0
    committed: int = 0
    proposed_at: list[int] = field(default_factory=list)
    accepted_at: list[int] = field(default_factory=list)
    seconds: float = 0.0
    draft_s: float = 0.0
    verify_s: float = 0.0
    commit_s: float = 0.0

    @classmethod
    def of(cls, sequence: Sequence) -> Counts:
        """Counts of one sequence of chains."""
        counts = cls()
        for step in sequence.steps:
            proposed, accepted = len(step["proposed"]), int(step["accepted"])
            bonus = step["bonus"] is not None
            counts.steps += 1
            counts.drafted += proposed
            counts.accepted += accepted
            counts.bonus += bonus
            counts.committed += accepted + bonus
            counts._reach(proposed)
            for place in range(proposed):
                counts.proposed_at[place] += 1
                counts.accepted_at[place] += place < accepted
            counts.seconds += step["draft_s"] + step["verify_s"] + step["commit_s"]
            counts.draft_s += step["draft_s"]
            counts.verify_s += step["verify_s"]
            counts.commit_s += step["commit_s"]
        return counts

    @classmethod
    def total(cls, parts: Iterable[Counts]) -> Counts:
        """The sum."""
        whole = cls()
        for part in parts:
            whole.steps += part.steps
            whole.drafted += part.drafted
            whole.accepted += part.accepted
            whole.bonus += part.bonus
            whole.committed += part.committed
            whole.seconds += part.seconds
            whole.draft_s += part.draft_s
            whole.verify_s += part.verify_s
            whole.commit_s += part.commit_s
            whole._reach(len(part.proposed_at))
            for place, (proposed, accepted) in enumerate(zip(part.proposed_at, part.accepted_at, strict=True)):
                whole.proposed_at[place] += proposed
                whole.accepted_at[place] += accepted
        return whole

    def _reach(self, places: int) -> None:
        missing = places - len(self.proposed_at)
        self.proposed_at.extend([0] * missing)
        self.accepted_at.extend([0] * missing)


@dataclass(frozen=True)
class Pair:
    """The two runs of one prompt.

    Attributes
    ----------
    id, category : str, str or None
        The prompt's.
    plain, speculative : Sequence
        The runs.
    """

    id: str
    category: str | None
    plain: Sequence
    speculative: Sequence


def pairs(sequences: Iterable[Sequence]) -> list[Pair]:
    """Pair the finished runs of each prompt, in the order in which prompts first came. Of two runs the later counts."""
    runs: dict[str, dict[str, Sequence]] = {}
    for sequence in sequences:
        finished = sequence.end is not None and sequence.end["end"] != "interrupted"
        if finished:
            runs.setdefault(str(sequence.begin["id"]), {})[sequence.begin["begin"]] = sequence
    return [
        Pair(name, run["plain"].begin["category"], run["plain"], run["speculative"])
        for name, run in runs.items()
        if len(run) == 2
    ]


def identity(tokens: Iterable[int]) -> str:
    """SHA-256 of ids as little-endian u32."""
    ids = list(tokens)
    return hashlib.sha256(struct.pack(f"<{len(ids)}I", *ids)).hexdigest()


def fork(pair: Pair) -> dict[str, object] | None:
    """Where two runs part: prompt, index among the generated tokens, and the plain run's margin there."""
    plain, told = pair.plain.tokens, pair.speculative.tokens
    if plain == told:
        return None
    shared = min(len(plain), len(told))
    position = next((place for place in range(shared) if plain[place] != told[place]), shared)
    # A plain step commits one token; the first token is the prompt pass's.
    step = pair.plain.steps[position - 1] if 0 < position <= len(pair.plain.steps) else None
    return {"prompt": pair.id, "position": position, "margin": None if step is None else step["margin"]}


def loops(tokens: list[int]) -> bool:
    """Whether an output ends in a loop: its last tokens, 32 or more, are four or more repeats of one period."""
    for period in range(1, len(tokens) // LOOP_PERIODS + 1):
        length = max(LOOP_TOKENS, LOOP_PERIODS * period)
        if length > len(tokens):
            continue
        tail = tokens[-length:]
        if tail[period:] == tail[:-period]:
            return True
    return False
