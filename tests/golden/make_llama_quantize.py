"""Records the hashes of what llama-quantize makes of small models.

    PYTHONPATH=tests python tests/golden/make_llama_quantize.py PATH/TO/llama-quantize

Needs the package itself, which writes the models (`tests/quantize_models.py`); llama.cpp is that of release b11434.
"""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
import tempfile
from pathlib import Path

import quantize_models
from draftgauge.requantize import file_types

OUTPUT = Path(__file__).parent / "llama_quantize.json"


def main() -> None:
    quantizer = Path(sys.argv[1]).resolve()
    hashes: dict[str, dict[str, str | None]] = {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for model in quantize_models.MODELS:
            source, matrix = quantize_models.write(folder, model)
            hashes[model] = {"source": hashlib.sha256(source.read_bytes()).hexdigest()}
            for kind in file_types():
                for options in ([], ["--imatrix", matrix.name]):
                    command = [str(quantizer), *options, source.name, "out.gguf", kind, "2"]
                    outcome = subprocess.run(command, cwd=folder, capture_output=True, check=False)
                    made = (folder / "out.gguf").read_bytes() if outcome.returncode == 0 else None
                    label = f"{kind} with imatrix" if options else kind
                    hashes[model][label] = None if made is None else hashlib.sha256(made).hexdigest()
    OUTPUT.write_text(json.dumps(hashes, indent=1) + "\n", encoding="utf-8")
    print(sum(len(entries) - 1 for entries in hashes.values()), "files")


if __name__ == "__main__":
    main()
