"""GGUF files: open, look, write.

A file is mapped into memory: opening reads its header, and tensor data is touched when it is asked for. Any shard of a
set opens the set. What llama.cpp would refuse is listed under :attr:`GgufFile.problems` where the rest can be read
safely; everything else that a header can get wrong is a :class:`draftgauge.GgufError` naming file, key or tensor.

The format is that of https://github.com/ggml-org/ggml/blob/master/docs/gguf.md, as llama.cpp reads it.

Examples
--------
>>> import tempfile, pathlib
>>> import numpy as np
>>> import draftgauge as dg
>>> folder = tempfile.TemporaryDirectory()
>>> path = pathlib.Path(folder.name) / "tiny.gguf"
>>> weights = np.arange(6, dtype=np.float32).reshape(2, 3)
>>> dg.gguf.write(path, {"general.architecture": "llama", "llama.block_count": 2}, {"w": weights})
>>> f = dg.gguf.open(path)
>>> f.metadata["llama.block_count"]
2
>>> f.tensors["w"]
TensorInfo(name='w', type='F32', shape=(2, 3), offset=0, nbytes=24, shard=0)
>>> f.dequantize("w")
array([[0., 1., 2.],
       [3., 4., 5.]], dtype=float32)

Values may be changed and the rest kept as it is, types included:

>>> dg.gguf.write(path, f.metadata | {"llama.block_count": 3}, f.tensors)
>>> dg.gguf.open(path).metadata["llama.block_count"]
3
>>> folder.cleanup()
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from draftgauge._door import core

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

__all__ = ["GgufFile", "Metadata", "TensorInfo", "diff", "open", "write"]

Path = str | os.PathLike[str]


class Metadata(Mapping[str, Any]):
    """Keys and values of a file, in its order.

    Integers, floats, booleans and strings become Python's own; arrays of numbers and booleans NumPy arrays of their
    dtype, arrays of strings lists. Bytes that are not UTF-8 stay :class:`bytes`. ``metadata | {...}`` is a copy with
    other values, in which a key of the file keeps its type; `without` leaves keys out.

    Examples
    --------
    >>> from draftgauge.gguf import Metadata
    >>> metadata = Metadata.of({"general.architecture": "llama", "llama.block_count": 2, "layers": [1, 5]})
    >>> metadata.type("llama.block_count"), metadata.type("layers")
    ('u32', 'array of i32')
    >>> list((metadata | {"layers": [2]}).without("llama.block_count"))
    ['general.architecture', 'layers']
    """

    def __init__(self, inner: core.GgufMetadata) -> None:
        self._inner = inner
        self._values: dict[str, Any] = {}

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> Metadata:
        """Choose types for plain values.

        Parameters
        ----------
        values : mapping of str
            An ``int`` becomes u32 where it fits, then i32, i64, u64; a ``float`` f32; a list of ``int`` an array of
            i32, a list of ``float`` one of f32, as gguf-py has it. NumPy scalars and one-dimensional arrays keep their
            dtype.

        Raises
        ------
        TypeError
            For other values, lists of several kinds, and empty lists (an empty NumPy array has a type).
        """
        if isinstance(values, Metadata):
            return values
        return cls(core.GgufMetadata.from_pairs(list(values.items())))

    def __getitem__(self, key: str) -> Any:
        if key not in self._values:
            self._values[key] = self._inner.get(key)
        return self._values[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._inner.keys())

    def __len__(self) -> int:
        return len(self._inner)

    def __contains__(self, key: object) -> bool:
        return isinstance(key, str) and key in self._inner

    def __repr__(self) -> str:
        return f"<Metadata of {len(self)} keys>"

    def __or__(self, changes: Mapping[str, Any]) -> Metadata:
        return Metadata(self._inner.updated(list(changes.items())))

    def type(self, key: str) -> str:
        """Name of a value's type in the file: ``"u32"``, ``"string"``, ``"array of f32"``."""
        return self._inner.type_name(key)

    def without(self, *keys: str) -> Metadata:
        """A copy that lacks these keys.

        Raises
        ------
        KeyError
            When a key is not there.
        """
        return Metadata(self._inner.without(list(keys)))


