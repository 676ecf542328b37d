"""The Python face of GGUF files: views, values, refusals."""

from __future__ import annotations

import gc
import json
import struct
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import draftgauge as dg


@pytest.fixture
def path(tmp_path: Path) -> Path:
    target = tmp_path / "a.gguf"
    weights = {"w": np.arange(6, dtype=np.float32).reshape(2, 3), "v": np.float32([1, 2])}
    dg.gguf.write(target, {"general.architecture": "llama", "llama.block_count": 2}, weights)
    return target


def test_raw_is_a_read_only_view_that_keeps_the_file(path: Path) -> None:
    raw = dg.gguf.open(path).raw("w")
    gc.collect()
    assert not raw.flags.owndata and not raw.flags.writeable
    assert raw.dtype == np.uint8
    np.testing.assert_array_equal(raw.view(np.float32), np.arange(6, dtype=np.float32))
    with pytest.raises(ValueError, match="read-only"):
        raw[0] = 1
    with pytest.raises(ValueError, match="WRITEABLE"):
        raw.flags.writeable = True
    assert dg.gguf.open(path).raw("w").ctypes.data != 0


def test_metadata_is_a_mapping(path: Path) -> None:
    metadata = dg.gguf.open(path).metadata
    assert dict(metadata) == {"general.architecture": "llama", "llama.block_count": 2}
    assert "llama.block_count" in metadata and "no" not in metadata and 7 not in metadata
    with pytest.raises(KeyError):
        metadata["no"]
    with pytest.raises(KeyError):
        metadata.without("no")


def test_changes_keep_the_types_of_the_file() -> None:
    before = dg.gguf.Metadata.of(
        {"a": np.uint16(1), "b": np.float64(1), "c": np.uint32([1, 2]), "d": "x", "e": np.int64(1), "f": 1.0}
    )
    after = before | {"a": 7, "b": 1 / 3, "c": [3], "d": "y", "e": 2, "f": 2, "new": 5}
    assert {key: after.type(key) for key in after} == {
        "a": "u16", "b": "f64", "c": "array of u32", "d": "string", "e": "i64", "f": "f32", "new": "u32",
    }  # fmt: skip
    assert (after["a"], after["b"], after["c"].tolist(), after["f"]) == (7, 1 / 3, [3], 2.0)
    assert before["a"] == 1
    for wrong in ({"a": 70_000}, {"a": -1}, {"a": "x"}, {"d": 1}, {"c": [-1]}, {"a": True}):
        with pytest.raises(TypeError, match=r"metadata value: \w: expected .* as in the file, found "):
            before | wrong


@pytest.mark.parametrize("value", [[], [1, "a"], [True, 2], [[1]], None, {}, 2**64, np.zeros((2, 2)), np.complex64(1)])
def test_values_without_a_type_are_refused(value: object) -> None:
    with pytest.raises(TypeError, match="metadata value: k: expected "):
        dg.gguf.Metadata.of({"k": value})


def test_tensors_without_a_type_are_refused(tmp_path: Path) -> None:
    write = lambda value: dg.gguf.write(tmp_path / "b.gguf", {}, {"t": value})  # noqa: E731
    with pytest.raises(TypeError, match=r"tensor t: expected .* found uint8"):
        write(np.zeros(3, np.uint8))
    with pytest.raises(TypeError, match="expected quantized data as uint8"):
        write((np.zeros(18, np.int8), "Q4_0", (32,)))
    with pytest.raises(dg.GgufError, match=r"tensor data has the wrong size: .*: expected 36 bytes, found 18"):
        write((np.zeros(18, np.uint8), "Q4_0", (2, 32)))
    with pytest.raises(dg.QuantError):
        write((np.zeros(18, np.uint8), "Q9_9", (32,)))
    with pytest.raises(ValueError, match="without data"):
        write(dg.gguf.TensorInfo("t", "F32", (1,), 0, 4))
    assert list(tmp_path.iterdir()) == []


def test_errors_carry_their_evidence(tmp_path: Path) -> None:
    bad = tmp_path / "bad.gguf"
    bad.write_bytes(bytes([0x47, 0x47, 0x55, 0x46]) + struct.pack("<IQQ", 3, 0, 500_000_000))
    with pytest.raises(dg.GgufError) as caught:
        dg.gguf.open(bad)
    assert str(caught.value) == f"metadata count exceeds the file: {bad}: expected at most 0, found 500000000"
    error = caught.value
    assert (error.what, error.path, error.expected, error.found) == (
        "metadata count exceeds the file", str(bad), "at most 0", "500000000",
    )  # fmt: skip
    with pytest.raises(FileNotFoundError):
        dg.gguf.open(tmp_path / "none.gguf")


