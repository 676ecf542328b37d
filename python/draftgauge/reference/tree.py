"""Draft trees: node 0 is the anchor, and parents come before their children.

Examples
--------
>>> from draftgauge.reference import tree
>>> tree.DraftTree([7, 1, 2, 5], [-1, 0, 0, 1]).depths
[0, 1, 1, 2]
"""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["DraftTree", "chain"]


class DraftTree:
    """A validated tree of drafted tokens.

    Parameters
    ----------
    tokens : sequence of int
        Token of each node; ``tokens[0]`` is the anchor.
    parents : sequence of int
        Parent of each node; ``parents[0]`` is -1.

    Raises
    ------
    ValueError
        When there is no anchor, the lengths differ, a parent does not come before its child, or siblings carry the same
        token.
    """

    def __init__(self, tokens: Sequence[int], parents: Sequence[int]) -> None:
        self.tokens = [int(token) for token in tokens]
        self.parents = [int(parent) for parent in parents]
        if not self.tokens or len(self.tokens) != len(self.parents) or self.parents[0] != -1:
            raise ValueError("a tree needs an anchor without a parent and one parent a token")
        self.depths = [0]
        self._children: list[dict[int, int]] = [{} for _ in self.tokens]
        for node, (token, parent) in enumerate(zip(self.tokens[1:], self.parents[1:], strict=True), start=1):
            if not 0 <= parent < node:
                raise ValueError(f"node {node}: a parent must come before its child")
            if token in self._children[parent]:
                raise ValueError(f"node {node}: siblings must carry different tokens")
            self._children[parent][token] = node
            self.depths.append(self.depths[parent] + 1)

    def __len__(self) -> int:
        return len(self.tokens)

    def child(self, node: int, token: int) -> int | None:
        """The child of a node that carries a token."""
        return self._children[node].get(token)


def chain(tokens: Sequence[int]) -> DraftTree:
    """The chain of some tokens: ``tokens[0]`` is the anchor, each token the child of the one before it."""
    return DraftTree(tokens, range(-1, len(tokens) - 1))
