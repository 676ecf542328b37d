"""The lab: what the raw facts of a trace come to. Only here are counts divided."""

from __future__ import annotations

from draftgauge.lab.figures import report
from draftgauge.lab.paired import measure

__all__ = ["measure", "report"]
