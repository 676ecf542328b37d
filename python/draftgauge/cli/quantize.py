"""``draftgauge quantize``: another quantization of a GGUF file, by llama-quantize's types and rules."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from draftgauge.cli import options, output
from draftgauge.cli.failure import DONE, RefusalError
from draftgauge.cli.models import model_path
from draftgauge.requantize import quantize_file

EXAMPLE = """draftgauge quantize model-f16.gguf model-q4_k_m.gguf Q4_K_M
draftgauge quantize model-f16.gguf model-q2_k.gguf Q2_K --imatrix model.imatrix.gguf --json"""


def command(
    input_file: Annotated[str, typer.Argument(metavar="IN", help="A .gguf file (any shard of several), or `demo`.")],
    output_file: Annotated[Path, typer.Argument(metavar="OUT", help="Where to write.")],
    type_name: Annotated[str, typer.Argument(metavar="TYPE", help="llama-quantize's name of the type.")],
    threads: Annotated[int | None, typer.Argument(metavar="[THREADS]", help="Most threads.")] = None,
    imatrix: Annotated[
        Path | None, typer.Option("--imatrix", metavar="FILE", help="Importance matrix, as llama-imatrix writes it.")
    ] = None,
    pure: Annotated[bool, typer.Option("--pure", help="Give every tensor the type's default.")] = False,
    output_tensor_type: Annotated[
        str | None, typer.Option("--output-tensor-type", metavar="TYPE", help="ggml type of output.weight.")
    ] = None,
    token_embedding_type: Annotated[
        str | None, typer.Option("--token-embedding-type", metavar="TYPE", help="ggml type of token_embd.weight.")
    ] = None,
    tensor_type: Annotated[
        list[str] | None,
        typer.Option("--tensor-type", metavar="REGEX=TYPE", help="ggml type of tensors by name; can be repeated."),
    ] = None,
    allow_requantize: Annotated[
        bool, typer.Option("--allow-requantize", help="Take weights that are quantized already.")
    ] = False,
    leave_output_tensor: Annotated[
        bool, typer.Option("--leave-output-tensor", help="Leave output.weight as it is.")
    ] = False,
    json: options.Json = False,
    verbose: options.Verbose = False,
    debug: options.Debug = False,
) -> int:
    """Quantize a file. An output that is there already, younger than its sources and equal where looked at, stays."""
    if threads is not None and threads < 1:
        raise RefusalError("invalid value", "THREADS", expected="at least 1", found=str(threads))
    with output.bar("quantizing") as progress:
        report = quantize_file(
            model_path(input_file),
            output_file,
            type_name,
            imatrix=imatrix,
            pure=pure,
            output_tensor_type=output_tensor_type,
            token_embedding_type=token_embedding_type,
            tensor_types=[_pattern(text) for text in tensor_type or []],
            allow_requantize=allow_requantize,
            leave_output_tensor=leave_output_tensor,
            threads=threads,
            on_progress=progress,
        )
    if json:
        output.print_json(report)
    else:
        _print(report, every=verbose)
    return DONE


def _pattern(text: str) -> tuple[str, str]:
    pattern, separator, chosen = text.rpartition("=")
    if not (pattern and separator and chosen):
        raise RefusalError("invalid value", "--tensor-type", expected="REGEX=TYPE", found=text or "nothing")
    return pattern, chosen


def _print(report: dict[str, Any], *, every: bool) -> None:
    if report["kept"]:
        print(f"{report['output']} is there already: younger than its sources, and equal in three rows of every tensor")
    if every:
        rows = [(one["name"], one["from"], one["to"], str(one["bytes"])) for one in report["tensors"]]
        print(output.table(("tensor", "from", "to", "bytes"), rows))
        print()
    totals: dict[str, list[int]] = {}
    for one in report["tensors"]:
        total = totals.setdefault(one["to"], [0, 0])
        total[0] += 1
        total[1] += one["bytes"]
    sums = [
        (name, str(count), str(size)) for name, (count, size) in sorted(totals.items(), key=lambda item: -item[1][1])
    ]
    print(output.table(("type", "tensors", "bytes"), sums))
    before, after = output.human_bytes(report["bytes_before"]), output.human_bytes(report["bytes_after"])
    print(f"{before} -> {after}")
    fallbacks = sum(one["fallback"] for one in report["tensors"])
    if fallbacks:
        output.say(f"draftgauge: notice: {fallbacks} tensors have rows that the chosen type does not divide: stand-ins")
