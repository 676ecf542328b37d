"""``draftgauge measure``: what a drafter achieves on a set of prompts, paired with plain decoding."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Annotated, Any

import typer

from draftgauge import trace as trace_module
from draftgauge.cli import options, output
from draftgauge.cli.drafting import DrafterChoice, announce
from draftgauge.cli.failure import CHECK_FAILED, DONE, INTERRUPTED, RefusalError
from draftgauge.cli.loading import load_target
from draftgauge.lab import measure, report
from draftgauge.lab.plot import plot as draw
from draftgauge.lab.prompts import load

EXAMPLE = """draftgauge measure -m demo --spec-type ngram --prompts questions.jsonl -n 128
draftgauge measure -m target.gguf -md drafter.gguf --prompts set.jsonl --trace run.jsonl --plot run.png
draftgauge measure --from-trace run.jsonl --json"""


def command(
    model: Annotated[str | None, typer.Option("-m", "--model", metavar="FILE", help="Target, or `demo`.")] = None,
    model_draft: options.Draft = None,
    prompts: Annotated[
        Path | None, typer.Option("--prompts", metavar="FILE", help="Prompts, one JSON object a line.")
    ] = None,
    predict: Annotated[int, typer.Option("-n", "--predict", metavar="N", help="Most tokens a prompt.")] = 128,
    temp: Annotated[float, typer.Option("--temp", metavar="T", help="Temperature; 0 is greedy.")] = 0.0,
    seed: Annotated[int, typer.Option("--seed", metavar="N", help="Seed of the noise.")] = 0,
    limit: Annotated[int | None, typer.Option("--limit", metavar="N", help="Most prompts.")] = None,
    raw: Annotated[bool, typer.Option("--raw", help="Use no chat template.")] = False,
    spec_type: options.SpecType = "auto",
    spec_draft_n_max: Annotated[
        int | None, typer.Option("--spec-draft-n-max", metavar="N", help="Longest draft; default: the drafter's own.")
    ] = None,
    spec_draft_block: options.SpecDraftBlock = None,
    spec_draft_p_min: options.SpecDraftPMin = 0.0,
    from_trace: Annotated[
        Path | None, typer.Option("--from-trace", metavar="FILE", help="Recompute every figure from a trace.")
    ] = None,
    plot: Annotated[
        Path | None, typer.Option("--plot", metavar="FILE", help="Draw a picture: .png or .svg (extra `plot`).")
    ] = None,
    threads: options.Threads = None,
    ctx_size: options.CtxSize = None,
    device: options.Device = "cpu",
    numerics: options.Numerics = "fast",
    cache_type_k: options.CacheK = None,
    cache_type_v: options.CacheV = None,
    no_pack: options.NoPack = False,
    override_kv: options.OverrideKv = None,
    draft_override_kv: options.DraftOverrideKv = None,
    target_layers: options.TargetLayers = None,
    chat_template: options.ChatTemplateFile = None,
    json: options.Json = False,
    trace: options.Trace = None,
    verbose: options.Verbose = False,
    debug: options.Debug = False,
) -> int:
    """Run every prompt plainly and with the drafter, and report acceptance by position, speed and identity.

    Exit code 1 when outputs differ where they must not. An interrupted run with --trace goes on where it stopped.
    """
    if plot is not None and plot.suffix.lower() not in (".png", ".svg"):
        raise RefusalError("invalid value", "--plot", expected="a .png or .svg file", found=str(plot))
    if from_trace is not None:
        others = (("-m", model), ("-md", model_draft), ("--prompts", prompts), ("--trace", trace))
        for option, value in others:
            if value is not None:
                raise RefusalError(
                    "options that exclude each other", "--from-trace", expected=f"no {option}", found=option
                )
        return _finish(report(trace_module.load(from_trace)), json=json, plot=plot)
    if model is None:
        raise RefusalError("missing argument", "-m", expected="a target", found="none")
    if prompts is None:
        raise RefusalError("missing argument", "--prompts", expected="a file of prompts", found="none")
    for option, number in (("-n", predict), ("--limit", limit)):
        if number is not None and number < 1:
            raise RefusalError("invalid value", option, expected="at least 1", found=str(number))
    choice = DrafterChoice(model_draft, spec_type, override_kv=draft_override_kv, target_layers=target_layers)
    if not choice.given:
        raise RefusalError("missing drafter", "-md, --spec-type", expected="a drafter to measure", found="none")
    given = load(prompts, limit)
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
        chat_template=chat_template,
        verbose=verbose,
    )
    drafter = choice.load(target)
    assert drafter is not None
    announce(drafter, depth=spec_draft_n_max, block=spec_draft_block)
    with tempfile.TemporaryDirectory() as folder:
        # Kept for the figures so far when the run is interrupted.
        path = Path(folder, "trace.jsonl") if trace is None else trace
        try:
            with output.bar("measuring") as progress:
                figures = measure(
                    target,
                    given,
                    drafter=drafter,
                    max_tokens=predict,
                    temperature=temp,
                    seed=seed,
                    draft_n_max=spec_draft_n_max,
                    draft_block=spec_draft_block,
                    draft_p_min=spec_draft_p_min,
                    raw=raw,
                    trace=path,
                    on_progress=progress,
                )
        except KeyboardInterrupt:
            return _interrupted(path, json=json)
    return _finish(figures, json=json, plot=plot)


def _interrupted(path: Path, *, json: bool) -> int:
    try:
        figures: dict[str, Any] = report(trace_module.load(path))
    except (ValueError, OSError):
        # Nothing was finished yet.
        figures = {}
    if json:
        output.print_json({**figures, "interrupted": True})
    elif figures:
        _print(figures)
    return INTERRUPTED


def _finish(figures: dict[str, Any], *, json: bool, plot: Path | None) -> int:
    if plot is not None:
        beside = plot.with_name(f".{plot.stem}.{os.getpid()}{plot.suffix}")
        try:
            draw(figures, beside)
            beside.replace(plot)
        finally:
            beside.unlink(missing_ok=True)
    if json:
        output.print_json(figures)
    else:
        _print(figures)
        output.notices(figures["notices"])
    # Candle's devices are equal in law alone. A trace that names no device is held to the promise.
    promised = figures["settings"].get("device", "cpu") == "cpu"
    return CHECK_FAILED if promised and not figures["identity"]["equal"] else DONE


def _print(figures: dict[str, Any]) -> None:
    drafter, speed, interval = figures["drafter"] or {}, figures["speed"], figures["interval_95"]
    block = "" if figures["block_size"] is None else f", block {figures['block_size']}"
    rows = [
        ("prompts, tokens, steps", f"{figures['prompts']}, {figures['tokens']}, {figures['steps']}"),
        ("drafts a step", _number(figures["drafted_per_step"])),
        ("accepted a step", _number(figures["accepted_per_step"])),
        ("acceptance rate (accepted / drafted)", _with(figures["acceptance_rate"], interval["acceptance_rate"])),
        ("acceptance length (accepted + 1 a step)", _with(figures["acceptance_length"], interval["acceptance_length"])),
        ("acceptance length, DeepSpec's", _number(figures["acceptance_length_deepspec"])),
        ("plain, tok/s", _number(speed["plain_tok_s"], 1)),
        ("speculative, tok/s", _number(speed["speculative_tok_s"], 1)),
        ("speed ratio", _with(speed["ratio"], speed["interval_95"])),
        ("plain step, ms", _number(_ms(figures["seconds_per_step"]["plain"]))),
        ("draft / verify / commit, ms a step", _stages(figures["seconds_per_step"])),
        ("outputs that loop", f"{figures['loop_rate']:.0%}"),
        ("outputs are the target's own", "yes" if figures["identity"]["equal"] else "NO"),
    ]
    print(output.table((f"{drafter.get('kind')} drafter{block}, {figures['draft_len']} drafts", "95 % interval"), rows))
    print()
    places = [
        (str(place + 1), str(kept), str(proposed), _with(rate, bounds))
        for place, (kept, proposed, rate, bounds) in enumerate(
            zip(
                figures["accepted_at"],
                figures["proposed_at"],
                figures["acceptance_at"],
                interval["acceptance_at"],
                strict=True,
            )
        )
    ]
    print(output.table(("draft position", "kept", "proposed", "kept / proposed"), places))
    if figures["categories"]:
        print()
        categories = [
            (
                name,
                str(part["prompts"]),
                _number(part["acceptance_rate"]),
                _number(part["acceptance_length"]),
                _number(part["speed"]["ratio"]),
            )
            for name, part in figures["categories"].items()
        ]
        print(output.table(("category", "prompts", "rate", "length", "speed ratio"), categories))
    for parting in figures["identity"]["forks"]:
        output.say(
            f"draftgauge: prompt {parting['prompt']}: outputs part at token {parting['position']},"
            f" margin {parting['margin']}"
        )


def _number(value: float | None, digits: int = 2) -> str:
    return "none" if value is None else f"{value:.{digits}f}"


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else 1000 * seconds


def _stages(seconds: dict[str, float | None]) -> str:
    return " / ".join(_number(_ms(seconds[stage])) for stage in ("draft", "verify", "commit"))


def _with(value: float | None, bounds: list[float] | None) -> str:
    return _number(value) + ("" if bounds is None else f"  [{bounds[0]:.2f}, {bounds[1]:.2f}]")
