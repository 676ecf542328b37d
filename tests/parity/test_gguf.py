"""GGUF against gguf-py: its reader takes our files, we take its writer's, and both real models survive a copy."""

from __future__ import annotations

import hashlib
import os
import time
from pathlib import Path

import gguf
import numpy as np
import pytest
from gguf import GGMLQuantizationType, GGUFReader, GGUFValueType, GGUFWriter

import draftgauge as dg

MODELS = Path(os.environ.get("DRAFTGAUGE_MODELS", Path.home() / ".cache" / "draftgauge-peers" / "models"))
REAL = ["smollm2-135m-q4_1.gguf", "gemma3-270m-q4_k_m.gguf"]

SCALARS = {
    "U8": ("uint8", 200),
    "I8": ("int8", -100),
    "U16": ("uint16", 60_000),
    "I16": ("int16", -30_000),
    "U32": ("uint32", 4_000_000_000),
    "I32": ("int32", -2_000_000_000),
    "U64": ("uint64", 2**63 + 5),
    "I64": ("int64", -(2**62)),
    "F32": ("float32", 1.5),
    "F64": ("float64", 1 / 3),
}


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


@pytest.fixture(params=REAL)
def model(request: pytest.FixtureRequest) -> Path:
    path = MODELS / request.param
    if not path.exists():
        pytest.skip(f"{path} is missing: `make test` fetches it")
    return path


def quantized(rng: np.random.Generator, type: str, rows: int) -> tuple[np.ndarray, tuple[int, int]]:
    block_len, block_bytes = gguf.GGML_QUANT_SIZES[GGMLQuantizationType[type]]
    return rng.integers(0, 255, size=(rows, 2 * block_bytes), dtype=np.uint8), (rows, 2 * block_len)


def written_by_gguf_py(path: Path, *, alignment: int | None = None) -> dict[str, np.ndarray]:
    """A file of everything that GGUFWriter can write; gives the expected bytes of each tensor."""
    rng = np.random.default_rng(3)
    writer = GGUFWriter(path, "llama")
    if alignment is not None:
        writer.add_custom_alignment(alignment)
    for name, (dtype, value) in SCALARS.items():
        kind = GGUFValueType[{"F": "FLOAT", "U": "UINT", "I": "INT"}[name[0]] + name[1:]]
        writer.add_key_value(f"one.{dtype}", value, kind)
    writer.add_bool("one.bool", True)
    writer.add_string("one.string", "naïve ✓")
    writer.add_string("one.empty", "")
    writer.add_array("array.ints", [1, -2, 3])
    writer.add_array("array.floats", [0.5, 0.25])
    writer.add_array("array.bools", [True, False])
    writer.add_array("array.strings", ["a", "", "ü"])
    writer.add_array("array.empty", [])
    tensors = {}
    for type in ["Q4_0", "Q4_1", "Q5_0", "Q8_0", "Q4_K", "Q6_K", "IQ4_NL", "MXFP4"]:
        data, _ = quantized(rng, type, 3)
        writer.add_tensor(f"t.{type}", data, raw_dtype=GGMLQuantizationType[type])
        tensors[f"t.{type}"] = data
    for dtype in ["float32", "float16", "float64", "int8", "int16", "int32", "int64"]:
        data = rng.integers(-100, 100, size=(3, 1, 5)).astype(dtype)
        writer.add_tensor(f"t.{dtype}", data)
        tensors[f"t.{dtype}"] = data
    writer.add_tensor("t.vector", np.arange(7, dtype=np.float32))
    tensors["t.vector"] = np.arange(7, dtype=np.float32)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return tensors


@pytest.mark.parametrize("alignment", [None, 64, 8])
def test_reads_what_gguf_py_writes(tmp_path: Path, alignment: int | None) -> None:
    path = tmp_path / "a.gguf"
    tensors = written_by_gguf_py(path, alignment=alignment)
    file = dg.gguf.open(path)
    assert (file.problems, file.version, file.alignment) == ([], 3, alignment or 32)
    for name, (dtype, value) in SCALARS.items():
        assert file.metadata[f"one.{dtype}"] == value
        assert file.metadata.type(f"one.{dtype}") == name.lower()
    assert file.metadata["one.bool"] is True
    assert (file.metadata["one.string"], file.metadata.get("one.empty", "")) == ("naïve ✓", "")
    assert file.metadata["array.ints"].tolist() == [1, -2, 3]
    assert file.metadata["array.ints"].dtype == np.int32
    assert file.metadata["array.floats"].dtype == np.float32
    assert file.metadata["array.bools"].tolist() == [True, False]
    assert file.metadata["array.strings"] == ["a", "", "ü"]
    assert list(file.tensors) == list(tensors)
    for name, data in tensors.items():
        assert file.raw(name).tobytes() == data.tobytes()
        if name.startswith("t.Q"):
            continue
    reader = GGUFReader(path)
    for theirs in reader.tensors:
        ours = file.tensors[theirs.name]
        assert (ours.type, ours.nbytes) == (theirs.tensor_type.name, theirs.n_bytes)
        assert ours.shape == tuple(int(extent) for extent in reversed(theirs.shape))
        assert ours.offset + reader.data_offset == theirs.data_offset


@pytest.mark.parametrize("alignment", [None, 64, 8])
def test_an_untouched_file_of_gguf_py_is_the_same_again(tmp_path: Path, alignment: int | None) -> None:
    path = tmp_path / "a.gguf"
    written_by_gguf_py(path, alignment=alignment)
    file = dg.gguf.open(path)
    file.copy_to(tmp_path / "b.gguf")
    assert (tmp_path / "b.gguf").read_bytes() == path.read_bytes()
    dg.gguf.write(tmp_path / "c.gguf", file.metadata, file.tensors)
    assert (tmp_path / "c.gguf").read_bytes() == path.read_bytes()


