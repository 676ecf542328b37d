"""Speculative decoding of quantized GGUF models on ordinary CPUs, with output that is provably the model's own."""

from __future__ import annotations

from draftgauge import gguf
from draftgauge.errors import (
    DeviceError,
    DraftgaugeError,
    GgufError,
    ModelError,
    PairingError,
    QuantError,
    TreeError,
)

__all__ = [
    "DeviceError",
    "DraftgaugeError",
    "GgufError",
    "ModelError",
    "PairingError",
    "QuantError",
    "TreeError",
    "gguf",
]
