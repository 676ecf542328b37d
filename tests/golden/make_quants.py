"""Makes the golden vectors of tensor types: blocks of bytes and the f32 values that gguf-py reads in them.

    python tests/golden/make_quants.py tests/golden/quants

A file ``NAME.bin`` holds n blocks, then their n * block_len values (little-endian f32); n follows from the file's size.
The blocks: random ones, all bits clear, all bits set, and for every half-precision field the values that break a
careless reader: smallest subnormals, infinities, quiet and signalling NaN. Q1_0, which gguf-py 0.19 names but does not
read, comes from libgguf 0.2.2.
"""

from __future__ import annotations

import sys
from pathlib import Path

import gguf
import libgguf
import numpy as np

RANDOM_BLOCKS = 8
HARD_HALVES = (0x0001, 0x83FF, 0x7BFF, 0x7C00, 0xFC00, 0x7E01, 0xFD55)
# Byte offsets of the half-precision fields.
HALVES = {
    "F16": [0],
    "Q4_0": [0],
    "Q4_1": [0, 2],
    "Q5_0": [0],
    "Q5_1": [0, 2],
    "Q8_0": [0],
    "Q1_0": [0],
    "Q2_K": [80, 82],
    "Q3_K": [108],
    "Q4_K": [0, 2],
    "Q5_K": [0, 2],
    "Q6_K": [208],
    "IQ2_XXS": [0],
    "IQ2_XS": [0],
    "IQ2_S": [0],
    "IQ3_XXS": [0],
    "IQ3_S": [0],
    "IQ1_S": [0],
    "IQ4_NL": [0],
    "IQ4_XS": [0],
    "TQ1_0": [52],
    "TQ2_0": [64],
}
# Types that gguf-py 0.19 names but does not dequantize.
NOT_READ = {"I8", "I16", "I32", "I64", "F64", "Q8_1", "Q8_K"}


def blocks_of(name: str, rng: np.random.Generator) -> np.ndarray:
    """Bytes of the blocks to read, ``[n, block_bytes]``."""
    block_len, block_bytes = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[name]]
    if block_len == 1:
        # Plain floats: every exponent, both signs, a few mantissas, and random bits.
        width = 8 * block_bytes
        upper = np.arange(0x10000, step=37, dtype=np.uint64) << np.uint64(width - 16)
        lower = rng.integers(0, 1 << max(width - 16, 1), size=upper.shape, dtype=np.uint64)
        bits = upper | (lower if width > 16 else np.uint64(0))
        return bits.astype(f"<u{block_bytes}").view(np.uint8).reshape(-1, block_bytes)
    rows = [rng.integers(0, 256, size=(RANDOM_BLOCKS, block_bytes), dtype=np.uint8)]
    rows.append(np.zeros((1, block_bytes), dtype=np.uint8))
    rows.append(np.full((1, block_bytes), 0xFF, dtype=np.uint8))
    for at in HALVES.get(name, []):
        # ggml's C code makes a signalling NaN quiet on the way to f32, gguf-py does not: only the latter is followed.
        halves = HARD_HALVES[:-1] if name == "Q1_0" else HARD_HALVES
        hard = rng.integers(0, 256, size=(len(halves), block_bytes), dtype=np.uint8)
        hard[:, at : at + 2] = np.array(halves, dtype="<u2").view(np.uint8).reshape(-1, 2)
        rows.append(hard)
    if name == "MXFP4":
        hard = rng.integers(0, 256, size=(4, block_bytes), dtype=np.uint8)
        hard[:, 0] = (0, 1, 2, 0xFE)
        rows.append(hard)
    if name == "NVFP4":
        hard = rng.integers(0, 256, size=(64, block_bytes), dtype=np.uint8)
        hard[:, :4] = np.arange(256, dtype=np.uint8).reshape(-1, 4)
        rows.append(hard)
    return np.concatenate(rows)


def main(folder: Path) -> None:
    """Writes one file a type into ``folder``."""
    folder.mkdir(parents=True, exist_ok=True)
    for ty in gguf.GGMLQuantizationType:
        if ty.name in NOT_READ:
            continue
        blocks = blocks_of(ty.name, np.random.default_rng(int(ty)))
        with np.errstate(all="ignore"):
            values = libgguf.dequantize_rows(blocks, ty) if ty.name == "Q1_0" else gguf.dequantize(blocks, ty)
        values = np.ascontiguousarray(values, dtype="<f4")
        (folder / f"{ty.name}.bin").write_bytes(blocks.tobytes() + values.tobytes())


if __name__ == "__main__":
    main(Path(sys.argv[1]))
