"""Block drafters in plain NumPy: DFlash and DSpark as their formulas read.

Formats and maths are those of llama.cpp b11434's ``dflash`` architecture; the Rust engine is tested against this and
against llama-server itself.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

__all__ = ["BlockDraft", "BlockDrafter", "BlockSettings"]

Array = npt.NDArray[np.float32]


@dataclass(frozen=True)
class BlockSettings:
    """What is no weight.

    Attributes
    ----------
    block_size, mask_token : int
        Width of the block, anchor included, and the token that fills it.
    num_heads, num_kv_heads, head_dim : int
        Shape of the attention.
    sample_from_anchor : bool
        Whether the anchor's own row predicts.
    causal : bool
        Whether a row sees only the rows of its block before it.
    windows : sequence of int or None
        Sliding window of each layer.
    rope_base : float
        Base of the rotary frequencies.
    rope_dims : int or None
        Rotated dimensions of a head; all of them where ``None``.
    still_pairs : int
        How many rotary pairs of each `section_pairs` stand still: the fourth section of a multimodal embedding.
    section_pairs : int
        Sum of the sections; 0 for the ordinary embedding.
    eps : float
        Added to the mean square of every norm.
    attention_scale, value_scale, embedding_scale : float or None, float, float
        Factors; 1 / sqrt(head_dim) where the first is ``None``.
    gelu : bool
        Whether the MLP's gate is a GELU (its tanh form) instead of a SiLU.
    """

    block_size: int
    mask_token: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    sample_from_anchor: bool = False
    causal: bool = False
    windows: Sequence[int | None] = ()
    rope_base: float = 10000.0
    rope_dims: int | None = None
    still_pairs: int = 0
    section_pairs: int = 0
    eps: float = 1e-5
    attention_scale: float | None = None
    value_scale: float = 1.0
    embedding_scale: float = 1.0
    gelu: bool = False


@dataclass(frozen=True)
class BlockDraft:
    """What one block proposes.

    Attributes
    ----------
    tokens : ndarray of int64, [drafts]
        The drafts.
    logits : ndarray of float32, [drafts, rows of the head]
        Logits with the Markov head's bias.
    confidence : ndarray of float32, [drafts], or None
        The confidence head's chances.
    """

    tokens: npt.NDArray[np.int64]
    logits: Array
    confidence: Array | None


@dataclass
class BlockDrafter:
    """A drafter and the positions that it has seen.

    Attributes
    ----------
    weights : mapping of str to ndarray
        Tensors by their names in the file, row-major float32; ``token_embd.weight`` and ``output.weight`` are the
        target's where the file has none. ``d2t`` is int64.
    settings : BlockSettings
        Everything else.
    """

    weights: Mapping[str, npt.NDArray[np.generic]]
    settings: BlockSettings
    keys: list[Array] = field(default_factory=list)  # [layers][positions, num_kv_heads, head_dim]
    values: list[Array] = field(default_factory=list)

    def observe(self, features: Array) -> None:
        """Inject the features of the next positions.

        Parameters
        ----------
        features : ndarray, [positions, taps * hidden of the target]
            Tapped layers side by side.
        """
        start = len(self.keys[0]) if self.keys else 0
        x = features @ self._weight("fc.weight").T * self._scalar("fc.scale")
        x = _rms_norm(x, self._weight("enc.output_norm.weight"), self.settings.eps)
        positions = np.arange(start, start + len(x))
        for layer in range(self._layers()):
            key, value = self._keys_values(x, layer, positions)
            if layer == len(self.keys):
                self.keys.append(key)
                self.values.append(value)
            else:
                self.keys[layer] = np.concatenate([self.keys[layer], key])
                self.values[layer] = np.concatenate([self.values[layer], value])

    def draft(self, anchor: int, position: int) -> BlockDraft:
        """Propose what follows a token at `position`, from the features of the positions before it.

        Parameters
        ----------
        anchor : int
            The token.
        position : int
            Where it stands; features of at least as many positions have been observed.
        """
        settings = self.settings
        tokens = [anchor] + [settings.mask_token] * (settings.block_size - 1)
        x = self._weight("token_embd.weight")[tokens] * np.float32(settings.embedding_scale)
        for layer in range(self._layers()):
            x = self._layer(x, layer, position)
        first = 0 if settings.sample_from_anchor else 1
        states = _rms_norm(x, self._weight("output_norm.weight"), settings.eps)[first:]
        head = "output.weight" if "output.weight" in self.weights else "token_embd.weight"
        logits = states @ self._weight(head).T
        ids: npt.NDArray[np.int64] = np.asarray(self.weights.get("d2t", np.arange(logits.shape[1])), dtype=np.int64)
        drafts: list[int] = []
        confidence: list[float] = []
        for row, state in zip(logits, states, strict=True):
            previous = drafts[-1] if drafts else anchor
            if "markov_w1.weight" in self.weights:
                embedded = self._weight("markov_w1.weight")[previous]
                row += self._weight("markov_w2.weight") @ embedded * self._scalar("markov_w2.scale")
                if "conf_proj.weight" in self.weights:
                    seen = np.concatenate([state, embedded])
                    weight = self._weight("conf_proj.weight").reshape(-1)
                    chance = seen[: len(weight)] @ weight + self._scalar("conf_proj.bias", 0.0)
                    confidence.append(float(1 / (1 + np.exp(-chance))))
            drafts.append(int(ids[row.argmax()]))
        chances = np.array(confidence, np.float32) if confidence else None
        return BlockDraft(np.array(drafts, np.int64), logits, chances)

    def _layer(self, x: Array, layer: int, start: int) -> Array:
        settings = self.settings
        positions = np.arange(start, start + len(x))
        h = _rms_norm(x, self._part(layer, "attn_norm"), settings.eps)
        query = (h @ self._part(layer, "attn_q").T).reshape(len(x), settings.num_heads, -1)
        # An older form holds an output gate beside the query of each head.
        query, gate = query[..., : settings.head_dim], query[..., settings.head_dim :]
        query = self._rope(_rms_norm(query, self._part(layer, "attn_q_norm"), settings.eps), positions)
        key, value = self._keys_values(h, layer, positions)
        keys = np.concatenate([self.keys[layer][:start], key]) if self.keys else key
        values = np.concatenate([self.values[layer][:start], value]) if self.keys else value
        attended = self._attend(query, keys, values, layer, start)
        if gate.shape[-1]:
            attended = attended / (1 + np.exp(-gate))
        branch = attended.reshape(len(x), -1) @ self._part(layer, "attn_output").T * np.float32(settings.value_scale)
        x = x + self._post(branch, layer, "post_attention_norm")
        u = _rms_norm(x, self._part(layer, "ffn_norm"), settings.eps)
        gated = u @ self._part(layer, "ffn_gate").T
        gated = _gelu(gated) if settings.gelu else gated / (1 + np.exp(-gated))
        branch = (gated * (u @ self._part(layer, "ffn_up").T)) @ self._part(layer, "ffn_down").T
        x = x + self._post(branch, layer, "post_ffw_norm")
        scaled: Array = x * self._scalar(f"blk.{layer}.layer_output_scale.weight")
        return scaled

    def _keys_values(self, x: Array, layer: int, positions: npt.NDArray[np.int64]) -> tuple[Array, Array]:
        settings = self.settings
        shape = (len(x), settings.num_kv_heads, settings.head_dim)
        key = (x @ self._part(layer, "attn_k").T).reshape(shape)
        if f"blk.{layer}.attn_v.weight" in self.weights:
            value = (x @ self._part(layer, "attn_v").T).reshape(shape)
        else:
            # Keys serve as values: normed without a weight, not rotated.
            value = _rms_norm(key, None, settings.eps)
        return self._rope(_rms_norm(key, self._part(layer, "attn_k_norm"), settings.eps), positions), value

    def _attend(self, query: Array, keys: Array, values: Array, layer: int, start: int) -> Array:
        """Attention of a block's rows over the context and the block. [rows, num_heads, head_dim]"""
        settings = self.settings
        group = settings.num_heads // settings.num_kv_heads
        scale = settings.attention_scale or settings.head_dim**-0.5
        scores = np.einsum("rhd,phd->hrp", query, np.repeat(keys, group, axis=1)) * np.float32(scale)
        rows, places = np.arange(start, start + len(query))[:, None], np.arange(len(keys))[None]
        hidden = (places > rows) & (places >= start) if settings.causal else np.zeros((len(query), len(keys)), bool)
        window = settings.windows[layer] if settings.windows else None
        if window is not None:
            hidden = hidden | (rows - places >= window)
        scores = np.where(hidden, -np.inf, scores)
        sinks = self.weights.get(f"blk.{layer}.attn_sinks.weight")
        if sinks is not None:
            # An extra logit that takes its share of the weight and brings no value.
            extra = np.broadcast_to(np.asarray(sinks, np.float32)[:, None, None], (*scores.shape[:2], 1))
            scores = np.concatenate([scores, extra], axis=2)
        weights = np.exp(scores - scores.max(axis=2, keepdims=True))
        weights = (weights / weights.sum(axis=2, keepdims=True))[..., : len(keys)]
        out: Array = np.einsum("hrp,phd->rhd", weights, np.repeat(values, group, axis=1)).astype(np.float32)
        return out

    def _rope(self, x: Array, positions: npt.NDArray[np.int64]) -> Array:
        """Rotate pairs (i, i + dims / 2). [rows, heads, head_dim]"""
        settings = self.settings
        dims = settings.rope_dims or settings.head_dim
        frequencies = settings.rope_base ** (-2.0 * np.arange(dims // 2) / dims)
        if settings.section_pairs:
            moving = settings.section_pairs - settings.still_pairs
            frequencies[np.arange(dims // 2) % settings.section_pairs >= moving] = 0
        angles = positions[:, None, None] * frequencies
        cos, sin = np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)
        first, second, rest = x[..., : dims // 2], x[..., dims // 2 : dims], x[..., dims:]
        return np.concatenate([first * cos - second * sin, first * sin + second * cos, rest], axis=-1)

    def _post(self, branch: Array, layer: int, name: str) -> Array:
        weight = self.weights.get(f"blk.{layer}.{name}.weight")
        return branch if weight is None else _rms_norm(branch, np.asarray(weight, np.float32), self.settings.eps)

    def _layers(self) -> int:
        return sum(name.endswith("attn_norm.weight") for name in self.weights)

    def _weight(self, name: str) -> Array:
        return np.asarray(self.weights[name], dtype=np.float32)

    def _part(self, layer: int, name: str) -> Array:
        return self._weight(f"blk.{layer}.{name}.weight")

    def _scalar(self, name: str, otherwise: float = 1.0) -> np.float32:
        weight = self.weights.get(name)
        value: np.float32 = np.float32(otherwise if weight is None else np.asarray(weight).reshape(-1)[0])
        return value


def _rms_norm(x: Array, weight: Array | None, eps: float) -> Array:
    mean = np.mean(np.square(x, dtype=np.float64), axis=-1, keepdims=True)
    normed: Array = (x / np.sqrt(mean + eps)).astype(np.float32)
    return normed if weight is None else normed * weight


def _gelu(x: Array) -> Array:
    out: Array = 0.5 * x * (1 + np.tanh(np.sqrt(np.float32(2 / np.pi)) * (x + np.float32(0.044715) * x**3)))
    return out
