"""Make tiny random llama models and what transformers computes on them.

Usage: ``python make_llama.py OUT_DIR`` with torch, transformers and gguf installed.

For each model two files are written. ``NAME.gguf`` is the model under llama.cpp's conventions: query and key rows are
permuted for rotation of adjacent pairs, matrices are F16 or F32 (exactly the values that torch computes with).
``NAME.expected.gguf`` holds ``tokens`` (I32) and, for each length n, the last rows (at most 8) of a run over the
first n tokens: ``logits.n`` [rows, vocab] and ``features.n`` [points, rows, hidden], where the points are the
embeddings, the residual stream after each layer, and the final norm.
"""

import math
import sys
from pathlib import Path

import gguf
import numpy as np
import torch
from transformers import LlamaConfig, LlamaForCausalLM

LENGTHS = [1, 7, 65, 300]
ROWS = 8
EPS = 1e-5
CTX = 512

# name: (shape, rope parameters, matrix type)
MODELS = {
    # Three query heads a key head, tied head: SmolLM2's plan.
    "gqa3": (
        {
            "hidden_size": 48,
            "num_attention_heads": 6,
            "num_key_value_heads": 2,
            "intermediate_size": 56,
            "num_hidden_layers": 3,
        },
        {"rope_type": "default", "rope_theta": 1e5},
        np.float16,
    ),
    # A key head a query head, a bias on everything, a head of its own.
    "mha_bias_linear": (
        {
            "hidden_size": 32,
            "num_attention_heads": 4,
            "num_key_value_heads": 4,
            "intermediate_size": 40,
            "num_hidden_layers": 2,
            "attention_bias": True,
            "mlp_bias": True,
            "tie_word_embeddings": False,
        },
        {"rope_type": "linear", "rope_theta": 1e4, "factor": 4.0},
        np.float32,
    ),
    # One key head for four query heads that are wider together than the residual stream; Llama 3's frequency factors.
    "gqa4_wide_llama3": (
        {
            "hidden_size": 32,
            "num_attention_heads": 4,
            "num_key_value_heads": 1,
            "head_dim": 16,
            "intermediate_size": 48,
            "num_hidden_layers": 5,
            "tie_word_embeddings": False,
        },
        {
            "rope_type": "llama3",
            "rope_theta": 5e5,
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 64,
        },
        np.float16,
    ),
    # Narrow heads; YaRN past a context of 64.
    "gqa4_yarn": (
        {
            "hidden_size": 64,
            "num_attention_heads": 4,
            "num_key_value_heads": 1,
            "head_dim": 8,
            "intermediate_size": 32,
            "num_hidden_layers": 3,
            "attention_bias": True,
        },
        {"rope_type": "yarn", "rope_theta": 1e4, "factor": 8.0, "original_max_position_embeddings": 64},
        np.float16,
    ),
    # YaRN with ramps of its own and one layer only.
    "mha_yarn_ramps": (
        {
            "hidden_size": 32,
            "num_attention_heads": 2,
            "num_key_value_heads": 2,
            "intermediate_size": 24,
            "num_hidden_layers": 1,
        },
        {
            "rope_type": "yarn",
            "rope_theta": 1e6,
            "factor": 4.0,
            "original_max_position_embeddings": 128,
            "beta_fast": 8.0,
            "beta_slow": 2.0,
        },
        np.float32,
    ),
}


def byte_characters() -> list[str]:
    """The character that stands for each byte in byte-level BPE (GPT-2)."""
    printable = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    others = iter(range(256, 512))
    return [chr(byte if byte in printable else next(others)) for byte in range(256)]


def vocabulary() -> tuple[list[str], list[int], list[str]]:
    """Tokens, their types and merges: all bytes, a few words, two control tokens."""
    space = byte_characters()[ord(" ")]
    merges = ["t h", "th e", f"{space} the", "i n", f"{space} a"]
    words = [merge.replace(" ", "") for merge in merges]
    tokens = ["<|begin|>", "<|end|>", *byte_characters(), *words]
    types = [gguf.TokenType.CONTROL] * 2 + [gguf.TokenType.NORMAL] * (len(tokens) - 2)
    return tokens, [int(kind) for kind in types], merges


