"""The lab: counts, rates and intervals against a few lines that know nothing of it."""

from __future__ import annotations

import hashlib
import json
import math
import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import draftgauge as dg
from draftgauge.lab import counts, prompts, report

ORACLE = Path(__file__).parents[1] / "golden" / "measure" / "oracle.jsonl"


@pytest.fixture(scope="module")
def figures() -> dict:
    return report(dg.trace.load(ORACLE))


def test_set_rates_are_measured_within_their_intervals(figures: dict) -> None:
    # Rates are conditional on the drafts before: the chance of position i is the product up to it.
    rates = figures["settings"]["rates"]
    for place in range(len(rates)):
        low, high = figures["interval_95"]["acceptance_at"][place]
        wanted = math.prod(rates[: place + 1])
        assert low <= wanted <= high, (place, low, wanted, high)
        assert high - low < 0.12
    low, high = figures["interval_95"]["acceptance_length"]
    assert low <= 1 + sum(math.prod(rates[: n + 1]) for n in range(len(rates))) <= high


def test_every_figure_is_that_of_an_independent_recount(figures: dict) -> None:
    lines = [json.loads(line) for line in ORACLE.read_text(encoding="utf-8").splitlines()]
    told = {line["seq"] for line in lines if line.get("begin") == "speculative"}
    steps = [line for line in lines if "step" in line and line["seq"] in told]
    plain = [line for line in lines if "step" in line and line["seq"] not in told]
    drafted = sum(len(step["proposed"]) for step in steps)
    accepted = sum(step["accepted"] for step in steps)
    assert (figures["steps"], figures["drafted"], figures["accepted"]) == (len(steps), drafted, accepted)
    assert figures["acceptance_rate"] == accepted / drafted
    assert figures["acceptance_length"] == (accepted + len(steps)) / len(steps)
    bonus = sum(step["bonus"] is not None for step in steps)
    assert figures["acceptance_length_deepspec"] == (accepted + bonus) / len(steps)
    for place in range(4):
        proposed = sum(len(step["proposed"]) > place for step in steps)
        kept = sum(step["accepted"] > place for step in steps)
        assert (figures["proposed_at"][place], figures["accepted_at"][place]) == (proposed, kept)
        assert figures["acceptance_at"][place] == kept / proposed

    def seconds(rows: list[dict]) -> float:
        # Sequence by sequence, as a sum of floats depends on its order.
        totals: dict[int, float] = {}
        for row in rows:
            totals[row["seq"]] = totals.get(row["seq"], 0.0) + (row["draft_s"] + row["verify_s"] + row["commit_s"])
        return sum(totals.values(), 0.0)

    for stage in ("draft", "verify", "commit"):
        totals: dict[int, float] = {}
        for row in steps:
            totals[row["seq"]] = totals.get(row["seq"], 0.0) + row[f"{stage}_s"]
        assert figures["seconds_per_step"][stage] == sum(totals.values(), 0.0) / len(steps)
    committed = accepted + bonus
    assert figures["speed"]["speculative_tok_s"] == committed / seconds(steps)
    assert figures["speed"]["plain_tok_s"] == len(plain) / seconds(plain)
    assert figures["speed"]["ratio"] == figures["speed"]["speculative_tok_s"] / figures["speed"]["plain_tok_s"]
    ids = [token for sequence in dg.trace.load(ORACLE).sequences[::2] for token in sequence.tokens]
    assert figures["identity"]["plain"] == hashlib.sha256(struct.pack(f"<{len(ids)}I", *ids)).hexdigest()
    assert figures["identity"]["equal"] and figures["identity"]["plain"] == figures["identity"]["speculative"]


