"""Trees and greedy acceptance: the engine against plain Python, node for node, and the properties of the walk."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

import draftgauge as dg
from draftgauge import verify
from draftgauge.reference import verify as slow


@st.composite
def trees(draw: st.DrawFn) -> tuple[list[int], list[int], list[int]]:
    tokens, parents = [0], [-1]
    for _ in range(draw(st.integers(0, 12))):
        parent, token = draw(st.integers(0, len(tokens) - 1)), draw(st.integers(0, 3))
        if (parent, token) not in zip(parents[1:], tokens[1:], strict=True):
            tokens.append(token)
            parents.append(parent)
    choices = draw(st.lists(st.integers(0, 3), min_size=len(tokens), max_size=len(tokens)))
    return tokens, parents, choices


@given(trees())
def test_engine_and_reference_accept_alike(case: tuple[list[int], list[int], list[int]]) -> None:
    tokens, parents, choices = case
    fast_tree, slow_tree = verify.DraftTree(tokens, parents), slow.DraftTree(tokens, parents)
    assert (fast_tree.tokens, fast_tree.parents, fast_tree.depths) == (tokens, parents, slow_tree.depths)
    outcome = verify.accept_greedy(fast_tree, choices)
    assert outcome == slow.accept_greedy(slow_tree, choices)
    # Properties 32 and 33: a root path, in order, that cannot be extended.
    assert outcome.accepted == len(outcome.path)
    last = 0
    for depth, node in enumerate(outcome.path, start=1):
        assert parents[node] == last and node >= depth and tokens[node] == choices[last]
        last = node
    assert outcome.bonus == choices[last]
    assert not any(parents[n] == last and tokens[n] == outcome.bonus for n in range(1, len(tokens)))


@given(trees(), st.integers(0, 3), st.randoms())
def test_relabelling_gives_the_same_tokens(
    case: tuple[list[int], list[int], list[int]], _: int, random: object
) -> None:
    """Property 30: any topological order of the same tree accepts the same tokens."""
    tokens, parents, choices = case
    order, ready = [], [0]
    while ready:
        node = ready.pop(random.randrange(len(ready)))  # type: ignore[attr-defined]
        order.append(node)
        ready.extend(n for n in range(1, len(tokens)) if parents[n] == node)
    place = {node: index for index, node in enumerate(order)}
    other = verify.DraftTree([tokens[n] for n in order], [-1] + [place[parents[n]] for n in order[1:]])
    moved = verify.accept_greedy(other, [choices[n] for n in order])
    outcome = verify.accept_greedy(verify.DraftTree(tokens, parents), choices)
    assert [other.tokens[n] for n in moved.path] == [tokens[n] for n in outcome.path]
    assert moved.bonus == outcome.bonus


@given(st.lists(st.integers(0, 2), min_size=1, max_size=9), st.lists(st.integers(0, 2), min_size=9, max_size=9))
def test_a_chain_keeps_the_drafts_before_the_first_difference(tokens: list[int], choices: list[int]) -> None:
    outcome = verify.accept_greedy(verify.chain(tokens), choices[: len(tokens)])
    kept = 0
    while kept + 1 < len(tokens) and tokens[kept + 1] == choices[kept]:
        kept += 1
    assert outcome == verify.Outcome(list(range(1, kept + 1)), kept, choices[kept])


@pytest.mark.parametrize(
    ("tokens", "parents"),
    [
        ([], []),
        ([1], [0]),
        ([1, 2], [-1]),
        ([1, 2], [-1, 1]),
        ([1, 2, 3], [-1, 2, 0]),
        ([1, 2, 2], [-1, 0, 0]),
        ([-1], [-1]),
    ],
)
def test_trees_that_are_none_are_refused(tokens: list[int], parents: list[int]) -> None:
    with pytest.raises(dg.TreeError):
        verify.DraftTree(tokens, parents)


def test_one_choice_a_node() -> None:
    with pytest.raises(dg.TreeError, match="expected 2, found 1"):
        verify.accept_greedy(verify.chain([1, 2]), [1])
