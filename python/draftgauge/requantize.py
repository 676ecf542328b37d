"""Quantizing whole files, by llama-quantize's types and rules."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Sequence
from typing import Any

from draftgauge import gguf
from draftgauge._door import core

__all__ = ["file_types", "quantize_file"]


def file_types() -> list[str]:
    """Names of the types that :func:`quantize_file` takes, llama-quantize's own.

    Examples
    --------
    >>> from draftgauge.requantize import file_types
    >>> "Q4_K_M" in file_types()
    True
    """
    return core.quantize_types()


def quantize_file(
    input: str | os.PathLike[str],
    output: str | os.PathLike[str],
    type: str,
    *,
    imatrix: str | os.PathLike[str] | None = None,
    pure: bool = False,
    output_tensor_type: str | None = None,
    token_embedding_type: str | None = None,
    tensor_types: Sequence[tuple[str, str]] = (),
    allow_requantize: bool = False,
    leave_output_tensor: bool = False,
    threads: int | None = None,
    on_progress: Callable[[float], object] | None = None,
) -> dict[str, Any]:
    """Quantize a file; the result is llama-quantize's, tensor by tensor.

    The output is written beside its place and renamed when it is whole. A file that is there already is kept if it is
    younger than all that it is made of, has the header that would be written, and agrees in the first, middle and last
    row of every tensor: a run over many files goes on where it stopped.

    Parameters
    ----------
    input, output : path
        A file (any shard of several), and where to write.
    type : str
        One of :func:`file_types`, in any case of letters; ``Q3_K``, ``Q4_K`` and ``Q5_K`` mean their middle sizes.
    imatrix : path, optional
        Importance of columns, as llama-imatrix writes it.
    pure : bool
        Give every tensor the type's default.
    output_tensor_type, token_embedding_type : str, optional
        ggml types of the head and of the embedding table in place of the rules'.
    tensor_types : sequence of (pattern, type)
        ggml types of tensors whose names a regular expression finds; the first that does counts.
    allow_requantize : bool
        Take weights that are quantized already.
    leave_output_tensor : bool
        Leave ``output.weight`` as it is.
    threads : int, optional
        Most threads; by default every core.
    on_progress : callable, optional
        Called with the share that is done.

    Returns
    -------
    dict
        ``tensors`` (name, from, to, bytes, fallback), ``bytes_before``, ``bytes_after``, and ``kept``: whether the
        output was there already.

    Raises
    ------
    FileNotFoundError
        When a file is not there.
    ValueError
        For an unknown type, an output that is the input, or weights that are quantized already.
    GgufError, QuantError
        For a file that cannot be read, a value that is not finite, or an importance matrix that does not fit.
    """
    types: list[tuple[str, str]] = []
    if tensor_types:
        names = list(gguf.open(input).tensors)
        for pattern, chosen in tensor_types:
            try:
                finder = re.compile(pattern)
            except re.error as error:
                raise ValueError(
                    f"pattern cannot be read: {pattern}: expected a regular expression, found {error}"
                ) from error
            types += [(name, chosen) for name in names if finder.search(name)]
    report: dict[str, Any] = json.loads(
        core.quantize_gguf(
            os.fspath(input),
            os.fspath(output),
            type,
            imatrix=None if imatrix is None else os.fspath(imatrix),
            pure=pure,
            output_type=output_tensor_type,
            embedding_type=token_embedding_type,
            tensor_types=types,
            allow_requantize=allow_requantize,
            leave_output=leave_output_tensor,
            threads=threads,
            on_progress=on_progress,
        )
    )
    return report