def test_c09_an_unknown_type_is_an_error_when_used(tmp_path: Path, path: Path) -> None:
    data = bytearray(path.read_bytes())
    # The type of the second tensor stands before its offset.
    at = data.index(struct.pack("<IQ", 0, 32))
    data[at : at + 4] = struct.pack("<I", 99)
    odd = tmp_path / "odd.gguf"
    odd.write_bytes(data)
    file = dg.gguf.open(odd)
    assert file.problems == ["unknown tensor type: tensor v: expected a type of ggml, found id 99"]
    assert file.tensors["v"].type == "unknown (id 99)"
    np.testing.assert_array_equal(file.dequantize("w"), np.arange(6, dtype=np.float32).reshape(2, 3))
    for use in (file.raw, file.dequantize):
        with pytest.raises(dg.GgufError, match="tensor has an unknown type"):
            use("v")
        with pytest.raises(KeyError):
            use("none")
    with pytest.raises(dg.GgufError):
        file.require_valid()
    file.copy_to(tmp_path / "again.gguf")
    assert (tmp_path / "again.gguf").read_bytes() == bytes(data)


def test_report_and_difference(path: Path, tmp_path: Path) -> None:
    file = dg.gguf.open(path)
    report = file.report()
    assert list(report) == [
        "path", "version", "alignment", "shards", "architecture", "name", "parameters", "bytes", "types", "metadata",
        "tensors", "problems", "notices", "pairing",
    ]  # fmt: skip
    assert report["shards"] == [{"path": str(path), "bytes": path.stat().st_size}]
    assert report["tensors"][0] == {"name": "w", "type": "F32", "shape": [2, 3], "offset": 0, "bytes": 24}
    json.dumps(report, allow_nan=False)
    other = tmp_path / "b.gguf"
    dg.gguf.write(other, file.metadata | {"llama.block_count": 3}, {"w": file.tensors["w"], "v": np.float32([1, 4])})
    difference = dg.gguf.diff(file, dg.gguf.open(other), data=True)
    assert not difference["equal"]
    assert difference["metadata"]["changed"] == [{"name": "llama.block_count", "left": "u32 2", "right": "u32 3"}]
    assert [line["equal"] for line in difference["data"]] == [True, False]
    assert difference["data"][1]["relative_error"] == pytest.approx(2 / 5**0.5)
    assert dg.gguf.diff(file, file)["equal"]


def test_validate_names_the_block(tmp_path: Path) -> None:
    path = tmp_path / "a.gguf"
    dg.gguf.write(path, {}, {"good": np.float32([1]), "bad": np.float32([0, 1, np.inf])})
    seen: list[tuple[int, int]] = []
    problems = dg.gguf.open(path).validate(lambda done, total: seen.append((done, total)))
    assert problems == [
        "tensor holds a number that is not finite: tensor bad: expected finite scales and values, "
        "found block 2: value is inf"
    ]
    assert seen == [(4, 16), (16, 16)]


def test_c20_damaged_files_become_exceptions(path: Path, tmp_path: Path) -> None:
    data = path.read_bytes()
    target = tmp_path / "damaged.gguf"
    for length in range(len(data)):
        target.write_bytes(data[:length])
        try:
            dg.gguf.open(target).report()
        except dg.GgufError as error:
            assert str(target) in str(error)


keys = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=12)
values = st.one_of(
    st.booleans(),
    st.integers(-(2**63), 2**64 - 1),
    st.floats(width=32, allow_nan=False),
    st.text(st.characters(exclude_categories=["Cs"]), max_size=20),
    st.lists(st.text(st.characters(exclude_categories=["Cs"]), max_size=5), min_size=1, max_size=4),
    st.lists(st.integers(-(2**31), 2**31 - 1), min_size=1, max_size=4),
    st.lists(st.booleans(), min_size=1, max_size=4),
)


@settings(max_examples=60, deadline=None)
@given(metadata=st.dictionaries(keys, values, max_size=5), sizes=st.lists(st.integers(0, 9), max_size=3))
def test_what_is_written_is_read(tmp_path_factory: pytest.TempPathFactory, metadata: dict, sizes: list[int]) -> None:
    metadata.pop("general.alignment", None)
    folder = tmp_path_factory.mktemp("gguf")
    tensors = {f"t{index}": np.arange(size, dtype=np.float32) for index, size in enumerate(sizes)}
    dg.gguf.write(folder / "a.gguf", metadata, tensors)
    file = dg.gguf.open(folder / "a.gguf")
    assert file.problems == []
    assert list(file.metadata) == list(metadata)
    for key, value in metadata.items():
        found = file.metadata[key]
        assert (found.tolist() if isinstance(found, np.ndarray) else found) == value
    for name, data in tensors.items():
        np.testing.assert_array_equal(file.dequantize(name), data)
    dg.gguf.write(folder / "b.gguf", file.metadata, file.tensors)
    assert (folder / "a.gguf").read_bytes() == (folder / "b.gguf").read_bytes()
