"""The evictable nodes of a tree, in the order in which they go."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from heapq import heapify, heappop, heappush, heapreplace
from itertools import count
from typing import TypeAlias

from kvstead.prefix.node import Node
from kvstead.prefix.policies import Rank

# (rank when filed, serial number, node); the serial keeps the heap from comparing nodes.
_Entry: TypeAlias = tuple[Rank, int, Node]

_SLACK = 64  # dead entries below which a rebuild is not worth it


class EvictionQueue:
    """A priority queue of nodes whose ranks may change while they wait.

    One heap lives as long as the tree. A node's valid entry is the one that `_entries` names; leaving the queue only
    forgets that, and the heap drops the dead entry when it surfaces. A rank that has grown is noticed when its entry
    surfaces: the node is filed again under the new one. A rank that falls must be announced (`refresh`), or the node
    would surface too late. When more than half of the heap is dead it is rebuilt, so it stays O(nodes that wait) and
    every operation is O(log n) amortised.
    """

    __slots__ = ("_entries", "_heap", "_rank", "_serial")

    def __init__(self, rank: Callable[[Node], Rank]) -> None:
        self._rank = rank
        self._heap: list[_Entry] = []
        self._entries: dict[Node, _Entry] = {}
        self._serial = count()

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, node: Node) -> bool:
        return node in self._entries

    def __iter__(self) -> Iterator[Node]:
        return iter(self._entries)

    def add(self, node: Node) -> None:
        """Queue `node` at the rank it has now."""
        entry = (self._rank(node), next(self._serial), node)
        self._entries[node] = entry
        heappush(self._heap, entry)
        if len(self._heap) > 2 * len(self._entries) + _SLACK:
            self._rebuild()

    def discard(self, node: Node) -> None:
        """Take `node` out of the queue, if it is there."""
        if self._entries.pop(node, None) is not None and len(self._heap) > 2 * len(self._entries) + _SLACK:
            self._rebuild()

    def refresh(self, node: Node) -> None:
        """Move `node` forward if it is queued and its rank has fallen."""
        entry = self._entries.get(node)
        if entry is not None and self._rank(node) < entry[0]:
            self.add(node)

    def first(self) -> Rank | None:
        """The lowest rank of all; None when the queue is empty."""
        while self._heap:
            entry = self._heap[0]
            filed, _, node = entry
            if self._entries.get(node) is not entry:
                heappop(self._heap)
                continue
            rank = self._rank(node)
            if rank <= filed:
                return rank
            entry = (rank, next(self._serial), node)
            self._entries[node] = entry
            heapreplace(self._heap, entry)
        return None

    def pop(self) -> Node | None:
        """Take out the node of the lowest rank; None when the queue is empty."""
        if self.first() is None:
            return None
        _, _, node = heappop(self._heap)
        del self._entries[node]
        return node

    def _rebuild(self) -> None:
        """Drop the dead entries."""
        self._heap = list(self._entries.values())
        heapify(self._heap)
