"""Writes block drafters of random weights for the real model, in the format of llama.cpp's ``dflash`` architecture."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

import draftgauge as dg

HIDDEN, VOCAB = 576, 49152


def write(
    path: Path, *, markov: bool = False, draft_vocab: int = 1024, metadata: dict[str, Any] | None = None, seed: int = 1
) -> Path:
    """Write a drafter of one layer with a head of its own over a reduced vocabulary."""
    rng = np.random.default_rng(seed)

    def matrix(*shape: int) -> np.ndarray:
        return (rng.standard_normal(shape) / np.sqrt(shape[-1])).astype(np.float32)

    def ones(width: int) -> np.ndarray:
        return np.ones(width, np.float32)

    tensors: dict[str, np.ndarray] = {
        "fc.weight": matrix(HIDDEN, 2 * HIDDEN),
        "enc.output_norm.weight": ones(HIDDEN),
        "output_norm.weight": ones(HIDDEN),
        "blk.0.attn_norm.weight": ones(HIDDEN),
        "blk.0.ffn_norm.weight": ones(HIDDEN),
        "blk.0.attn_q_norm.weight": ones(64),
        "blk.0.attn_k_norm.weight": ones(64),
        "blk.0.attn_q.weight": matrix(128, HIDDEN),
        "blk.0.attn_k.weight": matrix(64, HIDDEN),
        "blk.0.attn_v.weight": matrix(64, HIDDEN),
        "blk.0.attn_output.weight": matrix(HIDDEN, 128),
        "blk.0.ffn_gate.weight": matrix(64, HIDDEN),
        "blk.0.ffn_up.weight": matrix(64, HIDDEN),
        "blk.0.ffn_down.weight": matrix(HIDDEN, 64),
        "output.weight": matrix(draft_vocab, HIDDEN),
        "d2t": np.sort(rng.permutation(VOCAB)[:draft_vocab]).astype(np.int64),
    }
    if markov:
        tensors["markov_w1.weight"] = matrix(VOCAB, 8)
        tensors["markov_w2.weight"] = matrix(draft_vocab, 8)
        tensors["conf_proj.weight"] = 4 * matrix(1, HIDDEN + 8)
        tensors["conf_proj.bias"] = np.zeros(1, np.float32)
    keys: dict[str, Any] = {
        "general.architecture": "dflash",
        "dflash.block_count": 1,
        "dflash.context_length": 8192,
        "dflash.embedding_length": HIDDEN,
        "dflash.feed_forward_length": 64,
        "dflash.attention.head_count": 2,
        "dflash.attention.head_count_kv": 1,
        "dflash.attention.key_length": 64,
        "dflash.attention.value_length": 64,
        "dflash.attention.layer_norm_rms_epsilon": 1e-5,
        "dflash.rope.freq_base": 100000.0,
        "dflash.block_size": 5,
        "dflash.target_layers": [10, 21],
        "tokenizer.ggml.mask_token_id": 0,
        **(metadata or {}),
    }
    dg.gguf.write(path, {key: value for key, value in keys.items() if value is not None}, tensors)
    return path
