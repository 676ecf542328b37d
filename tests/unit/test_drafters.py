"""Drafters from files: settings and their provenance, overrides, pairing, scores, and generations with them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import drafter_file
import draftgauge as dg

PROMPT = "The lighthouse stood on the"


@pytest.fixture(scope="module")
def target(model: Path) -> dg.Target:
    return dg.Target.from_gguf(model, ctx_size=512)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("drafters")
    return {
        "dflash": drafter_file.write(folder / "dflash.gguf"),
        "dspark": drafter_file.write(folder / "dspark.gguf", markov=True),
    }


@pytest.fixture(scope="module")
def drafters(target: dg.Target, files: dict[str, Path]) -> dict[str, dg.Drafter]:
    return {kind: dg.Drafter.from_gguf(path, target=target) for kind, path in files.items()}


def test_a_file_tells_its_kind_and_sizes(drafters: dict[str, dg.Drafter]) -> None:
    for kind, draft_len in (("dflash", 4), ("dspark", 5)):
        drafter = drafters[kind]
        assert (drafter.kind, drafter.block_size, drafter.draft_len) == (kind, 5, draft_len)
        assert drafter.tap_layers == [9, 20]
        assert drafter.config["draft_vocab_size"].value == "1024"


def test_every_setting_has_its_provenance(drafters: dict[str, dg.Drafter]) -> None:
    config = drafters["dspark"].config
    provenance = {name: one.provenance for name, one in config.items()}
    assert provenance["block_size"] == "dflash.block_size"
    assert provenance["mask_token_id"] == "tokenizer.ggml.mask_token_id"
    assert provenance["target_layer_ids"] == "dflash.target_layers"
    assert provenance["sample_from_anchor"] == "tensor markov_w1.weight"
    assert provenance["hidden_size"] == "weights"
    assert provenance["causal"].startswith("default")


def test_overrides_are_recorded_and_change_no_weight(drafters: dict[str, dg.Drafter]) -> None:
    drafter = drafters["dflash"]
    other = drafter.with_overrides({"causal": True, "tap_offset": -1, "rope_theta": np.float32(5e4)})
    assert other.tap_layers == [8, 19]
    for name, value in (("causal", "true"), ("rope_theta", "50000"), ("target_layer_ids", "[8, 19]")):
        assert other.config[name] == dg.drafters.Setting(value, "override")
    assert drafter.config["causal"].value == "false"


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ({"block": 3}, "drafter has no such setting: block: expected block_size"),
        ({"block_size": 0}, "block_size: expected a whole number, 1 to 4096, found 0"),
        ({"mask_token_id": 49152}, "mask_token_id: expected a whole number, 0 to 49151"),
        ({"target_layer_ids": [1]}, "target_layer_ids: expected 2 layers"),
        ({"markov": True}, "markov: expected false, since the file has no Markov head"),
        ({"features": "none"}, "features: expected real, zero or shuffle"),
    ],
    ids=str,
)
def test_settings_that_are_refused(drafters: dict[str, dg.Drafter], overrides: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        drafters["dflash"].with_overrides(overrides)


def test_layers_past_the_target_are_a_pairing_error(drafters: dict[str, dg.Drafter]) -> None:
    with pytest.raises(dg.PairingError, match="layer 30 is tapped, the target has layers 0 to 29"):
        drafters["dflash"].with_overrides({"target_layer_ids": [1, 30]})
    with pytest.raises(ValueError, match="no settings to override: expected a block drafter, found ngram"):
        dg.Drafter.ngram().with_overrides({})


def test_a_wrong_width_or_mask_is_refused_before_the_first_token(target: dg.Target, tmp_path: Path) -> None:
    path = drafter_file.write(tmp_path / "a.gguf", metadata={"dflash.target_layers": [10, 21, 30]})
    with pytest.raises(dg.PairingError, match=r"hidden size: found fc.weight takes 1152 values: 3 taps of 384.*576"):
        dg.Drafter.from_gguf(path, target=target)
    path = drafter_file.write(tmp_path / "b.gguf", metadata={"tokenizer.ggml.mask_token_id": None})
    with pytest.raises(dg.GgufError, match=r"tokenizer.ggml.mask_token_id"):
        dg.Drafter.from_gguf(path, target=target)


def test_a06_a_file_without_layers_says_what_to_do_and_takes_an_override(target: dg.Target, tmp_path: Path) -> None:
    path = drafter_file.write(tmp_path / "a.gguf", metadata={"dflash.target_layers": None})
    with pytest.raises(dg.PairingError, match=r"an older converter wrote it.*--target-layers"):
        dg.Drafter.from_gguf(path, target=target)
    drafter = dg.Drafter.from_gguf(path, target=target, overrides={"target_layer_ids": [9, "embeddings"]})
    assert drafter.tap_layers == [9, -1]
    assert drafter.config["target_layer_ids"].provenance == "override"


def test_a05_the_older_architecture_name_and_its_nested_keys(target: dg.Target, tmp_path: Path) -> None:
    first = drafter_file.write(tmp_path / "a.gguf")
    metadata = {key.replace("dflash.", "dflash-draft."): value for key, value in dg.gguf.open(first).metadata.items()}
    del metadata["dflash-draft.target_layers"]
    metadata["general.architecture"] = "dflash-draft"
    metadata["dflash-draft.dflash.target_layer_ids"] = [9, 20]
    second = tmp_path / "b.gguf"
    dg.gguf.write(second, metadata, dg.gguf.open(first).tensors)
    assert dg.Drafter.from_gguf(second, target=target).tap_layers == [9, 20]


def test_pairing_tells_what_is_suspicious(
    target: dg.Target, files: dict[str, Path], model: Path, tmp_path: Path
) -> None:
    checks = {check.name: check for check in dg.drafters.pairing(model, files["dspark"])}
    assert checks["tap layers"].verdict == "ok"
    assert checks["slots"].detail.startswith("the anchor's row predicts too: 5 drafts")
    assert checks["vocabulary"].verdict == "notice"
    path = drafter_file.write(
        tmp_path / "a.gguf", metadata={"dflash.rope.freq_base": 1e6, "dflash.target_layers": [2, 28]}
    )
    suspicious = {check.name: check for check in dg.Drafter.from_gguf(path, target=target).pairing}
    assert suspicious["rotary embedding"].verdict == "notice" and "100000" in suspicious["rotary embedding"].detail
    # z-lab's default for two taps of 30 layers is 1 and 27, which a file writes as 2 and 28.
    assert suspicious["tap layers"].verdict == "ok"
    path = drafter_file.write(tmp_path / "b.gguf", metadata={"dflash.target_layers": [1, 27]})
    shifted = {check.name: check for check in dg.Drafter.from_gguf(path, target=target).pairing}
    assert shifted["tap layers"].verdict == "notice" and "default layer -1" in shifted["tap layers"].detail


@pytest.mark.parametrize("kind", ["dflash", "dspark"])
def test_output_is_the_targets_own(target: dg.Target, drafters: dict[str, dg.Drafter], kind: str) -> None:
    plain = dg.generate(target, PROMPT, raw=True, max_tokens=40)
    for options in ({}, {"draft_block": 3}, {"draft_n_max": 1}, {"draft_p_min": 0.12}):
        told = dg.generate(target, PROMPT, raw=True, max_tokens=40, drafter=drafters[kind], **options)
        assert told.tokens == plain.tokens
        assert told.draft.type == kind
        # A cut may leave nothing of drafts that are random.
        assert told.draft.status == "active" or "draft_p_min" in options
        assert told.settings["drafter"]["tap_layers"] == [9, 20]
    assert told.settings["draft_p_min"] == 0.12


def test_a16_a_wider_block_or_longer_draft_than_trained(target: dg.Target, drafters: dict[str, dg.Drafter]) -> None:
    with pytest.raises(ValueError, match="draft_block: expected 1 to 5, the trained width, found 6"):
        dg.generate(target, PROMPT, raw=True, max_tokens=4, drafter=drafters["dflash"], draft_block=6)
    told = dg.generate(target, PROMPT, raw=True, max_tokens=12, drafter=drafters["dflash"], draft_n_max=16)
    assert any("draft_n_max 16 is more than the drafter's draft length: 4 is used" in one for one in told.notices)
    assert len(told.draft.proposed_at) == 4


def test_scores_have_the_shapes_that_they_say(target: dg.Target, drafters: dict[str, dg.Drafter]) -> None:
    told = dg.generate(target, PROMPT, raw=True, max_tokens=40)
    tokens = [*target.tokenizer.encode(PROMPT), *told.tokens]
    for drafter in (*drafters.values(), dg.Drafter.ngram(draft_len=3)):
        scores = dg.score(target, drafter, tokens, start=4)
        anchors = len(tokens) - 4
        assert scores.drafts.shape == (anchors, drafter.draft_len)
        assert scores.choices.shape == scores.margins.shape == (len(tokens),)
        assert list(scores.anchors) == list(range(4, len(tokens)))
        # The text is the target's own, so its choices are the tokens that follow.
        assert list(scores.choices[len(tokens) - len(told.tokens) - 1 : -1]) == told.tokens
        assert (scores.accepted <= scores.matches.sum(axis=1)).all()
    assert dg.score(target, drafters["dspark"], tokens).confidence.shape == (len(tokens), 5)
    with pytest.raises(ValueError, match="no anchor is left"):
        dg.score(target, drafters["dspark"], tokens, start=len(tokens))


def test_scores_are_the_drafts_of_a_run(target: dg.Target, drafters: dict[str, dg.Drafter], tmp_path: Path) -> None:
    trace = tmp_path / "run.jsonl"
    dg.generate(target, PROMPT, raw=True, max_tokens=40, drafter=drafters["dspark"], trace=trace)
    sequence = dg.trace.load(trace).sequences[0]
    scores = dg.score(target, drafters["dspark"], [*sequence.begin["prompt_tokens"], *sequence.tokens], start=1)
    for step in sequence.steps:
        row = step["anchor_pos"] - 1
        assert scores.drafts[row, : len(step["proposed"])].tolist() == step["proposed"]
        assert scores.confidence[row, : len(step["proposed"])] == pytest.approx(step.get("confidence", []))
        assert min(scores.accepted[row], len(step["proposed"])) == step["accepted"]
