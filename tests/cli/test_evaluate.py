"""``draftgauge evaluate`` against llama-perplexity's own figures."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

TEXT = Path(__file__).parents[1] / "data" / "harbour.txt"

# llama.cpp b11434: llama-perplexity -m smollm2-135m-q4_1.gguf -f tests/data/harbour.txt -c 512 -fa off -ctk f32
# -ctv f32 --chunks 2, after the second chunk.
LLAMA_PERPLEXITY = 20.0625


def test_perplexity_is_that_of_llama_perplexity(cli, model: Path) -> None:
    shared = ["evaluate", "-m", model, "--text", TEXT, "--windows", "2", "-ctk", "f32", "-ctv", "f32", "--json"]
    report = json.loads(cli(*shared).stdout)
    assert report["window"] == 512 and report["perplexity"]["windows"] == 2
    assert report["perplexity"]["perplexity"] == pytest.approx(LLAMA_PERPLEXITY, rel=0.005)
    # The base is the same file in reference numerics: near, and not the same.
    assert report["base"]["perplexity"] == pytest.approx(LLAMA_PERPLEXITY, rel=0.005)
    assert 0 < report["divergence"]["mean_kl"] < 0.01
    assert report["divergence"]["argmax_agreement"] > 0.9


def test_two_files_of_one_model_are_compared(cli, model: Path, tmp_path: Path) -> None:
    other = tmp_path / "coarse.gguf"
    outcome = cli("quantize", model, other, "Q4_0", "--allow-requantize")
    assert outcome.returncode == 0, outcome.stderr
    shared = ["evaluate", "--text", TEXT, "--windows", "1", "-c", "128", "--json"]
    report = json.loads(cli(*shared, "-m", other, "--against", model).stdout)
    same = json.loads(cli(*shared, "-m", model, "--against", model).stdout)
    assert report["divergence"]["mean_kl"] > 0.001 and report["divergence"]["argmax_agreement"] < 1
    assert same["divergence"]["mean_kl"] == 0 and same["divergence"]["argmax_agreement"] == 1


def test_a_text_too_short_for_two_windows_is_refused(cli, model: Path, tmp_path: Path) -> None:
    text = tmp_path / "short.txt"
    text.write_text("Too short.", encoding="utf-8")
    outcome = cli("evaluate", "-m", model, "--text", text)
    assert outcome.returncode == 2
    assert b"text is too short to score: expected at least 1024 tokens" in outcome.stderr