def test_intervals_are_those_of_an_independent_bootstrap(figures: dict) -> None:
    sequences = dg.trace.load(ORACLE).sequences
    told = [one.steps for one in sequences if one.begin["begin"] == "speculative"]
    plain = [one.steps for one in sequences if one.begin["begin"] == "plain"]
    draws = np.random.default_rng(0).integers(0, len(told), size=(2000, len(told)))

    def each(runs: list[list[dict]], fact: Callable[[dict], float]) -> list[float]:
        return [sum((fact(step) for step in run), 0.0) for run in runs]

    def interval(numerator: list[float], denominator: list[float]) -> list[float]:
        ratios = [sum(numerator[i] for i in draw) / sum(denominator[i] for i in draw) for draw in draws.tolist()]
        return [float(bound) for bound in np.percentile(ratios, [2.5, 97.5])]

    accepted, steps = each(told, lambda step: step["accepted"]), each(told, lambda step: 1)
    interval_95 = figures["interval_95"]
    assert interval_95["acceptance_rate"] == interval(accepted, each(told, lambda step: len(step["proposed"])))
    lengths = [kept + count for kept, count in zip(accepted, steps, strict=True)]
    assert interval_95["acceptance_length"] == interval(lengths, steps)
    for place in range(4):
        kept = each(told, lambda step, place=place: step["accepted"] > place)
        assert interval_95["acceptance_at"][place] == interval(
            kept, each(told, lambda step, place=place: len(step["proposed"]) > place)
        )
    # Sums of seconds depend on their order: the speeds' interval alone is compared to rounding.
    committed = each(told, lambda step: step["accepted"] + (step["bonus"] is not None))
    seconds = [each(runs, lambda step: step["draft_s"] + step["verify_s"] + step["commit_s"]) for runs in (told, plain)]
    counts = each(plain, lambda step: 1)
    ratios = []
    for draw in draws.tolist():
        speculative = sum(committed[i] for i in draw) / sum(seconds[0][i] for i in draw)
        ratios.append(speculative / (sum(counts[i] for i in draw) / sum(seconds[1][i] for i in draw)))
    assert figures["speed"]["interval_95"] == pytest.approx(np.percentile(ratios, [2.5, 97.5]), rel=1e-12)


def test_categories_make_up_the_whole(figures: dict) -> None:
    parts = figures["categories"].values()
    for name in ("prompts", "tokens", "steps", "drafted", "accepted", "bonus"):
        assert sum(part[name] for part in parts) == figures[name]
    assert sum(figures["accepted_at"]) == figures["accepted"] and sum(figures["proposed_at"]) == figures["drafted"]


def test_a_report_is_a_function_of_its_trace(figures: dict) -> None:
    assert report(dg.trace.load(ORACLE)) == figures


@pytest.mark.parametrize("share", [0.3, 0.55, 0.99])
def test_a_cut_trace_counts_whole_pairs_alone(tmp_path: Path, figures: dict, share: float) -> None:
    data = ORACLE.read_bytes()
    path = tmp_path / "cut.jsonl"
    path.write_bytes(data[: int(share * len(data))])
    cut = report(dg.trace.load(path))
    assert 0 < cut["prompts"] < figures["prompts"]
    assert cut["identity"]["equal"]


def test_an_output_that_departs_is_a_fork(tmp_path: Path) -> None:
    lines = [json.loads(line) for line in ORACLE.read_text(encoding="utf-8").splitlines()]
    victim = next(line for line in lines if line.get("seq") == 3 and line.get("step") == 5)
    victim["bonus"] = (victim["bonus"] + 1) % 97
    path = tmp_path / "forked.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    identity = report(dg.trace.load(path))["identity"]
    assert not identity["equal"] and identity["plain"] != identity["speculative"]
    (fork,) = identity["forks"]
    assert fork["prompt"] == "1" and fork["position"] > 5 and fork["margin"] > 0


def test_b04_zero_drafts_are_inactive_and_have_no_rate(tmp_path: Path) -> None:
    lines = [json.loads(line) for line in ORACLE.read_text(encoding="utf-8").splitlines()]
    kept = []
    for line in lines:
        # The plain runs once more, under the drafter's name.
        if line.get("seq", 0) % 2 == 0:
            kept.append(line)
            if "seq" in line:
                kept.append({**line, "seq": line["seq"] + 1, **({"begin": "speculative"} if "begin" in line else {})})
    kept.sort(key=lambda line: line.get("seq", -1))
    path = tmp_path / "idle.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in kept), encoding="utf-8")
    idle = report(dg.trace.load(path))
    assert (idle["status"], idle["acceptance_rate"], idle["acceptance_length"]) == ("inactive", None, 1.0)
    assert any("inactive" in notice for notice in idle["notices"])


@st.composite
def runs(draw: st.DrawFn) -> list[dg.trace.Sequence]:
    """Speculative runs with steps of any draft length, some of which end at a draft."""
    found = []
    for seq in range(draw(st.integers(1, 6))):
        steps = []
        for proposed in draw(st.lists(st.integers(0, 6), max_size=12)):
            accepted = draw(st.integers(0, proposed))
            ends = accepted > 0 and draw(st.booleans())
            times = {f"{stage}_s": draw(st.floats(0, 1)) for stage in ("draft", "verify", "commit")}
            bonus = None if ends else 1
            steps.append({"proposed": [1] * proposed, "accepted": accepted, "bonus": bonus, **times})
        found.append(dg.trace.Sequence({"seq": seq}, steps, None, []))
    return found


