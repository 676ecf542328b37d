"""Every command: a name and the module that holds it, or the word that it comes later."""

from __future__ import annotations

COMMANDS: dict[str, str] = {
    "inspect": "draftgauge.cli.inspect",
    "generate": "draftgauge.cli.generate",
    "evaluate": "draftgauge.cli.evaluate",
    "bench": "draftgauge.cli.bench",
    "measure": "draftgauge.cli.measure",
    "quantize": "draftgauge.cli.quantize",
}
"""Commands by name, in the order of the help. A module has a function ``command`` and a text ``EXAMPLE``."""

LATER: dict[str, str] = {
    "ladder": "acceptance against precision",
    "compare": "two runs side by side",
    "economics": "the verify-cost curve joined with acceptance",
    "diagnose": "why acceptance is low",
    "capture": "target features for training",
    "distil": "training data from the target itself",
    "train": "a drafter trained on captured features",
    "convert": "a trained drafter as GGUF",
    "serve": "an OpenAI-compatible server",
}
"""Commands that a later release brings, with what they will do."""
