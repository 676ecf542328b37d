"""The only import of the compiled half: every other module takes its names from here."""

from __future__ import annotations

from draftgauge import _core as core

__all__ = ["core"]
