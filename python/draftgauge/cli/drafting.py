"""Which drafter a command line means, and its loading."""

from __future__ import annotations

from typing import Literal

from draftgauge.cli import output
from draftgauge.cli.failure import RefusalError, later
from draftgauge.cli.models import drafter_path
from draftgauge.drafters import Drafter
from draftgauge.targets import Target

# What --spec-type accepts, llama.cpp's names among them, and the kind that each means.
SPEC_TYPES: dict[str, Literal["auto", "none", "ngram", "dflash", "dspark", "mtp"]] = {
    "auto": "auto",
    "none": "none",
    "ngram": "ngram",
    "ngram-simple": "ngram",
    "dflash": "dflash",
    "draft-dflash": "dflash",
    "dspark": "dspark",
    "draft-dspark": "dspark",
    "mtp": "mtp",
    "draft-mtp": "mtp",
}


class DrafterChoice:
    """A drafter as the options name it, checked before the target is loaded.

    Raises
    ------
    RefusalError
        For options that contradict each other or that a later release brings.
    """

    def __init__(
        self,
        model_draft: str | None,
        spec_type: str = "auto",
        *,
        override_kv: list[str] | None = None,
        target_layers: str | None = None,
    ) -> None:
        kind = SPEC_TYPES.get(spec_type)
        if kind is None:
            known = ", ".join(name for name in SPEC_TYPES if not name.startswith("draft-"))
            raise RefusalError("invalid value", "--spec-type", expected=f"one of {known}", found=spec_type or "nothing")
        if kind == "mtp":
            raise later("the drafter mtp", f"--spec-type {spec_type}")
        if model_draft is not None and kind in ("none", "ngram"):
            raise RefusalError(
                "option without effect", "-md", expected=f"no file beside {spec_type}", found=model_draft
            )
        if model_draft is None and kind in ("dflash", "dspark"):
            raise RefusalError("missing drafter", "-md", expected=f"the file of a {kind} drafter", found="none")
        for option, given in (("--draft-override-kv", override_kv), ("--target-layers", target_layers)):
            if given and model_draft is None:
                raise RefusalError("option without effect", option, expected="a drafter file (-md)", found="none")
        self._path = None if model_draft is None else drafter_path(model_draft)
        self._kind = kind
        self._override_kv = list(override_kv or [])
        self._overrides: dict[str, object] = {}
        if target_layers is not None:
            self._overrides["target_layer_ids"] = _layers(target_layers)

    @property
    def given(self) -> bool:
        """Whether there is to be a drafter at all."""
        return self._path is not None or self._kind == "ngram"

    @property
    def has_block(self) -> bool:
        """Whether the drafter fills a block, of which options can be set."""
        return self._path is not None

    def load(self, target: Target) -> Drafter | None:
        """Load the drafter for a target; ``None`` where none is meant."""
        if self._path is None:
            return Drafter.ngram() if self._kind == "ngram" else None
        forced: Literal["dflash", "dspark"] | None = None
        if self._kind == "dflash" or self._kind == "dspark":
            forced = self._kind
        return Drafter.from_gguf(
            self._path, target=target, overrides=self._overrides, kind=forced, metadata=self._override_kv
        )


def announce(drafter: Drafter, *, depth: int | None, block: int | None) -> None:
    """Say what drafts, and how far, before anything runs."""
    longest = drafter.draft_len if depth is None else min(depth, drafter.draft_len)
    width = drafter.block_size if block is None else block
    state = "active" if longest else "inactive"
    shape = "" if width is None else f", block {width}, taps {drafter.tap_layers}"
    output.say(f"draftgauge: drafter: {drafter.kind} {state}, depth {longest}{shape}")


def _layers(text: str) -> list[int | str]:
    layers: list[int | str] = []
    for part in text.split(","):
        word = part.strip()
        if word == "embeddings" or word == "-1":
            layers.append("embeddings")
        elif word.isascii() and word.isdigit():
            layers.append(int(word))
        else:
            raise RefusalError(
                "invalid value",
                "--target-layers",
                expected="layers with commas, each a number or embeddings",
                found=text or "nothing",
            )
    return layers
