"""Runs plain and speculative decoding on the same prompts, interleaved, and reports what speculation gains."""

from __future__ import annotations

import hashlib
import json
import math
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from draftgauge import gguf
from draftgauge import trace as trace_module
from draftgauge._door import core
from draftgauge.decode import Run, Session, drafter_facts, prompt_tokens, target_settings, trace_header
from draftgauge.drafters import Drafter
from draftgauge.lab.counts import pairs
from draftgauge.lab.figures import report
from draftgauge.lab.prompts import Prompt, PromptSet, load
from draftgauge.targets import Target
from draftgauge.trace import TracePlace

__all__ = ["measure"]

WARM_UP = 8
"""Tokens of a run that does not count: it pages the weights in."""

TRACE_START = b'{"trace":"draftgauge"'
"""How every trace begins. A file that a dying process left torn within its header still shares these bytes."""


def measure(
    target: Target,
    prompts: str | os.PathLike[str] | PromptSet,
    *,
    drafter: Drafter,
    max_tokens: int = 128,
    temperature: float = 0.0,
    seed: int = 0,
    limit: int | None = None,
    draft_n_max: int | None = None,
    draft_block: int | None = None,
    draft_p_min: float = 0.0,
    raw: bool = False,
    trace: str | os.PathLike[str] | None = None,
    on_progress: Callable[[float], object] | None = None,
) -> dict[str, Any]:
    """Measure a drafter: every prompt is run plainly and with the drafter, one after the other.

    Which of the two comes first alternates from prompt to prompt, so that a drift of the machine touches both alike.
    The noise of prompt i is that of stream i. Every figure is computed from the trace; with `trace` it is kept, and a
    run that was cut short goes on where it stopped.

    Parameters
    ----------
    target : Target
        The model.
    prompts : path or PromptSet
        A file as :func:`draftgauge.lab.prompts.load` takes it.
    drafter : Drafter
        What proposes tokens.
    max_tokens : int
        Most tokens a prompt.
    temperature, seed : float, int
        As in :func:`draftgauge.generate`.
    limit : int, optional
        Most prompts of the file.
    draft_n_max, draft_block, draft_p_min
        As in :func:`draftgauge.generate`.
    raw : bool
        Give texts to the model without its chat template.
    trace : path, optional
        Where the raw facts go.
    on_progress : callable, optional
        Called with the share of prompts that are done.

    Returns
    -------
    dict
        The figures, under the names of the command's JSON.

    Raises
    ------
    ValueError
        For an unusable prompt file or option, or a trace of another run at `trace`; the message says what differs.
    """
    if not (math.isfinite(temperature) and temperature >= 0):
        raise ValueError(f"option out of range: temperature: expected 0 or more, found {temperature}")
    given = prompts if isinstance(prompts, PromptSet) else load(prompts, limit)
    options: dict[str, Any] = {"max_tokens": max_tokens, "temperature": temperature, "raw": raw}
    drafting = {"draft_n_max": draft_n_max, "draft_block": draft_block, "draft_p_min": draft_p_min}
    settings = {
        **options,
        **drafting,
        "seed": seed,
        "prompts": len(given.prompts),
        "prompts_sha256": given.sha256,
        "verify": "match",
        "drafter": drafter_facts(drafter),
        "device": target.device,
        **target_settings(target),
    }
    header = trace_header(target, drafter, settings)
    # Equal paths and equal configurations do not make equal weights: another training run has both.
    header["target"]["sha256"] = _weights_hash(target.path)
    header["drafter"]["path"] = None if drafter.path is None else str(drafter.path)
    header["drafter"]["sha256"] = None if drafter.path is None else _weights_hash(drafter.path)
    header["notices"] = [*header["notices"], *given.notices]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "trace.jsonl") if trace is None else Path(trace)
        done, seq = _resume(path, header)
        # Tokenized before anything runs: a prompt that cannot be used is found now, not hours later.
        streams = [
            (stream, one, _tokens(target, one, raw)) for stream, one in enumerate(given.prompts) if one.id not in done
        ]
        if streams:
            Run(Session(target, drafter), "Hello", max_tokens=WARM_UP, raw=True, chunks=False).result()
        for count, (stream, one, tokens) in enumerate(streams):
            if on_progress is not None:
                on_progress((len(done) + count) / len(given.prompts))
            runs: list[tuple[Drafter | None, dict[str, Any]]] = [(None, {}), (drafter, drafting)]
            for who, extra in runs if stream % 2 == 0 else reversed(runs):
                place = TracePlace(path, seq, one.id, one.category)
                run = Run(Session(target, who, seed, stream), tokens, chunks=False, trace=place, **options, **extra)
                run.result()
                seq += 1
        if on_progress is not None:
            on_progress(1.0)
        return report(trace_module.load(path))


def _tokens(target: Target, prompt: Prompt, raw: bool) -> list[int]:
    content = prompt.content
    try:
        return prompt_tokens(target, content, raw=raw and isinstance(content, str))
    except ValueError as error:
        raise ValueError(f"prompt cannot be used: prompt {prompt.id}: {error}") from error


def _weights_hash(path: Path) -> str:
    """SHA-256 of a file's bytes, or of those of all shards in their order."""
    hashed = hashlib.sha256()
    for shard, _ in gguf.open(path).shards:
        with Path(shard).open("rb") as file:
            while piece := file.read(1 << 20):
                hashed.update(piece)
    return hashed.hexdigest()


def _resume(path: Path, header: dict[str, Any]) -> tuple[set[str], int]:
    """Ids that are done in a trace of the same run, and the number of the next sequence; a new trace where none is.

    Nothing is written before the file has proved to be a trace of this run, or to hold nothing but a header.
    """
    if not path.exists():
        core.trace_create(os.fspath(path), json.dumps(header))
        return set(), 0
    earlier = trace_module.load(path)
    data = path.read_bytes()
    if earlier.header is None and not (data.startswith(TRACE_START) or TRACE_START.startswith(data)):
        raise ValueError(f"file is not a trace: {os.fspath(path)}: expected a trace to go on with, found another file")
    if not earlier.sequences:
        # Nothing was measured yet, by whatever settings: a run that was refused leaves its header too.
        core.trace_create(os.fspath(path), json.dumps(header))
        return set(), 0
    assert earlier.header is not None
    for part in ("target", "drafter", "settings"):
        difference = _difference(earlier.header[part], json.loads(json.dumps(header[part])), part)
        if difference is not None:
            raise ValueError(f"trace is of another run: {os.fspath(path)}, {difference}")
    # A line that a dying process left torn would swallow the next one.
    whole = data.rfind(b"\n") + 1
    if whole != len(data):
        with path.open("r+b") as file:
            file.truncate(whole)
    done = {pair.id for pair in pairs(earlier.sequences)}
    return done, 1 + max(int(one.begin["seq"]) for one in earlier.sequences)


def _difference(found: Any, expected: Any, where: str) -> str | None:
    """The first place in which two values differ."""
    if isinstance(found, dict) and isinstance(expected, dict):
        for key in dict.fromkeys([*expected, *found]):
            difference = _difference(found.get(key), expected.get(key), f"{where}.{key}")
            if difference is not None:
                return difference
        return None
    return None if found == expected else f"{where}: expected {expected}, found {found}"