def test_a_file_of_gguf_py_without_tensors_is_the_same_again(tmp_path: Path) -> None:
    path = tmp_path / "a.gguf"
    writer = GGUFWriter(path, "llama")
    writer.add_uint32("n", 1)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    dg.gguf.open(path).copy_to(tmp_path / "b.gguf")
    assert (tmp_path / "b.gguf").read_bytes() == path.read_bytes()


def test_gguf_py_reads_what_we_write(tmp_path: Path) -> None:
    path = tmp_path / "a.gguf"
    rng = np.random.default_rng(5)
    metadata = {
        "general.architecture": "llama",
        "general.alignment": 64,
        "int": 7,
        "negative": -7,
        "big": 2**40,
        "float": 0.1,
        "flag": False,
        "text": "naïve ✓",
        "ints": [1, -2, 3],
        "floats": [0.5, 1.0],
        "flags": [True, False],
        "texts": ["a", "", "ü"],
        **{f"numpy.{dtype}": np.dtype(dtype).type(value) for dtype, value in SCALARS.values()},
        **{f"numpy.array.{dtype}": np.array([value, 1], dtype=dtype) for dtype, value in SCALARS.values()},
    }
    q4, shape = quantized(rng, "Q4_K", 4)
    tensors = {
        "f32": rng.standard_normal((3, 5)).astype(np.float32),
        "f16": rng.standard_normal((2, 2, 4)).astype(np.float16),
        "i32": np.arange(6, dtype=np.int32).reshape(2, 3),
        "q4": (q4, "Q4_K", shape),
        "one": np.float32([2.5]),
        "turned": np.arange(6, dtype=np.float32).reshape(2, 3).T,
        "big-endian": np.arange(3, dtype=">f4"),
    }
    dg.gguf.write(path, metadata, tensors)
    reader = GGUFReader(path)
    for key, value in metadata.items():
        found = reader.get_field(key).contents()
        np.testing.assert_array_equal(found, np.float32(value) if key == "float" else value, err_msg=key)
        types = reader.get_field(key).types
        if key.startswith("numpy."):
            dtype = np.asarray(value).dtype.name
            expected = GGUFValueType[dtype.upper()]
            assert types == ([GGUFValueType.ARRAY, expected] if "array" in key else [expected])
    assert reader.get_field("int").types == [GGUFValueType.UINT32]
    assert reader.get_field("ints").types == [GGUFValueType.ARRAY, GGUFValueType.INT32]
    found = {tensor.name: tensor for tensor in reader.tensors}
    assert list(found) == list(tensors)
    for name, value in tensors.items():
        expected = value[0] if isinstance(value, tuple) else value
        np.testing.assert_array_equal(found[name].data, expected, err_msg=name)
    assert reader.alignment == 64
    assert found["q4"].tensor_type == GGMLQuantizationType.Q4_K


def test_c14_both_real_models_are_the_same_again(model: Path, tmp_path: Path) -> None:
    file = dg.gguf.open(model)
    assert file.problems == []
    assert file.validate() == []
    file.require_valid()
    expected = digest(model)
    file.copy_to(tmp_path / "copy.gguf")
    assert digest(tmp_path / "copy.gguf") == expected
    dg.gguf.write(tmp_path / "copy.gguf", file.metadata, file.tensors)
    assert digest(tmp_path / "copy.gguf") == expected
    (tmp_path / "copy.gguf").unlink()


# gguf-py takes most of a minute to open a vocabulary of a quarter of a million tokens.
@pytest.mark.parametrize("model", [REAL[0], pytest.param(REAL[1], marks=pytest.mark.slow)], indirect=True)
def test_c14_both_real_models_read_as_gguf_py_reads_them(model: Path) -> None:
    file = dg.gguf.open(model)
    reader = GGUFReader(model)
    fields = {key: field for key, field in reader.fields.items() if not key.startswith("GGUF.")}
    assert list(file.metadata) == list(fields)
    for key, field in fields.items():
        part = slice(None) if len(field.data) < 100_000 else slice(None, None, 37)
        found = file.metadata[key]
        np.testing.assert_array_equal(found[part] if len(field.data) > 1 else found, field.contents(part), err_msg=key)
    assert list(file.tensors) == [tensor.name for tensor in reader.tensors]
    for index, theirs in enumerate(reader.tensors):
        ours = file.tensors[theirs.name]
        assert (ours.type, ours.shape) == (theirs.tensor_type.name, tuple(int(n) for n in reversed(theirs.shape)))
        np.testing.assert_array_equal(file.raw(theirs.name), theirs.data.reshape(-1).view(np.uint8))
        if index % 40 == 0 and theirs.n_elements < 5_000_000:
            expected = gguf.dequantize(theirs.data, theirs.tensor_type).reshape(ours.shape)
            np.testing.assert_array_equal(file.dequantize(theirs.name).view(np.uint32), expected.view(np.uint32))
    report = file.report()
    assert report["bytes"] == model.stat().st_size
    assert report["parameters"] == sum(int(tensor.n_elements) for tensor in reader.tensors)
    assert sum(total["bytes"] for total in report["types"].values()) == sum(tensor.n_bytes for tensor in reader.tensors)


def test_a_real_model_opens_in_milliseconds(model: Path) -> None:
    from draftgauge._door import core

    times = []
    for _ in range(20):
        start = time.perf_counter()
        core.gguf_open(os.fspath(model))
        times.append(time.perf_counter() - start)
    print(f"{model.name}: opened in {min(times) * 1e3:.2f} ms")
    assert min(times) < 0.010
