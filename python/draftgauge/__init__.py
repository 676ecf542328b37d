"""Speculative decoding of quantized GGUF models on ordinary CPUs, with output that is provably the model's own.

The usual way in::

    import draftgauge as dg

    target = dg.Target.from_gguf("model.gguf")
    result = dg.generate(target, "Hello", drafter=dg.Drafter.ngram())
    print(result.text, result.draft.accepted, "of", result.draft.drafted)
"""

from __future__ import annotations

from draftgauge import gguf, quant, trace, verify
from draftgauge.decode import Run, Session, generate, stream
from draftgauge.drafters import Drafter
from draftgauge.errors import (
    DeviceError,
    DraftgaugeError,
    GgufError,
    ModelError,
    PairingError,
    QuantError,
    TreeError,
)
from draftgauge.info import build_info
from draftgauge.lab import measure
from draftgauge.scores import Scores, score
from draftgauge.targets import Target
from draftgauge.text import ChatTemplate, Tokenizer
from draftgauge.types import Chunk, DraftStats, Generation, Timings

__all__ = [
    "ChatTemplate",
    "Chunk",
    "DeviceError",
    "DraftStats",
    "Drafter",
    "DraftgaugeError",
    "Generation",
    "GgufError",
    "ModelError",
    "PairingError",
    "QuantError",
    "Run",
    "Scores",
    "Session",
    "Target",
    "Timings",
    "Tokenizer",
    "TreeError",
    "build_info",
    "generate",
    "gguf",
    "measure",
    "quant",
    "score",
    "stream",
    "trace",
    "verify",
]
