"""Makes tiny GGUF vocabularies, one a tokenizer model, and llama.cpp's ids for a text under each pre-tokenizer.

    python tests/golden/make_vocabularies.py LLAMA_TOKENIZE OUT_DIR [NAME ...]

Needs gguf (0.19 made the files here) and tokenizers. `byte_level.gguf` serves every pre-tokenizer of the model gpt2,
`plain.gguf` is of the model gemma4, `scored.gguf` of the model llama with a space put before the text. NAME.json holds
`{"vocabulary", "pre", "cases": [{"text", "ids"}]}`; the texts are those of make_tokenizer.py. Names choose which
golden files are made again; all by default.
"""

from __future__ import annotations

import concurrent.futures
import json
import sys
import tempfile
from pathlib import Path

import gguf
from make_tokenizer import hard_strings, llama_ids
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

GPT2_PRE = ["llama-bpe", "qwen2", "qwen35", "smollm", "gpt-2", "falcon", "default"]
NORMAL, UNKNOWN, CONTROL, USER_DEFINED, BYTE = 1, 2, 3, 4, 6
TYPES = {
    "<unk>": UNKNOWN,
    "<bos>": CONTROL,
    "<eos>": CONTROL,
    "<|im_start|>": CONTROL,
    "<|im_end|>": CONTROL,
    "<tag>": USER_DEFINED,
}


def corpus() -> list[str]:
    """Text to learn merges from: the strings themselves, so that the merges matter for them."""
    return hard_strings() * 3


def write(path: Path, model: str, tokens: list[str], types: list[int], **more: object) -> None:
    """Writes a GGUF file of metadata alone, with the keys that llama.cpp asks for in a vocabulary."""
    writer = gguf.GGUFWriter(str(path), "llama")
    writer.add_tokenizer_model(model)
    writer.add_token_list(tokens)
    writer.add_token_types(types)
    if "pre" in more:
        writer.add_tokenizer_pre(str(more["pre"]))
    if "merges" in more:
        writer.add_token_merges(more["merges"])  # type: ignore[arg-type]
    if "scores" in more:
        writer.add_token_scores(more["scores"])  # type: ignore[arg-type]
    writer.add_bos_token_id(tokens.index("<bos>"))
    writer.add_eos_token_id(tokens.index("<eos>"))
    writer.add_unk_token_id(tokens.index("<unk>"))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()


def learn(tokenizer: Tokenizer, size: int, alphabet: list[str]) -> tuple[list[str], list[str]]:
    """Trains merges and gives tokens by id, and merges as a file spells them."""
    trainer = trainers.BpeTrainer(
        vocab_size=size,
        initial_alphabet=alphabet,
        limit_alphabet=max(256, len(alphabet)),
        special_tokens=list(TYPES),
        show_progress=False,
    )
    tokenizer.train_from_iterator(corpus(), trainer)
    model = json.loads(tokenizer.to_str())["model"]
    tokens = sorted(model["vocab"], key=model["vocab"].get)
    merges = [
        merge if isinstance(merge, str) else " ".join(part.replace(" ", "\u0120") for part in merge)
        for merge in model["merges"]
    ]
    return tokens, merges


def byte_level() -> tuple[list[str], list[int], list[str]]:
    """GPT-2's alphabet of bytes, with 700 tokens; pieces may join words, so that each pre-tokenizer's cuts show."""
    tokenizer = Tokenizer(models.BPE())
    # Learnt on whole lines: a splitter that cuts too little is found out.
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(r"\n\n+"), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    tokens, merges = learn(tokenizer, 700, pre_tokenizers.ByteLevel.alphabet())
    return tokens, [TYPES.get(token, NORMAL) for token in tokens], merges


def plain() -> tuple[list[str], list[int], list[str]]:
    """Plain UTF-8 with U+2581 for a space, and byte tokens for what no character covers."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.Replace(" ", "\u2581")
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r"\n+"), "isolated")
    trainer_alphabet = [chr(code) for code in range(33, 127)] + ["\u2581", "\n"]
    tokens, merges = learn(tokenizer, 900, trainer_alphabet)
    types = [TYPES.get(token, NORMAL) for token in tokens]
    return tokens + [f"<0x{byte:02X}>" for byte in range(256)], types + [BYTE] * 256, merges


def scored() -> tuple[list[str], list[int], list[float]]:
    """The plain vocabulary with a score a token in place of merges: earlier tokens score better, some of them alike."""
    tokens, types, _ = plain()
    return tokens, types, [-float(place // 2) for place in range(len(tokens))]


def main() -> None:
    """Writes the vocabularies and their golden files."""
    tool, out, wanted = sys.argv[1], Path(sys.argv[2]), sys.argv[3:]
    tokens, types, merges = byte_level()
    write(out / "byte_level.gguf", "gpt2", tokens, types, merges=merges, pre="gpt-2")
    plain_tokens, plain_types, plain_merges = plain()
    write(out / "plain.gguf", "gemma4", plain_tokens, plain_types, merges=plain_merges)
    scored_tokens, scored_types, scores = scored()
    write(out / "scored.gguf", "llama", scored_tokens, scored_types, scores=scores)
    jobs = [("byte_level", pre) for pre in GPT2_PRE] + [("plain", "gemma4"), ("scored", "default")]
    texts = hard_strings()
    with tempfile.TemporaryDirectory() as folder:
        for vocabulary, pre in jobs:
            name = pre if vocabulary == "byte_level" else vocabulary
            if wanted and name not in wanted:
                continue
            path = out / f"{vocabulary}.gguf"
            if vocabulary == "byte_level":
                path = Path(folder) / f"{pre}.gguf"
                write(path, "gpt2", tokens, types, merges=merges, pre=pre)
            with concurrent.futures.ThreadPoolExecutor(2) as pool:
                ids = list(pool.map(lambda text: llama_ids(tool, str(path), text, True), texts))  # noqa: B023
            lines = ",\n".join(
                json.dumps({"text": text, "ids": found}, separators=(",", ":"))
                for text, found in zip(texts, ids, strict=True)
            )
            head = f'{{"made_by":"llama-tokenize b11434","vocabulary":"{vocabulary}","pre":"{pre}"'
            body = f'{head},"cases":[\n{lines}\n]}}\n'
            (out / f"{name}.json").write_text(body, encoding="ascii")
            print(f"{vocabulary} {pre}: {len(body)} bytes", file=sys.stderr)


if __name__ == "__main__":
    main()
