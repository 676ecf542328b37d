"""Small models and importance matrices that are the same everywhere, for comparison with llama-quantize."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

import draftgauge as dg

# Name: layers, hidden size, heads, key and value heads, MLP width, whether the head is tied.
MODELS = {
    "grouped": (18, 256, 8, 2, 256, False),
    "tied": (9, 256, 4, 2, 512, True),
    "narrow": (8, 96, 4, 4, 160, False),  # rows that no block of 256 divides
}
VOCAB = 320


def _values(seed: int, *shape: int) -> np.ndarray:
    """Numbers between -1 and 1 from whole numbers alone (splitmix64's mixing)."""
    x = np.arange(int(np.prod(shape)), dtype=np.uint64) + np.uint64(seed * 0x9E3779B97F4A7C15 % 2**64)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    unit = ((x ^ (x >> np.uint64(31))) >> np.uint64(40)).astype(np.float32) / np.float32(1 << 23)
    return (unit - np.float32(1)).reshape(shape)


def write(folder: Path, name: str) -> tuple[Path, Path]:
    """Write a model in F16 and an importance matrix for it, and give their paths."""
    layers, hidden, heads, kv_heads, ff, tied = MODELS[name]
    head_dim = hidden // heads
    shapes: dict[str, tuple[int, ...]] = {"token_embd.weight": (VOCAB, hidden), "output_norm.weight": (hidden,)}
    if not tied:
        shapes["output.weight"] = (VOCAB, hidden)
    for layer in range(layers):
        shapes |= {
            f"blk.{layer}.{part}.weight": shape
            for part, shape in {
                "attn_norm": (hidden,),
                "ffn_norm": (hidden,),
                "attn_q": (hidden, hidden),
                "attn_k": (kv_heads * head_dim, hidden),
                "attn_v": (kv_heads * head_dim, hidden),
                "attn_output": (hidden, hidden),
                "ffn_gate": (ff, hidden),
                "ffn_up": (ff, hidden),
                "ffn_down": (hidden, ff),
            }.items()
        }
    first = 1000 * (1 + list(MODELS).index(name))
    tensors: dict[str, np.ndarray] = {}
    for number, (tensor, shape) in enumerate(shapes.items(), start=first):
        vector = len(shape) == 1
        tensors[tensor] = np.ones(shape, np.float32) if vector else (_values(number, *shape) / 20).astype(np.float16)
    keys = {
        "context_length": 512,
        "embedding_length": hidden,
        "block_count": layers,
        "feed_forward_length": ff,
        "attention.head_count": heads,
        "attention.head_count_kv": kv_heads,
        "attention.layer_norm_rms_epsilon": 1e-5,
        "rope.dimension_count": head_dim,
    }
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    tokens += [f"w{number}" for number in range(len(tokens), VOCAB)]
    metadata: dict[str, Any] = {"general.architecture": "llama", "general.file_type": 1}
    metadata |= {f"llama.{key}": value for key, value in keys.items()}
    metadata |= {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.scores": [0.0] * VOCAB,
        "tokenizer.ggml.token_type": [2, 3, 3, *[6] * 256, *[1] * (VOCAB - 259)],
    }
    model = folder / f"{name}.gguf"
    dg.gguf.write(model, metadata, tensors)

    sums: dict[str, np.ndarray] = {}
    for number, (tensor, shape) in enumerate(shapes.items(), start=first + 500):
        if tensor.startswith("blk.") and len(shape) == 2:
            sums[f"{tensor}.in_sum2"] = np.abs(_values(number, 1, shape[1])) * 5 + np.float32(0.01)
            sums[f"{tensor}.counts"] = np.full((1, 1), 11, np.float32)
    # Relative, since its name becomes a value of the output.
    matrix = folder / f"{name}.imatrix.gguf"
    keys = {"imatrix.datasets": ["text.txt"], "imatrix.chunk_count": 7, "imatrix.chunk_size": 512}
    dg.gguf.write(matrix, {"general.architecture": "imatrix", "general.type": "imatrix", **keys}, sums)
    return model, matrix
