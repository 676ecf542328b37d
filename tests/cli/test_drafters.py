"""Drafter files on the command line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import drafter_file


@pytest.fixture(scope="module")
def drafter(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return drafter_file.write(tmp_path_factory.mktemp("drafter") / "dspark.gguf", markov=True)


def test_generate_drafts_and_changes_nothing(cli, model: Path, drafter: Path) -> None:
    shared = ["generate", "-m", model, "-p", "Count to ten.", "-n", "24", "--json"]
    plain = json.loads(cli(*shared).stdout)
    outcome = cli(*shared, "-md", drafter, "--target-layers", "3,embeddings")
    told = json.loads(outcome.stdout)
    assert told["tokens"] == plain["tokens"] and told["identity"] == plain["identity"]
    assert told["draft"]["type"] == "dspark" and told["draft"]["drafted"] == sum(told["draft"]["proposed_at"])
    assert told["settings"]["drafter"]["config"]["target_layer_ids"] == {
        "value": "[3, embeddings]",
        "provenance": "override",
    }
    assert b"drafter: dspark active, depth 5, block 5, taps [3, -1]" in outcome.stderr


def test_the_files_own_kind_wins_over_another_name(cli, model: Path, drafter: Path) -> None:
    outcome = cli("generate", "-m", model, "-md", drafter, "--spec-type", "draft-dflash", "-p", "Hi", "-n", "4")
    assert outcome.returncode == 2
    assert b"another kind of drafter" in outcome.stderr and b"expected dspark, found dflash" in outcome.stderr


def test_inspect_prints_the_pairing(cli, model: Path, drafter: Path, tmp_path: Path) -> None:
    outcome = cli("inspect", model, "-md", drafter, "--json")
    assert outcome.returncode == 0
    checks = json.loads(outcome.stdout)["pairing"]["checks"]
    assert {check["verdict"] for check in checks} <= {"ok", "notice"}
    assert {"vocabulary", "tap layers", "mask token", "block size", "positions"} <= {check["name"] for check in checks}
    assert b"slots" in cli("inspect", model, "-md", drafter).stdout
    wrong = drafter_file.write(tmp_path / "wrong.gguf", metadata={"dflash.target_layers": [10, 31]})
    outcome = cli("inspect", model, "-md", wrong, "--json")
    assert outcome.returncode == 1
    errors = [check for check in json.loads(outcome.stdout)["pairing"]["checks"] if check["verdict"] == "error"]
    assert [check["name"] for check in errors] == ["tap layers"]


def test_bench_times_the_drafter(cli, model: Path, drafter: Path) -> None:
    outcome = cli("bench", "-m", model, "-md", drafter, "-p", "0", "-n", "4", "-r", "1", "--rows", "1", "--json")
    draft = json.loads(outcome.stdout)["draft"]
    assert draft["drafts"] == 5 and 0 < draft["seconds"] < 1 and draft["observe_seconds"] > 0
