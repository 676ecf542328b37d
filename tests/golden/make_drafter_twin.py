"""What PyTorch computes for block drafters of random weights.

    PYTHONPATH=tests python tests/golden/make_drafter_twin.py

Needs torch, and the package for the forms' settings (`tests/drafter_forms.py`). Written on torch's own operations, in
double precision, from the formulas of llama.cpp b11434's `dflash` architecture.
"""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import torch
from torch.nn import functional

from drafter_forms import FORMS, SETTINGS, borrowed, features_of, tensors_of

OUTPUT = Path(__file__).parent / "drafters" / "torch.json"
ENDS = [0, 1, 5, 40, 60]


class Drafter(torch.nn.Module):
    """One drafter with a growing cache of keys and values."""

    def __init__(self, tensors, settings):
        super().__init__()
        self.w = {name: torch.tensor(values) for name, values in tensors.items()}
        self.w = {name: value.double() if value.is_floating_point() else value for name, value in self.w.items()}
        self.s = settings
        self.layers = sum(name.endswith("attn_norm.weight") for name in tensors)
        self.cache = [None] * self.layers

    def norm(self, x, name):
        weight = None if name is None else self.w[name]
        return functional.rms_norm(x, x.shape[-1:], weight, self.s.eps)

    def rope(self, x, positions):
        """x: [heads, rows, head_dim]"""
        dims = self.s.rope_dims or self.s.head_dim
        pair = torch.arange(dims // 2, dtype=torch.float64)
        turn = self.s.rope_base ** (-2 * pair / dims)
        if self.s.section_pairs:
            turn = turn * (pair % self.s.section_pairs < self.s.section_pairs - self.s.still_pairs)
        phase = torch.polar(torch.ones(len(positions), dims // 2, dtype=torch.float64), positions[:, None] * turn)
        turned = torch.complex(x[..., : dims // 2], x[..., dims // 2 : dims]) * phase
        return torch.cat([turned.real, turned.imag, x[..., dims:]], dim=-1)

    def heads(self, x, weight, number):
        return (x @ weight.T).unflatten(-1, (number, -1)).transpose(0, 1)

    def keys_values(self, x, layer, positions):
        part = f"blk.{layer}."
        raw = self.heads(x, self.w[part + "attn_k.weight"], self.s.num_kv_heads)
        if part + "attn_v.weight" in self.w:
            value = self.heads(x, self.w[part + "attn_v.weight"], self.s.num_kv_heads)
        else:
            value = self.norm(raw, None)
        return self.rope(self.norm(raw, part + "attn_k_norm.weight"), positions), value

    def observe(self, features, start):
        x = features @ self.w["fc.weight"].T * self.w.get("fc.scale", torch.ones(1, dtype=torch.float64))
        x = self.norm(x, "enc.output_norm.weight")
        positions = torch.arange(start, start + len(x), dtype=torch.float64)
        for layer in range(self.layers):
            new = self.keys_values(x, layer, positions)
            old = self.cache[layer]
            self.cache[layer] = new if old is None else tuple(torch.cat(pair, 1) for pair in zip(old, new, strict=True))

    def attention(self, query, layer, own, start):
        context = self.cache[layer]
        key, value = (torch.cat(pair, 1) for pair in zip(context, own, strict=True))
        rows = torch.arange(start, start + query.shape[1])[:, None]
        places = torch.arange(key.shape[1])[None]
        seen = torch.ones(query.shape[1], key.shape[1], dtype=torch.bool)
        if self.s.causal:
            seen &= (places <= rows) | (places < start)
        window = self.s.windows[layer]
        if window is not None:
            seen &= rows - places < window
        scale = self.s.attention_scale or self.s.head_dim**-0.5
        sinks = self.w.get(f"blk.{layer}.attn_sinks.weight")
        if sinks is None:
            return functional.scaled_dot_product_attention(
                query[None], key[None], value[None], attn_mask=seen, scale=scale, enable_gqa=True
            )[0]
        group = self.s.num_heads // self.s.num_kv_heads
        scores = query @ key.repeat_interleave(group, 0).transpose(1, 2) * scale
        scores = scores.masked_fill(~seen, -torch.inf)
        scores = torch.cat([scores, sinks[:, None, None].expand(-1, query.shape[1], 1)], -1)
        return scores.softmax(-1)[..., :-1] @ value.repeat_interleave(group, 0)

    def layer(self, x, layer, start):
        part = f"blk.{layer}."
        positions = torch.arange(start, start + len(x), dtype=torch.float64)
        h = self.norm(x, part + "attn_norm.weight")
        query = self.heads(h, self.w[part + "attn_q.weight"], self.s.num_heads)
        query, gate = query[..., : self.s.head_dim], query[..., self.s.head_dim :]
        query = self.rope(self.norm(query, part + "attn_q_norm.weight"), positions)
        attended = self.attention(query, layer, self.keys_values(h, layer, positions), start)
        if gate.shape[-1]:
            attended = attended * gate.sigmoid()
        branch = attended.transpose(0, 1).flatten(1) @ self.w[part + "attn_output.weight"].T * self.s.value_scale
        if part + "post_attention_norm.weight" in self.w:
            branch = self.norm(branch, part + "post_attention_norm.weight")
        x = x + branch
        u = self.norm(x, part + "ffn_norm.weight")
        gated = u @ self.w[part + "ffn_gate.weight"].T
        gated = functional.gelu(gated, approximate="tanh") if self.s.gelu else functional.silu(gated)
        branch = gated * (u @ self.w[part + "ffn_up.weight"].T) @ self.w[part + "ffn_down.weight"].T
        if part + "post_ffw_norm.weight" in self.w:
            branch = self.norm(branch, part + "post_ffw_norm.weight")
        return (x + branch) * self.w.get(part + "layer_output_scale.weight", torch.ones(1, dtype=torch.float64))

    def draft(self, anchor, start):
        block = torch.tensor([anchor] + [self.s.mask_token] * (self.s.block_size - 1))
        x = functional.embedding(block, self.w["token_embd.weight"]) * self.s.embedding_scale
        for layer in range(self.layers):
            x = self.layer(x, layer, start)
        states = self.norm(x, "output_norm.weight")[0 if self.s.sample_from_anchor else 1 :]
        logits = states @ self.w.get("output.weight", self.w["token_embd.weight"]).T
        ids = self.w.get("d2t", torch.arange(logits.shape[1]))
        drafts, confidence = [], []
        for row, state in zip(logits, states, strict=True):
            previous = torch.tensor(drafts[-1] if drafts else anchor)
            if "markov_w1.weight" in self.w:
                embedded = functional.embedding(previous, self.w["markov_w1.weight"])
                row += self.w["markov_w2.weight"] @ embedded
                if "conf_proj.weight" in self.w:
                    joined = torch.cat([state, embedded])
                    chance = functional.linear(joined, self.w["conf_proj.weight"], self.w["conf_proj.bias"])
                    confidence.append(chance.sigmoid().item())
            drafts.append(int(ids[row.argmax()]))
        shown = [[float(f"{value:.7g}") for value in row[:6]] for row in logits.tolist()]
        return {"drafts": drafts, "logits": shown, "confidence": confidence}


@torch.no_grad()
def main() -> None:
    golden = {}
    for form, (changes, _, parts) in FORMS.items():
        drafter = Drafter(borrowed(tensors_of(parts)), replace(SETTINGS, **changes))
        golden[form] = {}
        for start, end in pairwise(ENDS):
            drafter.observe(torch.tensor(features_of(start, end)).double(), start)
            golden[form][str(end)] = drafter.draft(7 + end, end)
    lines = ",\n".join(f"{json.dumps(form)}: {json.dumps(runs)}" for form, runs in golden.items())
    OUTPUT.write_text(f"{{\n{lines}\n}}\n", encoding="utf-8")


if __name__ == "__main__":
    main()
