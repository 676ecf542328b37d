"""A drafter whose drafts depend on the target's features, built by linear algebra instead of training.

One layer, a block of two rows (anchor and mask), each predicting the token after its own place. Two heads look one and
two positions back: keys and queries are constant, and the rotary embedding alone decides where they meet. What they
fetch are principal components of the tapped layer; a ridge regression reads the target's choices from the result.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

import draftgauge as dg

WIDTH, HEAD = 256, 64
EMBEDDED = 120  # channels of the token's embedding
CONSTANT, IS_MASK = 120, 121  # channels that are the same for every row, and that tell the mask
NEAR, FAR = 128, 192  # channels that receive what the two heads fetch
BASE, SCALE = 3.0, 2.0
EPS = 1e-5
CLASSES = 600
# The attention peaks so sharply that what lies further back has no weight.
REACH = 128
FREQUENCIES = BASE ** (-2 * np.arange(HEAD // 2) / HEAD)


def _norm(x: np.ndarray) -> np.ndarray:
    return x / np.sqrt((x**2).mean(-1, keepdims=True) + EPS)


def _direction(offset: int) -> np.ndarray:
    """The query whose score with a constant key is largest `offset` positions away."""
    return np.concatenate([np.cos(offset * FREQUENCIES), np.sin(offset * FREQUENCIES)])


def _hidden(table: np.ndarray, context: np.ndarray, tokens: np.ndarray, anchor: int, slot: int) -> np.ndarray:
    """State of one row of the block before the head."""
    start = max(0, anchor - REACH)
    positions = np.arange(start, anchor + 2)
    values = np.zeros((len(positions), HEAD))
    values[: anchor - start] = context[start:anchor, NEAR : NEAR + HEAD]
    x = table[tokens[anchor] if slot == 0 else 0].copy()
    for channel, offset in ((NEAR, -1), (FAR, -2)):
        scores = SCALE * np.cos((positions - anchor - slot - offset)[:, None] * FREQUENCIES).sum(1)
        weights = np.exp(scores - scores.max())
        x[channel : channel + HEAD] += weights / weights.sum() @ values
    return _norm(x)


def write(path: Path, target: dg.Target, tokens: np.ndarray, choices: np.ndarray, *, tap: int, fit: int) -> Path:
    """Fit a drafter to the target's choices on the first `fit` tokens, and write it.

    Parameters
    ----------
    tokens, choices : np.ndarray, [n]
        A text, and the target's choice after each of its positions.
    tap : int
        The layer whose output feeds the drafter.
    fit : int
        Positions that the regression sees.
    """
    features = target.features(tokens.tolist(), [tap])[:, 0].astype(np.float64)
    deviation = features[:fit].std(0) + 1e-6
    seen = features[:fit] / deviation
    hidden = seen.shape[1]
    # Features have no constant channel: the combination nearest to 1 stands in for it.
    constant = np.linalg.solve(seen.T @ seen + 10 * np.eye(hidden), seen.sum(0))
    _, sizes, axes = np.linalg.svd(seen - seen.mean(0), full_matrices=False)
    fc = np.zeros((WIDTH, hidden))
    fc[NEAR : NEAR + HEAD] = axes[:HEAD] / (sizes[:HEAD, None] / np.sqrt(fit)) / deviation
    fc[CONSTANT] = 8 * constant / deviation

    embedding = dg.gguf.open(target.path).dequantize("token_embd.weight")
    mean = embedding[tokens].mean(0)
    _, sizes, axes = np.linalg.svd(embedding[tokens] - mean, full_matrices=False)
    table = np.zeros((len(embedding), WIDTH))
    table[:, :EMBEDDED] = (embedding - mean) @ axes[:EMBEDDED].T / (sizes[:EMBEDDED] / np.sqrt(len(tokens)))
    table[:, CONSTANT] = 4
    table[0] = 0
    table[0, [CONSTANT, IS_MASK]] = 4, 10

    context = _norm(features @ fc.T)
    rows = [(anchor, slot) for anchor in range(4, fit - 2) for slot in (0, 1)]
    states = np.stack([_hidden(table, context, tokens, *row) for row in rows])
    wanted = choices[[anchor + slot for anchor, slot in rows]]
    ids, counts = np.unique(wanted, return_counts=True)
    classes = np.sort(ids[np.argsort(-counts, kind="stable")[:CLASSES]])
    labels = (wanted[:, None] == classes).astype(np.float64)
    head = np.linalg.solve(states.T @ states + 30 * np.eye(WIDTH), states.T @ labels).T

    query, key, value = np.zeros((2 * HEAD, WIDTH)), np.zeros((HEAD, WIDTH)), np.zeros((HEAD, WIDTH))
    query[:HEAD, CONSTANT], query[HEAD:, CONSTANT], key[:, CONSTANT] = _direction(-1), _direction(-2), _direction(0)
    value[:, NEAR : NEAR + HEAD] = np.eye(HEAD)
    output = np.zeros((WIDTH, 2 * HEAD))
    output[NEAR : NEAR + HEAD, :HEAD] = output[FAR : FAR + HEAD, HEAD:] = np.eye(HEAD)
    tensors = {
        "fc.weight": fc,
        "blk.0.attn_q.weight": query,
        "blk.0.attn_k.weight": key,
        "blk.0.attn_v.weight": value,
        "blk.0.attn_output.weight": output,
        "blk.0.ffn_gate.weight": np.zeros((32, WIDTH)),
        "blk.0.ffn_up.weight": np.zeros((32, WIDTH)),
        "blk.0.ffn_down.weight": np.zeros((WIDTH, 32)),
        "output.weight": head,
    }
    norms = ("enc.output_norm", "output_norm", "blk.0.attn_norm", "blk.0.ffn_norm")
    tensors |= {f"{name}.weight": np.ones(WIDTH) for name in norms}
    tensors |= {f"blk.0.{name}.weight": np.ones(HEAD) for name in ("attn_q_norm", "attn_k_norm")}
    arrays: dict[str, Any] = {name: tensor.astype(np.float32) for name, tensor in tensors.items()}
    arrays["token_embd.weight"] = table.astype(np.float16)
    arrays["d2t"] = classes.astype(np.int64)
    keys = {
        "block_count": 1,
        "context_length": 8192,
        "embedding_length": WIDTH,
        "feed_forward_length": 32,
        "attention.head_count": 2,
        "attention.head_count_kv": 1,
        "attention.key_length": HEAD,
        "attention.value_length": HEAD,
        "attention.layer_norm_rms_epsilon": EPS,
        "attention.scale": SCALE,
        "rope.freq_base": BASE,
        "block_size": 2,
        "sample_from_anchor": True,
        "target_layers": [tap + 1],
    }
    metadata = {f"dflash.{key}": value for key, value in keys.items()}
    metadata |= {"general.architecture": "dflash", "tokenizer.ggml.mask_token_id": 0}
    dg.gguf.write(path, metadata, arrays)
    return path
