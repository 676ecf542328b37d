"""Records the drafts that llama-server proposes with small drafters of random weights.

    python tests/golden/make_drafters.py PATH/TO/llama-server

The files are those of `rust/core/tests/common/drafter_files.rs`, whose weights come from a generator of its own, so
that the tests make the same files again. One target, one drafter a run, temperature 0, f32 caches, no flash attention.
At its most talkative llama-server logs the likeliest candidates of every draft, with their share among the best ten.

Two of the forms are not recorded: `gated`, which b11434 refuses (only an older branch wrote it), and `half`, which taps
the last layer, where b11434 has nothing to tap.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
OUTPUT = Path(__file__).parent / "drafters" / "llama_server.json"
PORT = 8737
PROMPT = [1, 40, 50, 60, 70, 80, 90, 100, 45, 55]
PREDICT = 60
# Form of the drafter, llama-server's type, drafts of a whole block.
RUNS = [
    ("dflash", "draft-dflash", 5),
    ("dspark", "draft-dspark", 5),
    ("quantized", "draft-dspark", 5),
    ("bonus anchor", "draft-dspark", 4),
    ("deepspec dflash", "draft-dspark", 6),
    ("reduced", "draft-dspark", 5),
    ("reduced dflash", "draft-dflash", 5),
    ("tied", "draft-dflash", 5),
    ("gemma", "draft-dspark", 5),
    ("windowed", "draft-dflash", 5),
    ("causal", "draft-dspark", 5),
    ("sections", "draft-dflash", 5),
]

CANDIDATE = re.compile(rb"draft candidate +(\d+), pos +(\d+): +(\d+) \( *([\d.]+)\)")
DRAFTED = re.compile(rb"generate_draft: id=(\d+), #tokens=(\d+), #draft=(\d+)")


def write_files(folder: Path) -> None:
    """Let the tests' own code write target and drafters."""
    subprocess.run(
        ["cargo", "test", "--workspace", "--test", "drafters", "write_files", "--", "--ignored"],
        cwd=REPOSITORY,
        env={**os.environ, "DRAFTGAUGE_DRAFTER_FILES": str(folder)},
        check=True,
    )


def complete() -> dict:
    """One greedy completion of the prompt."""
    body = {"prompt": PROMPT, "n_predict": PREDICT, "temperature": 0, "ignore_eos": True, "return_tokens": True}
    request = urllib.request.Request(f"http://127.0.0.1:{PORT}/completion", json.dumps(body).encode())
    with urllib.request.urlopen(request, timeout=60) as response:
        return json.load(response)


def record(server: Path, folder: Path, name: str, kind: str, drafts: int) -> dict:
    """Tokens and steps of one run."""
    log = folder / f"{name}.log"
    command = [str(server), "-m", "target.gguf", "-md", f"{name}.gguf", "--spec-type", kind]
    command += ["--spec-draft-n-max", str(drafts), "-c", "1024", "-fa", "off", "-ctk", "f32", "-ctv", "f32"]
    command += ["--spec-draft-type-k", "f32", "--spec-draft-type-v", "f32", "--port", str(PORT), "-np", "1", "-t", "1"]
    command += ["-lv", "10", "--no-warmup", "--log-file", str(log)]
    process = subprocess.Popen(command, cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        for _ in range(200):
            try:
                urllib.request.urlopen(f"http://127.0.0.1:{PORT}/health", timeout=1)
                break
            except OSError:
                time.sleep(0.1)
        tokens = complete()["tokens"]
    finally:
        process.terminate()
        process.wait()
    steps: list[dict] = []
    candidates: dict[int, list] = {}
    for line in log.read_bytes().splitlines():
        if match := CANDIDATE.search(line):
            rank, place, token = (int(match[index]) for index in (1, 2, 3))
            if rank < 2:
                candidates.setdefault(place, []).append([token, float(match[4])])
        elif match := DRAFTED.search(line):
            # The anchor stands after the tokens that the target holds.
            steps.append(
                {
                    "anchor_pos": int(match[2]),
                    "anchor": int(match[1]),
                    "drafts": [candidates[place] for place in sorted(candidates)],
                }
            )
            candidates = {}
    return {"name": name, "tokens": tokens, "steps": steps}


def main() -> None:
    server = Path(sys.argv[1]).resolve()
    with tempfile.TemporaryDirectory() as folder:
        write_files(Path(folder))
        runs = [record(server, Path(folder), *run) for run in RUNS]
    OUTPUT.parent.mkdir(exist_ok=True)
    lines = ",\n".join(json.dumps(run, separators=(",", ":")) for run in runs)
    OUTPUT.write_text(f'{{"llama.cpp": "b11434", "prompt": {PROMPT}, "runs": [\n{lines}\n]}}\n', encoding="utf-8")
    print(f"{sum(len(run['steps']) for run in runs)} steps in {len(runs)} runs")


if __name__ == "__main__":
    main()
