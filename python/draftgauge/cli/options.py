"""Options that several commands share, in llama.cpp's spelling."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

Model = Annotated[str, typer.Option("-m", "--model", metavar="FILE", help="Target: a .gguf file, or `demo`.")]
Draft = Annotated[
    str | None,
    typer.Option("-md", "--model-draft", metavar="FILE", help="Drafter: a DFlash or DSpark .gguf file."),
]
SpecType = Annotated[
    str,
    typer.Option(
        "--spec-type", metavar="TYPE", help="auto (what -md holds), none, ngram, dflash or dspark (later: mtp)."
    ),
]
SpecDraftBlock = Annotated[
    int | None,
    typer.Option("--spec-draft-block", metavar="N", help="Width of the draft block; default: the trained one."),
]
SpecDraftPMin = Annotated[
    float, typer.Option("--spec-draft-p-min", metavar="P", help="End a draft below this confidence; 0: off.")
]
Threads = Annotated[
    int | None,
    typer.Option(
        "-t", "--threads", metavar="N", help="Threads; default: physical cores, within affinity and cgroup quota."
    ),
]
CtxSize = Annotated[
    int | None,
    typer.Option("-c", "--ctx-size", metavar="N", help="Most positions; default: the model's own, at most 8192."),
]
Device = Annotated[
    str, typer.Option("--device", metavar="NAME", help="cpu, candle-cpu, cuda, cuda:N or metal.", show_default=True)
]
Numerics = Annotated[str, typer.Option("--numerics", metavar="KIND", help="fast or reference.")]
CacheK = Annotated[
    str | None, typer.Option("-ctk", "--cache-type-k", metavar="TYPE", help="Type of cached keys: f16 or f32.")
]
CacheV = Annotated[
    str | None, typer.Option("-ctv", "--cache-type-v", metavar="TYPE", help="Type of cached values: f16 or f32.")
]
NoPack = Annotated[bool, typer.Option("--no-pack", help="Read the weights as they lie in the file.")]
OverrideKv = Annotated[
    list[str] | None,
    typer.Option("--override-kv", metavar="KEY=TYPE:VALUE", help="Replace a metadata value; can be repeated."),
]
DraftOverrideKv = Annotated[
    list[str] | None,
    typer.Option("--draft-override-kv", metavar="KEY=TYPE:VALUE", help="The same for the drafter's file."),
]
TargetLayers = Annotated[
    str | None,
    typer.Option(
        "--target-layers", metavar="LIST", help="Layers whose outputs feed the drafter, as 1,9,17; embeddings is one."
    ),
]
ChatTemplateFile = Annotated[
    Path | None,
    typer.Option("--chat-template", metavar="FILE", help="Use this template instead of the model's."),
]
Json = Annotated[bool, typer.Option("--json", help="Print exactly one JSON object.")]
Trace = Annotated[
    Path | None, typer.Option("--trace", metavar="FILE", help="Write the raw facts of every step (JSON lines).")
]
Verbose = Annotated[bool, typer.Option("-v", "--verbose", help="Say more on stderr, the memory plan included.")]
Debug = Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")]
