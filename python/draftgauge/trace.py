"""Traces: the raw facts of a run, one line a step. A file cut at any byte loads up to its last whole line."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, field
from typing import Any

from draftgauge._door import core

__all__ = ["Sequence", "Trace", "TracePlace", "load"]


@dataclass(frozen=True)
class Sequence:
    """One sequence of a trace.

    Attributes
    ----------
    begin : dict
        Its first line: prompt, first token, kind.
    steps : list of dict
        One line a step.
    end : dict or None
        Its last line; ``None`` where the trace was cut.
    tokens : list of int
        The generated ids, put together from the first token and the steps.
    """

    begin: dict[str, Any]
    steps: list[dict[str, Any]]
    end: dict[str, Any] | None
    tokens: list[int]


@dataclass(frozen=True)
class TracePlace:
    """Where a run adds its sequence to a trace that is there already.

    Attributes
    ----------
    path : path
        The trace.
    seq : int
        Number of the sequence.
    id, category : str or None
        What the sequence is called.
    """

    path: str | os.PathLike[str]
    seq: int
    id: str | None = None
    category: str | None = None


@dataclass(frozen=True)
class Trace:
    """A loaded trace.

    Attributes
    ----------
    header : dict or None
        What the run was made with; ``None`` when the file was cut before the end of its first line.
    sequences : list of Sequence
        The sequences in order.
    """

    header: dict[str, Any] | None
    sequences: list[Sequence] = field(default_factory=list)


def load(path: str | os.PathLike[str]) -> Trace:
    """Load a trace.

    Raises
    ------
    FileNotFoundError
        When there is no such file.
    ValueError
        When a whole line is not one of a trace; the message names it.
    """
    loaded = json.loads(core.trace_load(os.fspath(path)))
    return Trace(loaded["header"], [Sequence(**sequence) for sequence in loaded["sequences"]])
