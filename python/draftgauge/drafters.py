"""Drafters: what proposes the tokens that the target then checks."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from draftgauge._door import core

if TYPE_CHECKING:
    from draftgauge.targets import Target

__all__ = ["Drafter", "Setting"]


@dataclass(frozen=True)
class Setting:
    """One field of a drafter's configuration.

    Attributes
    ----------
    value : str
        The value, written out.
    provenance : str
        ``default``, ``override``, or the file's key.
    """

    value: str
    provenance: str


class Drafter:
    """A drafter, immutable and shared between sessions. Made by :meth:`ngram`.

    Examples
    --------
    >>> import draftgauge as dg
    >>> drafter = dg.Drafter.ngram(max_n=3, draft_len=5)
    >>> drafter.kind, drafter.draft_len
    ('ngram', 5)
    >>> drafter.config["max_n"]
    Setting(value='3', provenance='override')
    """

    def __init__(self, inner: core.Drafter) -> None:
        self._inner = inner

    @classmethod
    def ngram(cls, max_n: int = 4, draft_len: int = 8) -> Drafter:
        """Propose what followed the last tokens when they occurred before.

        Parameters
        ----------
        max_n : int
            Longest suffix that is looked up, in tokens.
        draft_len : int
            Most tokens of one proposal.

        Raises
        ------
        ValueError
            When a number is out of range.
        """
        for name, value in (("max_n", max_n), ("draft_len", draft_len)):
            if value < 1:
                raise ValueError(f"option out of range: {name}: expected 1 or more, found {value}")
        return cls(core.Drafter.ngram(max_n, draft_len))

    @classmethod
    def from_gguf(
        cls, path: str | os.PathLike[str], *, target: Target, overrides: dict[str, object] | None = None
    ) -> Drafter:
        """Refused: drafters with weights (DFlash, DSpark, MTP) come in a later release.

        Raises
        ------
        FileNotFoundError
            When there is no such file.
        ValueError
            Always else.
        """
        Path(path).stat()
        raise ValueError(f"a later release brings drafters with weights: {os.fspath(path)}")

    @property
    def kind(self) -> str:
        """Kind of the drafter, as ``--spec-type`` spells it."""
        return self._inner.kind

    @property
    def draft_len(self) -> int:
        """Most tokens that it proposes along a path."""
        return self._inner.draft_len

    @property
    def block_size(self) -> int | None:
        """Width of the block that it fills in one pass; ``None`` for drafters that have none."""
        return None

    @property
    def tap_layers(self) -> list[int]:
        """Target layers whose output it reads."""
        return []

    @property
    def config(self) -> dict[str, Setting]:
        """Every field of its configuration, each with its provenance."""
        return {name: Setting(value, provenance) for name, value, provenance in self._inner.config}

    def __repr__(self) -> str:
        return f"<Drafter {self.kind}, {self.draft_len} drafts>"