def make_model(seed: int, shape: dict, rope: dict, dtype: type) -> LlamaForCausalLM:
    """A llama whose activations keep their size from layer to layer."""
    config = LlamaConfig(
        vocab_size=len(vocabulary()[0]),
        max_position_embeddings=CTX,
        rms_norm_eps=EPS,
        rope_parameters=rope,
        **{"tie_word_embeddings": True, **shape},
    )
    config._attn_implementation = "eager"
    model = LlamaForCausalLM(config).eval()
    noise = np.random.default_rng(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            values = noise.standard_normal(tuple(parameter.shape))
            if "norm" in name:
                values = 1.0 + 0.2 * values
            elif name.endswith("bias"):
                values = 0.3 * values
            elif "embed_tokens" not in name:
                values *= 1.5 / math.sqrt(parameter.shape[1])
            stored = dtype if parameter.dim() == 2 else np.float32
            parameter.copy_(torch.from_numpy(values.astype(stored).astype(np.float32)))
    return model


def frequency_factors(rope: dict, head_dim: int) -> np.ndarray:
    """Llama 3's divisors of the rotary frequencies, as llama.cpp stores them in ``rope_freqs.weight``."""
    frequencies = rope["rope_theta"] ** (-np.arange(0, head_dim, 2, dtype=np.float64) / head_dim)
    turns = rope["original_max_position_embeddings"] * frequencies / (2 * math.pi)
    low, high, factor = rope["low_freq_factor"], rope["high_freq_factor"], rope["factor"]
    smooth = np.clip((turns - low) / (high - low), 0.0, 1.0)
    return (1.0 / ((1.0 - smooth) / factor + smooth)).astype(np.float32)


def adjacent_pairs(rows: np.ndarray, heads: int) -> np.ndarray:
    """Moves dimensions i and i + d/2 of each head to 2i and 2i + 1."""
    return rows.reshape(heads, 2, -1, *rows.shape[1:]).swapaxes(1, 2).reshape(rows.shape)


def write_model(path: Path, model: LlamaForCausalLM, rope: dict, dtype: type) -> None:
    """Writes the model as llama.cpp's converter would."""
    config = model.config
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_name(path.stem)
    writer.add_context_length(CTX)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_dimension_count(config.head_dim)
    if config.head_dim * config.num_attention_heads != config.hidden_size:
        writer.add_key_length(config.head_dim)
        writer.add_value_length(config.head_dim)
    writer.add_rope_freq_base(rope["rope_theta"])
    if rope["rope_type"] in ("linear", "yarn"):
        writer.add_rope_scaling_type(gguf.RopeScalingType(rope["rope_type"]))
        writer.add_rope_scaling_factor(rope["factor"])
    if rope["rope_type"] == "yarn":
        writer.add_rope_scaling_orig_ctx_len(rope["original_max_position_embeddings"])
    if "beta_fast" in rope:
        writer.add_rope_scaling_yarn_beta_fast(rope["beta_fast"])
        writer.add_rope_scaling_yarn_beta_slow(rope["beta_slow"])

    tokens, types, merges = vocabulary()
    writer.add_vocab_size(len(tokens))
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(tokens)
    writer.add_token_types(types)
    writer.add_token_merges(merges)
    writer.add_bos_token_id(0)
    writer.add_eos_token_id(1)
    writer.add_add_bos_token(True)

    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, config.num_hidden_layers)
    for name, parameter in model.named_parameters():
        values = parameter.detach().numpy()
        if ".q_proj." in name:
            values = adjacent_pairs(values, config.num_attention_heads)
        elif ".k_proj." in name:
            values = adjacent_pairs(values, config.num_key_value_heads)
        to = names.get_name(name, try_suffixes=(".weight", ".bias"))
        writer.add_tensor(to, np.ascontiguousarray(values.astype(dtype if values.ndim == 2 else np.float32)))
    if rope["rope_type"] == "llama3":
        writer.add_tensor("rope_freqs.weight", frequency_factors(rope, config.head_dim))
    close(writer)


def write_expected(path: Path, model: LlamaForCausalLM, seed: int) -> None:
    """Runs the model at each length and writes the last rows."""
    tokens = np.random.default_rng(seed + 1000).integers(0, model.config.vocab_size, max(LENGTHS)).astype(np.int32)
    writer = gguf.GGUFWriter(path, "expected")
    writer.add_tensor("tokens", tokens)
    points: list[torch.Tensor] = []
    keep = lambda _module, _inputs, output: points.append(output[0] if isinstance(output, tuple) else output)  # noqa: E731
    for module in [model.model.embed_tokens, *model.model.layers, model.model.norm]:
        module.register_forward_hook(keep)
    for length in LENGTHS:
        points.clear()
        with torch.no_grad():
            logits = model(torch.from_numpy(tokens[:length].astype(np.int64))[None], use_cache=False).logits[0]
        writer.add_tensor(f"logits.{length}", np.ascontiguousarray(logits[-ROWS:].numpy()))
        features = torch.stack([point.reshape(length, -1)[-ROWS:] for point in points])
        writer.add_tensor(f"features.{length}", np.ascontiguousarray(features.numpy()))
    close(writer)


def close(writer: gguf.GGUFWriter) -> None:
    """Writes everything that was added."""
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def main() -> None:
    """Writes every model and its expectation."""
    out = Path(sys.argv[1])
    out.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(1)
    for seed, (name, (shape, rope, dtype)) in enumerate(MODELS.items()):
        model = make_model(seed, shape, rope, dtype)
        write_model(out / f"{name}.gguf", model, rope, dtype)
        write_expected(out / f"{name}.expected.gguf", model, seed)
        print(f"{name}: written")


if __name__ == "__main__":
    main()
