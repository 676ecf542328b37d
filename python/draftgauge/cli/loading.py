"""Loads a target for a command: options, progress bar, memory plan."""

from __future__ import annotations

from pathlib import Path

from draftgauge.cli import output
from draftgauge.cli.models import model_path
from draftgauge.targets import Target


def load_target(
    model: str,
    *,
    threads: int | None,
    device: str,
    numerics: str,
    ctx_size: int | None,
    cache_type_k: str | None,
    cache_type_v: str | None,
    pack: bool,
    override_kv: list[str] | None,
    chat_template: Path | None = None,
    verbose: bool = False,
) -> Target:
    """Load the target that a command names, with a bar while a large file loads."""
    path = model_path(model)

    def tell_plan(plan: str) -> None:
        output.say(f"draftgauge: memory: {plan}")

    template = None if chat_template is None else chat_template.read_text(encoding="utf-8")
    with output.bar("loading") as progress:
        return Target.from_gguf(
            path,
            threads=threads,
            device=device,
            numerics=numerics,
            ctx_size=ctx_size,
            cache_type_k=cache_type_k,
            cache_type_v=cache_type_v,
            pack=pack,
            overrides=override_kv,
            chat_template=template,
            on_plan=tell_plan if verbose else None,
            on_progress=progress,
        )
