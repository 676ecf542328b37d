"""Plain values that the package hands out: results, chunks, counts. They import nothing of ours."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

__all__ = ["Chunk", "DraftStats", "FinishReason", "Generation", "Message", "Outcome", "Timings"]

FinishReason = Literal["stop", "length", "interrupted"]

Message = Mapping[str, Any]
"""One turn of a conversation: ``{"role": ..., "content": ...}`` and whatever else the template reads."""


@dataclass(frozen=True)
class Timings:
    """Seconds and speeds of one generation.

    Attributes
    ----------
    load_s : float
        Seconds it took to load the target.
    prefill_s : float
        Seconds of the prompt pass.
    decode_s : float
        Seconds of everything after it.
    prefill_tok_s : float or None
        Prompt tokens computed a second; ``None`` where nothing had to be computed.
    decode_tok_s : float or None
        Tokens a second after the first one; ``None`` where there was none.
    """

    load_s: float
    prefill_s: float
    decode_s: float
    prefill_tok_s: float | None
    decode_tok_s: float | None


@dataclass(frozen=True)
class DraftStats:
    """What a drafter proposed and what the target kept, as raw counts.

    Attributes
    ----------
    status : {"none", "active", "inactive"}
        ``none`` without a drafter; ``inactive`` when one was given and proposed nothing.
    type : str or None
        Kind of the drafter.
    steps : int
        Verify passes.
    drafted : int
        Tokens proposed: the sum of `proposed_at`.
    accepted : int
        Drafts kept: the sum of `accepted_at`. A step's bonus token never counts.
    bonus : int
        Tokens that the target added itself, one a step.
    proposed_at : list of int
        ``proposed_at[i]`` is the number of steps that proposed a draft at position i.
    accepted_at : list of int
        ``accepted_at[i]`` is the number of steps whose draft at position i was kept, and so all before it.
    draft_s, verify_s : float
        Seconds spent proposing and verifying.
    """

    status: Literal["none", "active", "inactive"]
    type: str | None
    steps: int
    drafted: int
    accepted: int
    bonus: int
    proposed_at: list[int]
    accepted_at: list[int]
    draft_s: float
    verify_s: float

    @property
    def acceptance_rate(self) -> float | None:
        """Accepted drafts over drafted tokens, without the bonus; ``None`` where nothing was drafted."""
        return self.accepted / self.drafted if self.drafted else None

    @property
    def acceptance_length(self) -> float | None:
        """Committed tokens a step, the bonus included; ``None`` without a step."""
        return (self.accepted + self.bonus) / self.steps if self.steps else None


@dataclass(frozen=True)
class Generation:
    """The outcome of one generation: the command line's JSON object as a value.

    Attributes
    ----------
    text : str
        What was generated, without the stop token and cut before a stop string.
    tokens : list of int
        Ids of what was generated, the stop token included.
    prompt_tokens : int
        Length of the prompt in tokens.
    finish_reason : {"stop", "length", "interrupted"}
        Why it ended.
    identity : str
        SHA-256 of the ids as little-endian u32, in hexadecimal.
    timings : Timings
        Seconds and speeds.
    draft : DraftStats
        What was drafted and kept.
    settings : dict
        Every effective setting.
    device, kernels : str
        What it ran on.
    notices : list of str
        What the run had to say: fallbacks, cut drafts, a full context.
    """

    text: str
    tokens: list[int]
    prompt_tokens: int
    finish_reason: FinishReason
    identity: str
    timings: Timings
    draft: DraftStats
    settings: dict[str, Any]
    device: str
    kernels: str
    notices: list[str] = field(default_factory=list)

    def to_dict(self) -> dict[str, Any]:
        """The result as plain dictionaries and lists."""
        return asdict(self)

    def to_json(self) -> str:
        """The result as one JSON object, without NaN."""
        return json.dumps(self.to_dict(), ensure_ascii=False, allow_nan=False)


@dataclass(frozen=True)
class Chunk:
    """What one step of a stream committed.

    Attributes
    ----------
    text : str
        Text that became complete with this step; never half a character.
    tokens : list of int
        Ids committed by this step.
    num_accepted : int
        How many of them were accepted drafts: the first ones.
    accepted_text : str
        The part of `text` that comes from accepted drafts: a prefix of it.
    """

    text: str
    tokens: list[int]
    num_accepted: int
    accepted_text: str = ""


@dataclass(frozen=True)
class Outcome:
    """What a verification decided.

    Attributes
    ----------
    path : list of int
        Accepted nodes in order of depth, the anchor excluded.
    accepted : int
        Number of accepted drafts: the length of `path`.
    bonus : int
        The target's own token after the last accepted draft.
    """

    path: list[int]
    accepted: int
    bonus: int
