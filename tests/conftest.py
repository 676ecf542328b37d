"""What several folders of tests share: the real model, and the command line as a process."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

MODELS = Path(os.environ.get("DRAFTGAUGE_MODELS") or Path(__file__).parents[1] / "target" / "models")

Cli = Callable[..., subprocess.CompletedProcess[bytes]]


@pytest.fixture(scope="session")
def model() -> Path:
    """SmolLM2 135M Instruct, Q4_1. `make test` puts it there; a missing one is an error, not a reason to skip."""
    path = MODELS / "smollm2-135m-q4_1.gguf"
    assert path.exists(), f"{path} is missing: run `make models`"
    return path


@pytest.fixture(scope="session")
def cli() -> Cli:
    """Runs ``draftgauge`` as its users do."""

    def run(*arguments: object, stdin: bytes = b"", **environment: str) -> subprocess.CompletedProcess[bytes]:
        command = [sys.executable, "-m", "draftgauge", *[os.fsencode(str(part)) for part in arguments]]
        return subprocess.run(
            command, input=stdin, capture_output=True, env={**os.environ, **environment}, timeout=300, check=False
        )

    return run