@dataclass(frozen=True)
class TensorInfo:
    """What a file says of a tensor.

    Attributes
    ----------
    name : str
        Its name.
    type : str
        ggml's name of its type, such as ``"Q4_K"``; ``"unknown (id 99)"`` for an id that ggml has not.
    shape : tuple of int
        Row-major: the reverse of the order in the file.
    offset : int
        First byte, from the start of the shard's data.
    nbytes : int
        Bytes of data.
    shard : int
        Index of the shard that holds the data, 0 where there is one file.
    """

    name: str
    type: str
    shape: tuple[int, ...]
    offset: int
    nbytes: int
    shard: int = 0
    _file: core.GgufFile | None = field(default=None, repr=False, compare=False)


class GgufFile:
    """An opened file or set of shards; made by :func:`open`.

    Attributes
    ----------
    path : str
        The path that was opened.
    version, alignment : int
        As the file has them.
    shards : list of (str, int)
        Path and size of each file.
    metadata : Metadata
        Keys and values, those of the first shard where there are several.
    tensors : dict of TensorInfo
        By name, in the order of the file.
    problems, notices : list of str
        What llama.cpp would refuse, and what is worth knowing.
    """

    def __init__(self, inner: core.GgufFile) -> None:
        self._inner = inner
        self.path: str = os.fspath(inner.path)
        self.version: int = inner.version
        self.alignment: int = inner.alignment
        self.shards: list[tuple[str, int]] = [(os.fspath(path), size) for path, size in inner.shards]
        self.metadata: Metadata = Metadata(inner.metadata)
        self.tensors: dict[str, TensorInfo] = {
            name: TensorInfo(name, type, tuple(shape), offset, nbytes, shard, inner)
            for name, type, shape, offset, nbytes, shard in inner.tensors()
        }
        self.problems: list[str] = inner.problems
        self.notices: list[str] = inner.notices

    def __repr__(self) -> str:
        return f"<GgufFile {self.path!r}: {len(self.metadata)} keys, {len(self.tensors)} tensors>"

    def raw(self, name: str) -> npt.NDArray[np.uint8]:
        """The bytes of a tensor where they lie in the file: a read-only view, no copy.

        Raises
        ------
        KeyError
            When there is no such tensor.
        GgufError
            When its type is unknown or its data lies past the end of the file.
        """
        return self._inner.raw(name)

    def dequantize(self, name: str) -> npt.NDArray[np.float32]:
        """The values of a tensor in its shape, equal to gguf-py's bit for bit; the GIL is released meanwhile.

        Raises
        ------
        KeyError
            When there is no such tensor.
        GgufError
            When its type is unknown or its data lies past the end of the file.
        QuantError
            When the type has no float form.
        """
        return self._inner.dequantize(name)

    def require_valid(self) -> None:
        """Refuse a file with problems, as loading a model does.

        Raises
        ------
        GgufError
            With the first problem.
        """
        self._inner.require_valid()

    def validate(self, progress: Callable[[int, int], None] | None = None) -> list[str]:
        """Read all data and find numbers that are not finite.

        Parameters
        ----------
        progress : callable, optional
            Called with bytes read and bytes in all after each tensor.

        Returns
        -------
        list of str
            One line for each tensor with a NaN or infinite scale or value, naming its first such block. Tensors whose
            data cannot be had are among `problems` and are passed over.
        """
        from draftgauge.errors import GgufError

        found = []
        total = sum(info.nbytes for info in self.tensors.values())
        done = 0
        for name, info in self.tensors.items():
            try:
                problem = self._inner.validate(name)
            except GgufError:
                problem = None
            if problem is not None:
                found.append(problem)
            done += info.nbytes
            if progress is not None:
                progress(done, total)
        return found

    def report(self) -> dict[str, Any]:
        """Everything that ``draftgauge inspect --json`` prints, as a dictionary."""
        report: dict[str, Any] = json.loads(self._inner.report())
        return report

    def copy_to(self, path: Path) -> None:
        """Write the file again, byte for byte; a set of shards becomes one file.

        The file is written beside its place and renamed when it is whole.
        """
        self._inner.write_to(os.fspath(path))


