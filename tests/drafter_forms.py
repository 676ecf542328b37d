"""Every form that a block drafter's file can have, with random weights: what twins and engine are compared on."""

from __future__ import annotations

from typing import Any

import numpy as np

from draftgauge.reference.drafters import BlockSettings

HIDDEN, VOCAB, LAYERS = 256, 320, 2
HEADS, KV_HEADS, HEAD_DIM, FF = 4, 2, 32, 96
SETTINGS = BlockSettings(
    block_size=5, mask_token=4, num_heads=HEADS, num_kv_heads=KV_HEADS, head_dim=HEAD_DIM, windows=(None, None)
)

# Name: changes of the settings, keys of the file, parts of the file.
FORMS: dict[str, tuple[dict[str, Any], dict[str, Any], set[str]]] = {
    "dflash": ({}, {}, set()),
    "dspark": ({"sample_from_anchor": True}, {}, {"markov", "confidence"}),
    "bonus anchor": ({}, {"sample_from_anchor": False}, {"markov"}),
    "causal": ({"causal": True, "sample_from_anchor": True}, {"attention.causal": True}, {"markov"}),
    "reduced": ({"sample_from_anchor": True}, {}, {"markov", "confidence", "reduced"}),
    "tied": ({}, {}, {"embedding"}),
    "gated, partly rotated": ({"rope_dims": 16}, {"rope.dimension_count": 16}, {"gated"}),
    "windows and sinks": (
        {"windows": (6, None)},
        {"attention.sliding_window": 6, "attention.sliding_window_pattern": [True, False]},
        {"sinks"},
    ),
    "keys as values": (
        {"gelu": True, "attention_scale": 0.3, "value_scale": 0.8, "embedding_scale": 1.5},
        {
            "hidden_activation": "gelu_pytorch_tanh",
            "attention.scale": 0.3,
            "attention.value_scale": 0.8,
            "embedding_scale": 1.5,
        },
        {"shared", "post", "scales"},
    ),
    "sections": ({"section_pairs": 8, "still_pairs": 2}, {"rope.dimension_sections": [3, 2, 1, 2]}, set()),
}


def tensors_of(parts: set[str]) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(5)

    def matrix(*shape: int, scale: float = 1.0) -> np.ndarray:
        return (scale * rng.standard_normal(shape) / np.sqrt(shape[-1])).astype(np.float32)

    def near_one(width: int) -> np.ndarray:
        return (1 + 0.1 * rng.standard_normal(width)).astype(np.float32)

    tensors = {
        "fc.weight": matrix(HIDDEN, 2 * HIDDEN),
        "enc.output_norm.weight": near_one(HIDDEN),
        "output_norm.weight": near_one(HIDDEN),
    }
    for layer in range(LAYERS):
        own = {
            "attn_norm": near_one(HIDDEN),
            "ffn_norm": near_one(HIDDEN),
            "attn_q_norm": near_one(HEAD_DIM),
            "attn_k_norm": near_one(HEAD_DIM),
            "attn_q": matrix(HEADS * HEAD_DIM * (2 if "gated" in parts else 1), HIDDEN),
            "attn_k": matrix(KV_HEADS * HEAD_DIM, HIDDEN),
            "attn_v": matrix(KV_HEADS * HEAD_DIM, HIDDEN),
            "attn_output": matrix(HIDDEN, HEADS * HEAD_DIM),
            "ffn_gate": matrix(FF, HIDDEN),
            "ffn_up": matrix(FF, HIDDEN),
            "ffn_down": matrix(HIDDEN, FF),
        }
        if "shared" in parts:
            del own["attn_v"]
        if "post" in parts:
            own |= {"post_attention_norm": near_one(HIDDEN), "post_ffw_norm": near_one(HIDDEN)}
            own["layer_output_scale"] = np.array([0.7], np.float32)
        if "sinks" in parts:
            own["attn_sinks"] = rng.standard_normal(HEADS).astype(np.float32)
        tensors |= {f"blk.{layer}.{name}.weight": values for name, values in own.items()}
    rows = 90 if "reduced" in parts else VOCAB
    if "reduced" in parts:
        tensors["d2t"] = np.sort(rng.permutation(VOCAB)[:rows]).astype(np.int64)
        tensors["output.weight"] = matrix(rows, HIDDEN)
    if "embedding" in parts:
        tensors["token_embd.weight"] = matrix(VOCAB, HIDDEN)
    if "markov" in parts:
        tensors |= {"markov_w1.weight": matrix(VOCAB, 16), "markov_w2.weight": matrix(rows, 16, scale=8)}
    if "confidence" in parts:
        tensors |= {"conf_proj.weight": matrix(1, HIDDEN + 16), "conf_proj.bias": np.array([0.2], np.float32)}
    if "scales" in parts:
        tensors["fc.scale"] = np.array([1.4], np.float32)
    return tensors


def borrowed(tensors: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The tensors with an embedding table and a head that a target would lend."""
    rng = np.random.default_rng(9)
    table = rng.standard_normal((VOCAB, HIDDEN)).astype(np.float32)
    head = (rng.standard_normal((VOCAB, HIDDEN)) / np.sqrt(HIDDEN)).astype(np.float32)
    whole = {"token_embd.weight": table, **tensors}
    if "token_embd.weight" not in tensors:
        whole.setdefault("output.weight", head)
    return whole


def features_of(start: int, end: int) -> np.ndarray:
    """Features of some positions of a sequence. [end - start, 2 * HIDDEN]"""
    rows = np.random.default_rng(3).standard_normal((end, 2 * HIDDEN)).astype(np.float32)
    return rows[start:]
