"""Drafters: what proposes the tokens that the target then checks."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from draftgauge._door import core

if TYPE_CHECKING:
    from draftgauge.targets import Target

__all__ = ["Check", "Drafter", "Setting", "pairing"]


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


@dataclass(frozen=True)
class Check:
    """One line of a pairing: how a drafter fits its target in one respect.

    Attributes
    ----------
    name : str
        What was checked.
    verdict : str
        ``ok``, ``notice`` (it runs, and may be why acceptance is low) or ``error``.
    detail : str
        The two sides.
    """

    name: str
    verdict: Literal["ok", "notice", "error"]
    detail: str


class Drafter:
    """A drafter, immutable and shared between sessions. Made by :meth:`ngram` or :meth:`from_gguf`.

    Examples
    --------
    >>> import draftgauge as dg
    >>> drafter = dg.Drafter.ngram(max_n=3, draft_len=5)
    >>> drafter.kind, drafter.draft_len
    ('ngram', 5)
    >>> drafter.config["max_n"]
    Setting(value='3', provenance='override')
    """

    def __init__(self, inner: core.Drafter, path: Path | None = None) -> None:
        self._inner = inner
        self._path = path

    @classmethod
    def ngram(cls, max_n: int = 4, draft_len: int = 8) -> Drafter:
        """Propose what followed the last tokens when they occurred before.

        The longest suffix of ``max_n`` down to 2 tokens that occurred earlier decides (down to ``max_n`` where that is
        1: a single token recurs everywhere and says little). Of the last 32 places where it occurred, the continuations
        are merged: each draft is what most of those still in agreement continue with, the latest one on a tie. Without
        an earlier occurrence nothing is proposed in that step.

        Parameters
        ----------
        max_n : int
            Longest suffix that is looked up, in tokens: 1 to 64, 4 by default.
        draft_len : int
            Most tokens of one proposal: 1 to 512, 8 by default.

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
        cls,
        path: str | os.PathLike[str],
        *,
        target: Target,
        overrides: Mapping[str, object] | None = None,
        kind: Literal["dflash", "dspark"] | None = None,
        metadata: Sequence[str] = (),
    ) -> Drafter:
        """Load a DFlash or DSpark drafter for a target, on the target's device.

        The format is that of llama.cpp's ``dflash`` architecture. What the file lacks, embedding table and output head,
        is borrowed from the target.

        Parameters
        ----------
        path : path
            The GGUF file.
        target : Target
            The model whose tokens are to be drafted.
        overrides : mapping of str to object, optional
            Settings that replace what the file says, by the names in :attr:`config`, and ``tap_offset``, which moves
            every tap layer.
        kind : str, optional
            What the file is to be run as. A file without a Markov head does not tell whether its anchor's row
            predicts: ``dspark`` says that it does.
        metadata : sequence of str
            Metadata that replaces the file's, as ``KEY=TYPE:VALUE``.

        Raises
        ------
        FileNotFoundError
            When there is no such file.
        GgufError, ModelError
            For a file that cannot be read or holds no drafter that runs here.
        PairingError
            When the drafter does not fit the target; the message says what differs.
        ValueError
            For a setting that does not exist or cannot have its value.
        """
        return cls(
            core.Drafter.load(
                os.fspath(path), target._inner, kind=kind, metadata=list(metadata), overrides=_settings(overrides)
            ),
            Path(path),
        )

    def with_overrides(self, overrides: Mapping[str, object]) -> Drafter:
        """Return the same drafter with other settings. Weights are shared with this one, not loaded again.

        Parameters
        ----------
        overrides : mapping of str to object
            As in :meth:`from_gguf`. ``features`` takes ``real``, ``zero`` or ``shuffle``: a drafter that drafts as
            well without the target's features is not using them.

        Raises
        ------
        ValueError
            For a setting that does not exist or cannot have its value, or a drafter without settings.
        PairingError
            For tap layers that the target does not have.
        """
        return type(self)(self._inner.with_overrides(_settings(overrides)), self._path)

    @property
    def kind(self) -> str:
        """Kind of the drafter, as ``--spec-type`` spells it."""
        return self._inner.kind

    @property
    def path(self) -> Path | None:
        """The file that it was loaded from; ``None`` for drafters without one."""
        return self._path

    @property
    def draft_len(self) -> int:
        """Most tokens that it proposes along a path."""
        return self._inner.draft_len

    @property
    def block_size(self) -> int | None:
        """Width of the block that it fills in one pass; ``None`` for drafters that have none."""
        return self._inner.block_size

    @property
    def tap_layers(self) -> list[int]:
        """Target layers whose output it reads; -1 is the embedding output."""
        return self._inner.tap_layers

    @property
    def notices(self) -> list[str]:
        """What was noticed while it was loaded."""
        return self._inner.notices

    @property
    def pairing(self) -> list[Check]:
        """How it fits its target, one check a line; none for drafters without weights."""
        return [Check(**check) for check in json.loads(self._inner.checks)]

    @property
    def config(self) -> dict[str, Setting]:
        """Every field of its configuration, each with its provenance."""
        return {name: Setting(value, provenance) for name, value, provenance in self._inner.config}

    def __repr__(self) -> str:
        return f"<Drafter {self.kind}, {self.draft_len} drafts>"


def pairing(target: str | os.PathLike[str], drafter: str | os.PathLike[str]) -> list[Check]:
    """Compare a drafter's file with a target's. No weight is loaded.

    Raises
    ------
    FileNotFoundError
        When a file is not there.
    GgufError, ModelError
        For a file that cannot be read, a target that does not run here, or a file that holds no drafter.
    """
    opened = core.gguf_open(os.fspath(target))
    return [Check(**check) for check in json.loads(core.pairing_checks(opened, os.fspath(drafter)))]


def _settings(overrides: Mapping[str, object] | None) -> str:
    def plain(value: Any) -> Any:
        # NumPy's numbers and arrays.
        if hasattr(value, "tolist"):
            return value.tolist()
        raise TypeError(f"overrides: expected a number, text, list or None, found {type(value).__name__}")

    return json.dumps(dict(overrides or {}), default=plain)
