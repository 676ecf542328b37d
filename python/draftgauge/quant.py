"""Quantized types: their names, and their values.

The layouts are ggml's; values equal those of the ``gguf`` package bit for bit.

Examples
--------
>>> import numpy as np
>>> from draftgauge import quant
>>> block = np.zeros(18, np.uint8)      # one Q4_0 block: a half-precision scale, then 32 values of 4 bits
>>> block[:2] = np.frombuffer(np.float16(0.5).tobytes(), np.uint8)
>>> quant.dequantize(block, "Q4_0", (1, 32))[0, :2]
array([-4., -4.], dtype=float32)
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from draftgauge._door import core

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

__all__ = ["block", "dequantize", "quantizable", "quantize", "types", "validate"]


def types() -> list[str]:
    """Names of the types that can be dequantized, in order of their ggml ids.

    Examples
    --------
    >>> from draftgauge import quant
    >>> "Q4_K" in quant.types()
    True
    """
    return core.quant_types()


def quantizable() -> list[str]:
    """Names of the types that can be quantized to, in order of their ggml ids.

    Examples
    --------
    >>> from draftgauge import quant
    >>> "Q4_K" in quant.quantizable()
    True
    """
    return core.quant_quantizable()


def block(type: str) -> tuple[int, int]:
    """Values in a block of a type, and bytes of a block.

    Raises
    ------
    QuantError
        When the type is unknown.

    Examples
    --------
    >>> from draftgauge import quant
    >>> quant.block("Q4_K")
    (256, 144)
    """
    return core.quant_block(type)


def validate(data: npt.NDArray[Any], type: str) -> tuple[int, str, float] | None:
    """Look for a scale that is not finite.

    Parameters
    ----------
    data : ndarray
        Whole blocks, as they lie in the file.
    type : str
        ggml's name of the type.

    Returns
    -------
    tuple of int, str, float, or None
        Index of the first bad block or value, the field's name and its value; ``None`` when there is none.

    Raises
    ------
    QuantError
        When the type is unknown, or `data` is no whole number of blocks.
    """
    import numpy as np

    return core.quant_validate(np.ascontiguousarray(data).reshape(-1).view(np.uint8), type)


def dequantize(data: npt.NDArray[Any], type: str, shape: int | Sequence[int]) -> npt.NDArray[np.float32]:
    """Turn quantized bytes into floats.

    Parameters
    ----------
    data : ndarray
        The bytes as they lie in the file. C-contiguous data is read where it is, without a copy.
    type : str
        ggml's name of the type, such as ``"Q4_K"``, in any case of letters.
    shape : int or sequence of int
        Row-major shape of the result; its last extent is a whole number of blocks.

    Returns
    -------
    ndarray of float32
        The values, in the given shape.

    Raises
    ------
    QuantError
        When the type is unknown, or `data` has not exactly the bytes of `shape`.
    """
    import numpy as np

    extents = [shape] if isinstance(shape, int) else [int(extent) for extent in shape]
    if any(extent < 0 for extent in extents):
        raise ValueError(f"negative extent: shape: expected extents of at least 0, found {tuple(extents)}")
    return core.quant_dequantize(np.ascontiguousarray(data).reshape(-1).view(np.uint8), type, extents)


def quantize(x: npt.NDArray[Any], type: str, *, imatrix: npt.NDArray[Any] | None = None) -> npt.NDArray[np.uint8]:
    """Turn floats into quantized bytes, byte for byte as ggml does.

    Rows are shared out between threads; the bytes do not depend on that.

    Parameters
    ----------
    x : ndarray, shape [..., columns]
        The values; float32 that is C-contiguous is read where it is. `columns` is a whole number of blocks.
    type : str
        ggml's name of the type, such as ``"Q4_K"``, in any case of letters.
    imatrix : ndarray, shape [columns], optional
        Importance of each column, not negative. Types without a search (Q8_0 and plain floats) ignore it.

    Returns
    -------
    ndarray of uint8, shape [rows, bytes_per_row]
        The bytes as they lie in a file.

    Raises
    ------
    QuantError
        When there is no quantizer for the type, the columns are no whole number of blocks, or a value or weight is
        not finite.

    Examples
    --------
    >>> import numpy as np
    >>> from draftgauge import quant
    >>> x = np.linspace(-1, 1, 64, dtype=np.float32).reshape(2, 32)
    >>> data = quant.quantize(x, "Q8_0")
    >>> data.shape
    (2, 34)
    >>> float(abs(quant.dequantize(data, "Q8_0", x.shape) - x).max()) < 0.005
    True
    """
    import numpy as np

    values = np.ascontiguousarray(x, dtype=np.float32)
    if values.ndim == 0:
        raise ValueError("x: expected rows of values, found a single number")
    rows = values.reshape(-1, values.shape[-1]) if values.shape[-1] else values.reshape(0, 0)
    weights = None if imatrix is None else np.ascontiguousarray(imatrix, dtype=np.float32).reshape(-1)
    return core.quant_quantize(rows, type, weights)
