"""``draftgauge bench``: prompt and decode speed, the verify-cost curve, and the share of memory bandwidth."""

from __future__ import annotations

import json as json_module
from typing import Annotated

import typer

from draftgauge._door import core
from draftgauge.cli import options, output
from draftgauge.cli.drafting import DrafterChoice, announce
from draftgauge.cli.failure import CHECK_FAILED, DONE, RefusalError
from draftgauge.cli.loading import load_target

EXAMPLE = """draftgauge bench -m demo
draftgauge bench -m model.gguf -p 128,512 -n 32 -d 1024 --rows 1,4,8 --json"""


def command(
    model: options.Model,
    model_draft: options.Draft = None,
    prompt: Annotated[str, typer.Option("-p", "--n-prompt", metavar="N,…", help="Prompt lengths.")] = "512",
    predict: Annotated[int, typer.Option("-n", "--n-gen", metavar="N", help="Tokens of a decode run.")] = 64,
    depth: Annotated[
        int, typer.Option("-d", "--n-depth", metavar="N", help="Tokens of context before decode and verify runs.")
    ] = 0,
    rows: Annotated[
        str, typer.Option("--rows", metavar="N,…", help="Row counts of the verify-cost curve.")
    ] = "1,2,4,8,16,32",
    repetitions: Annotated[int, typer.Option("-r", "--repetitions", metavar="N", help="Runs of each figure.")] = 5,
    threads: options.Threads = None,
    ctx_size: options.CtxSize = None,
    device: options.Device = "cpu",
    numerics: options.Numerics = "fast",
    cache_type_k: options.CacheK = None,
    cache_type_v: options.CacheV = None,
    no_pack: options.NoPack = False,
    override_kv: options.OverrideKv = None,
    spec_type: options.SpecType = "auto",
    draft_override_kv: options.DraftOverrideKv = None,
    target_layers: options.TargetLayers = None,
    json: options.Json = False,
    verbose: options.Verbose = False,
    debug: options.Debug = False,
) -> int:
    """Measure speeds in one run, the memory's included. Exit code 1 when a choice depended on the number of rows."""
    choice = DrafterChoice(model_draft, spec_type, override_kv=draft_override_kv, target_layers=target_layers)
    lengths = _numbers(prompt, "-p", allow_zero=True)
    counts = _numbers(rows, "--rows", allow_zero=False)
    for option, value, least in (("-n", predict, 0), ("-d", depth, 0), ("-r", repetitions, 1)):
        if value < least:
            raise RefusalError("invalid value", option, expected=f"at least {least}", found=str(value))
    target = load_target(
        model,
        threads=threads,
        device=device,
        numerics=numerics,
        ctx_size=ctx_size,
        cache_type_k=cache_type_k,
        cache_type_v=cache_type_v,
        pack=not no_pack,
        override_kv=override_kv,
        verbose=verbose,
    )
    drafter = choice.load(target)
    if drafter is not None:
        announce(drafter, depth=None, block=None)
    with output.bar("measuring") as progress:
        measured = json_module.loads(
            core.measure_speed(
                target._inner, [length for length in lengths if length], predict, depth, counts, repetitions, progress
            )
        )
    draft = None
    if drafter is not None:
        draft = json_module.loads(core.measure_draft(target._inner, drafter._inner, depth, repetitions))
    decode = measured["decode"] or {"n": 0, "tok_s": None, "runs": []}
    report = {
        "prefill": measured["prefill"],
        "decode": decode,
        "verify": measured["verify"],
        "draft": draft,
        "bandwidth_gb_s": measured["bandwidth_gb_s"],
        "bytes_per_token": measured["bytes_per_token"],
        "bandwidth_share": measured["bandwidth_share"],
        "depth": depth,
        "threads": target.threads,
        "device": target.device,
        "kernels": target.kernels,
        "model": {
            "path": str(target.path),
            "architecture": target.architecture,
            "num_layers": target.num_layers,
            "hidden_size": target.hidden_size,
            "vocab_size": target.vocab_size,
        },
        "notices": [*target.notices, *([] if drafter is None else drafter.notices)],
    }
    if json:
        output.print_json(report)
    else:
        _print(report)
        output.notices(report["notices"])
    figures = [*report["prefill"], *([decode] if predict else []), *report["verify"]]
    return DONE if all(figure["equal"] for figure in figures) else CHECK_FAILED


def _print(report: dict[str, object]) -> None:
    rows = [(f"prompt of {run['n']}", f"{run['tok_s']:.1f} tok/s") for run in _list(report["prefill"])]
    decode = report["decode"]
    assert isinstance(decode, dict)
    if decode["n"]:
        rows.append((f"decode of {decode['n']} after {report['depth']}", f"{decode['tok_s']:.1f} tok/s"))
    rows.append(("memory read", f"{report['bandwidth_gb_s']:.1f} GB/s"))
    rows.append(("bytes a token", f"{report['bytes_per_token']:,}"))
    if report["bandwidth_share"] is not None:
        rows.append(("share of the memory's speed", f"{report['bandwidth_share']:.0%}"))
    print(output.table((f"{report['kernels']}, {report['threads']} threads", ""), rows))
    draft = report["draft"]
    if isinstance(draft, dict):
        # A target's step is what a draft competes with.
        step = f", {draft['seconds'] * decode['tok_s']:.2f} of a decode step" if decode["n"] else ""
        print()
        rows = [
            (f"proposal of {draft['drafts']} after {draft['context']}", f"{draft['seconds'] * 1e3:.2f} ms{step}"),
            ("features of a position", f"{draft['observe_seconds'] * 1e3:.2f} ms"),
        ]
        print(output.table(("drafter", ""), rows))
    verify = _list(report["verify"])
    if verify:
        print()
        curve = [(str(cost["rows"]), f"{cost['seconds'] * 1e3:.2f}", f"{cost['ratio']:.2f}") for cost in verify]
        print(output.table(("rows verified", "ms", "T(rows)/T(1)"), curve))


def _list(value: object) -> list[dict[str, float]]:
    assert isinstance(value, list)
    return value


def _numbers(text: str, option: str, *, allow_zero: bool) -> list[int]:
    numbers = []
    for part in text.split(","):
        word = part.strip()
        if not word.isascii() or not word.isdigit() or (int(word) == 0 and not allow_zero):
            least = 0 if allow_zero else 1
            raise RefusalError(
                "invalid value", option, expected=f"numbers of at least {least} with commas", found=text or "nothing"
            )
        numbers.append(int(word))
    return list(dict.fromkeys(numbers))