@given(runs())
def test_counts_hang_together(sequences: list[dg.trace.Sequence]) -> None:
    parts = [counts.Counts.of(one) for one in sequences]
    whole = counts.Counts.total(parts)
    assert (sum(whole.proposed_at), sum(whole.accepted_at)) == (whole.drafted, whole.accepted)
    assert whole.committed == whole.accepted + whole.bonus and whole.bonus <= whole.steps
    for rows in (whole.proposed_at, whole.accepted_at):
        assert rows == sorted(rows, reverse=True)
    assert all(kept <= proposed for kept, proposed in zip(whole.accepted_at, whole.proposed_at, strict=True))
    # Kept at a position and not at the next: steps that stopped there. Over all positions they make up the steps.
    edges = [whole.steps, *whole.accepted_at, 0]
    assert sum(place * (edges[place] - edges[place + 1]) for place in range(len(edges) - 1)) == whole.accepted
    assert sum(edges[place] - edges[place + 1] for place in range(len(edges) - 1)) == whole.steps
    halves = counts.Counts.total([counts.Counts.total(parts[:2]), counts.Counts.total(parts[2:])])
    assert (halves.steps, halves.drafted, halves.proposed_at, halves.accepted_at) == (
        whole.steps, whole.drafted, whole.proposed_at, whole.accepted_at,
    )  # fmt: skip


@given(st.lists(st.integers(0, 3), max_size=60), st.lists(st.integers(0, 9), min_size=1, max_size=12))
def test_a_loop_is_found_whatever_comes_before_it(before: list[int], period: list[int]) -> None:
    repeats = max(4, math.ceil(32 / len(period)))
    assert counts.loops(before + period * repeats)


@given(st.lists(st.integers(0, 10**6), max_size=200, unique=True))
def test_an_output_without_repeats_is_no_loop(tokens: list[int]) -> None:
    assert not counts.loops(tokens)


def test_a_prompt_may_hold_every_separator_but_a_newline(tmp_path: Path) -> None:
    path = tmp_path / "set.jsonl"
    texts = ["a\u2028b", "c\u0085d", "e\x0bf".replace("\x0b", "\u2029")]
    rows = "\r\n".join(json.dumps({"prompt": text}, ensure_ascii=False) for text in texts)
    path.write_bytes(b"\xef\xbb\xbf" + rows.encode())
    assert [one.content for one in prompts.load(path).prompts] == texts


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b'{"prompt": "caf\xe9"}', "prompt set is not UTF-8: .*set.jsonl: expected UTF-8, found byte 0xe9 at 15"),
        (b"[" * 100_000, "prompt is nested too deeply: .*line 1"),
        (b'{"prompt": "\\ud800"}', r"prompt is no text: .*line 1: .*found half a pair, U\+D800"),
    ],
    ids=["latin-1", "nested", "surrogate"],
)
def test_hostile_prompt_files_are_refused_with_their_place(tmp_path: Path, data: bytes, message: str) -> None:
    path = tmp_path / "set.jsonl"
    path.write_bytes(data)
    with pytest.raises(ValueError, match=message):
        prompts.load(path)


def test_prompt_files_in_the_forms_of_the_field(tmp_path: Path) -> None:
    path = tmp_path / "set.jsonl"
    rows = [
        {"prompt": "a", "id": "first", "category": "x"},
        {"messages": [{"role": "user", "content": "b"}]},
        {"turns": ["c", "d"]},
        {"question_id": "q7", "category": "writing", "sub_category": "poem", "turns": ["e"]},
    ]
    path.write_text("\n\n".join(json.dumps(row) for row in rows), encoding="utf-8")
    loaded = prompts.load(path)
    assert [one.id for one in loaded.prompts] == ["first", "3", "5", "q7"]
    assert [one.content for one in loaded.prompts] == ["a", [{"role": "user", "content": "b"}], "c", "e"]
    assert loaded.prompts[3].category == "writing"
    assert loaded.notices == ["1 prompts have further turns: the first one alone is used"]
    assert len(prompts.load(path, limit=2).prompts) == 2


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", "prompt is not JSON: .*line 2"),
        ("[]", "prompt is no object: .*found list"),
        ("{}", "expected one of prompt, messages, turns, found none"),
        ('{"prompt": "a", "turns": ["b"]}', "found prompt, turns"),
        ('{"prompt": 3}', "expected a text, found int"),
        ('{"turns": []}', "expected a list of texts"),
        ('{"prompt": "x", "id": 1}', "two prompts have one id: .*found 1"),
    ],
)
def test_prompt_lines_that_are_refused(tmp_path: Path, line: str, message: str) -> None:
    path = tmp_path / "set.jsonl"
    path.write_text('{"prompt": "x"}\n' + line, encoding="utf-8")
    with pytest.raises(ValueError, match=message):
        prompts.load(path)
    path.write_text("\n", encoding="utf-8")
    with pytest.raises(ValueError, match="prompt set is empty"):
        prompts.load(path)
