"""Makes the golden vectors of quantization: rows of values and the bytes that libgguf 0.2.2 makes of them.

    python tests/golden/make_quantized.py tests/golden/quantized [rows-of-each-kind]

``input.bin`` holds the importance of each of COLUMNS columns, then the rows (little-endian f32). ``NAME.bin`` holds the
bytes of all rows quantized without importance, then with it. libgguf wraps ggml's own quantizers.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import libgguf
import numpy as np

COLUMNS = 512
TYPES = ("F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K")


def rows_of_each_kind(rng: np.random.Generator) -> Iterator[np.ndarray]:
    """One row of every kind that a quantizer may treat differently."""
    normal = rng.standard_normal(COLUMNS)
    yield 0.02 * normal
    yield rng.laplace(scale=0.05, size=COLUMNS)
    yield rng.standard_t(2, size=COLUMNS)
    yield rng.uniform(0.5, 1, size=COLUMNS)
    yield -rng.uniform(0.5, 1, size=COLUMNS)
    yield np.where(rng.random(COLUMNS) < 0.9, 0, normal)
    yield np.where(np.arange(COLUMNS) % 64 < 48, 0, normal)
    yield np.where(np.arange(COLUMNS) % 37 == 0, 50 * normal, 0.01 * normal)
    yield np.full(COLUMNS, rng.standard_normal())
    yield rng.integers(-3, 4, size=COLUMNS) / 8
    yield np.repeat(rng.standard_normal(COLUMNS // 16), 16)
    yield 1e-6 * normal
    yield 3e-8 * normal
    yield 1e-14 * normal
    yield 1e4 * normal
    yield normal * np.exp2(rng.integers(-20, 3, size=COLUMNS))


def main(folder: Path, repeats: int) -> None:
    """Writes the input and one file a type into ``folder``."""
    folder.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(6)
    rows = [row for _ in range(repeats) for row in rows_of_each_kind(rng)]
    rows.append(np.zeros(COLUMNS))
    x = np.array(rows, dtype="<f4")
    importance = rng.exponential(size=COLUMNS).astype("<f4") ** 2
    importance[::29] = 0
    (folder / "input.bin").write_bytes(importance.tobytes() + x.tobytes())
    for name in TYPES:
        ty = libgguf.GGMLQuantizationType[name]
        plain = libgguf.quantize_rows(x, ty)
        weighted = libgguf.quantize_rows(x, ty, importance) if name not in ("F16", "BF16") else plain
        (folder / f"{name}.bin").write_bytes(plain.tobytes() + weighted.tobytes())


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 1)