def open(path: Path) -> GgufFile:
    """Open a file, or the whole set when it is one shard of several.

    Parameters
    ----------
    path : path
        A ``.gguf`` file.

    Raises
    ------
    FileNotFoundError
        When there is no such file.
    GgufError
        When the header cannot be read or is ambiguous, or a shard is missing.
    """
    return GgufFile(core.gguf_open(os.fspath(path)))


def diff(left: GgufFile, right: GgufFile, *, data: bool = False) -> dict[str, Any]:
    """What two files say differently.

    Parameters
    ----------
    left, right : GgufFile
        The files.
    data : bool
        Whether to compare values too.

    Returns
    -------
    dict
        ``equal``; ``metadata`` and ``tensors``, each with ``only_left``, ``only_right`` and ``changed``; ``data``: for
        each tensor that both have in one shape ``equal``, ``relative_error`` (norm of the difference over the norm of
        the left values) and ``max_abs_error``, or ``None`` where data was not compared.
    """
    result: dict[str, Any] = json.loads(core.gguf_diff(left._inner, right._inner, data))
    return result


def write(path: Path, metadata: Mapping[str, Any], tensors: Mapping[str, Any]) -> None:
    """Write a file: beside its place first, renamed when it is whole.

    ``write(path, f.metadata, f.tensors)`` of an opened single file writes the same bytes again.

    Parameters
    ----------
    path : path
        Where to.
    metadata : mapping of str
        :class:`Metadata` as it is, other mappings by the rules of :meth:`Metadata.of`. ``general.alignment`` sets the
        alignment. The keys of a split set are left out, since one file is written.
    tensors : mapping of str
        In the order in which they are written. A :class:`TensorInfo` of an opened file stands for its data; an array of
        floats or signed integers is written in its dtype; ``(bytes, type, shape)`` gives quantized data as an array of
        uint8.

    Raises
    ------
    TypeError, ValueError
        For values and arrays that GGUF has no type for.
    GgufError, QuantError
        When a name, shape or number of bytes is not what the format takes.
    """
    typed = Metadata.of(metadata)
    rows = [(name, *_tensor(name, value)) for name, value in tensors.items()]
    core.gguf_write(os.fspath(path), typed._inner, rows)


_DTYPES = {
    "float32": "F32",
    "float16": "F16",
    "float64": "F64",
    "int8": "I8",
    "int16": "I16",
    "int32": "I32",
    "int64": "I64",
}


def _tensor(name: str, value: Any) -> tuple[str, list[int], npt.NDArray[np.uint8]]:
    import numpy as np

    if isinstance(value, TensorInfo):
        if value._file is None:
            raise ValueError(f"tensor {name}: expected the TensorInfo of an opened file, found one without data")
        return value.type, list(value.shape), value._file.raw(value.name)
    if isinstance(value, tuple):
        data, type, shape = value
        data = np.asarray(data)
        if data.dtype != np.uint8:
            raise TypeError(f"tensor {name}: expected quantized data as uint8, found {data.dtype}")
        return type, [int(extent) for extent in shape], np.ascontiguousarray(data).reshape(-1)
    array = np.asarray(value)
    type = _DTYPES.get(array.dtype.name)
    if type is None:
        expected = ", ".join(_DTYPES)
        raise TypeError(f"tensor {name}: expected (bytes, type, shape) or an array of {expected}, found {array.dtype}")
    shape = list(array.shape)
    # GGUF is little-endian, whatever the array is.
    little = np.ascontiguousarray(array, dtype=array.dtype.newbyteorder("<"))
    return type, shape, little.reshape(-1).view(np.uint8)
