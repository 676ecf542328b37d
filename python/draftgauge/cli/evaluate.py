"""``draftgauge evaluate``: perplexity of a text, and how far the fast numerics lie from the reference."""

from __future__ import annotations

import json as json_module
from pathlib import Path
from typing import Annotated, Any

import typer

from draftgauge._door import core
from draftgauge.cli import options, output
from draftgauge.cli.failure import DONE, RefusalError
from draftgauge.cli.loading import load_target

EXAMPLE = """draftgauge evaluate -m demo --text book.txt --windows 4
draftgauge evaluate -m q4.gguf --text book.txt --against f16.gguf --json"""

DEFAULT_WINDOW = 512


def command(
    model: options.Model,
    text: Annotated[Path, typer.Option("--text", metavar="FILE", help="The text, UTF-8.")],
    against: Annotated[
        str | None,
        typer.Option("--against", metavar="FILE2", help="Compare with this model instead of the reference numerics."),
    ] = None,
    windows: Annotated[
        int | None, typer.Option("--windows", metavar="N", help="Most windows to score; default: all.")
    ] = None,
    no_compare: Annotated[
        bool, typer.Option("--no-compare", help="Print the perplexity alone; takes half the time or less.")
    ] = False,
    threads: options.Threads = None,
    ctx_size: Annotated[
        int, typer.Option("-c", "--ctx-size", metavar="N", help="Tokens of a window.")
    ] = DEFAULT_WINDOW,
    device: options.Device = "cpu",
    numerics: options.Numerics = "fast",
    cache_type_k: options.CacheK = None,
    cache_type_v: options.CacheV = None,
    no_pack: options.NoPack = False,
    override_kv: options.OverrideKv = None,
    json: options.Json = False,
    verbose: options.Verbose = False,
    debug: options.Debug = False,
) -> int:
    """Print perplexity by llama-perplexity's convention, and argmax agreement and KL divergence beside it.

    The KL is that of this model from its base: the same file in reference numerics, or the model of --against.
    """
    if windows is not None and windows < 1:
        raise RefusalError("invalid value", "--windows", expected="at least 1", found=str(windows))
    if no_compare and against is not None:
        raise RefusalError("options that exclude each other", "--no-compare", expected="no --against", found=against)
    try:
        content = text.read_bytes().decode("utf-8")
    except UnicodeDecodeError as error:
        raise RefusalError(
            "text is not UTF-8",
            str(text),
            expected="UTF-8",
            found=f"byte {error.object[error.start]:#04x} at {error.start}",
        ) from error
    shared: dict[str, Any] = {
        "threads": threads,
        "device": device,
        "ctx_size": ctx_size,
        "cache_type_k": cache_type_k,
        "cache_type_v": cache_type_v,
        "pack": not no_pack,
        "override_kv": override_kv,
        "verbose": verbose,
    }
    target = load_target(model, numerics=numerics, **shared)
    compare = not no_compare and (against is not None or numerics != "reference")
    base = None
    if compare:
        base_numerics = numerics if against is not None else "reference"
        # The reference is the cpu's: Candle's devices have products of their own.
        base_device = device if against is not None else "cpu"
        base = load_target(against or model, numerics=base_numerics, **{**shared, "device": base_device})
    tokens = target.tokenizer.encode(content, add_special=True, parse_special=False)
    bos = target.tokenizer.bos if target.tokenizer.add_bos else None
    first, second = (target, None) if base is None else (base, target)
    with output.bar("scoring") as progress:
        measured = json_module.loads(
            core.measure_text(
                first._inner, None if second is None else second._inner, tokens, ctx_size, windows, bos, progress
            )
        )
    report = {
        "perplexity": measured["base"] if base is None else measured["other"],
        "base": None if base is None else {"numerics": base_numerics, "path": str(base.path), **measured["base"]},
        "divergence": measured["divergence"],
        "window": ctx_size,
        "numerics": numerics,
        "path": str(target.path),
        "device": target.device,
        "kernels": target.kernels,
        "threads": target.threads,
        "notices": target.notices,
    }
    if json:
        output.print_json(report)
    else:
        _print(report)
        output.notices(target.notices)
    return DONE


def _print(report: dict[str, Any]) -> None:
    score = report["perplexity"]
    rows = [("perplexity", f"{score['perplexity']:.4f} ± {score['standard_error']:.4f}")]
    if report["base"] is not None:
        base, divergence = report["base"], report["divergence"]
        rows += [
            (
                f"perplexity of the base ({base['numerics']})",
                f"{base['perplexity']:.4f} ± {base['standard_error']:.4f}",
            ),
            ("mean KL(base || this)", f"{divergence['mean_kl']:.6f} ± {divergence['standard_error']:.6f}"),
            ("median KL", f"{divergence['median_kl']:.6f}"),
            ("99 % KL", f"{divergence['p99_kl']:.6f}"),
            ("largest KL", f"{divergence['max_kl']:.6f}"),
            ("same first choice", f"{divergence['argmax_agreement']:.2%}"),
        ]
    header = (f"{score['tokens']} tokens in {score['windows']} windows of {report['window']}", "")
    print(output.table(header, rows))
