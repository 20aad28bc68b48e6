"""Which part of the window side each lock keeps.

A lock of a node keeps the window side from `Window.needed_from(node.end)` on, no more, or less once it was loosened.
A node's `starts` says where the parts of its own locks begin; nodes are cut so that a part begins at a node's start.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from kvstead.errors import LockUnderflow
from kvstead.model.window import Window
from kvstead.prefix.node import Node


class WindowLocks:
    """The starts of locks in the nodes of one tree."""

    def __init__(self, window: Window, page_size: int) -> None:
        self._window = window
        self._page_size = page_size

    def start(self, node: Node) -> int:
        """Where the part that a new lock of `node` keeps begins, a page boundary."""
        needed = self._window.needed_from(node.end)
        return needed - needed % self._page_size

    def add(self, node: Node, start: int) -> None:
        """Note one more lock of `node` whose part begins at `start`."""
        node.window.starts[start] = node.window.starts.get(start, 0) + 1

    def remove(self, node: Node, since: int) -> int:
        """Forget one lock of `node` that keeps what it needs from `since` on, and return where its part begins.

        All starts past the node's end are alike. Raises `LockUnderflow` when there is no such lock.
        """
        start, starts = min(since - since % self._page_size, node.end), node.window.starts
        if start not in starts:
            raise LockUnderflow(
                f"no lock of {node} keeps windows from token {since} on. Pass the token at which its window part "
                "begins: where `lock` or the last `loosen` put it."
            )
        starts[start] -= 1
        if not starts[start]:
            del starts[start]
        return start

    def count(self, nodes: Sequence[Node]) -> Counter[Node]:
        """How many locks reach each node, counted from the starts. O(locks x path), for audits."""
        locks: Counter[Node] = Counter()
        for node in nodes:
            for start, count in node.window.starts.items():
                for at in behind(node, start):
                    locks[at] += count
        return locks


def behind(node: Node, position: int) -> list[Node]:
    """`node` and the nodes above it that end behind `position`."""
    found = []
    while node.end > position:
        found.append(node)
        assert node.parent is not None, "only the root ends at 0"
        node = node.parent
    return found
