"""The evictable nodes of a tree, in the order in which they go: the lowest rank first.

    policy      goes first                                  rank
    lru         the longest unused                          access
    mru         the most recently used                      -access
    fifo        the oldest                                  created
    filo        the youngest                                -created
    lfu         the least matched, then the longest unused  hits, access
    slru        never matched, then the longest unused      hits > 0, access
    priority    the lowest priority, then longest unused    priority, access

Times are readings of a logical clock that ticks once per operation on the tree. One operation touches one path and no
two evictable nodes lie on one path, so ranks of evictable nodes never tie. In front of the policy's rank stands whether
the part of a node that would go is useful.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from heapq import heapify, heappop, heappush, heapreplace
from itertools import count
from types import MappingProxyType
from typing import TypeAlias

from kvstead.errors import InvalidSize
from kvstead.prefix.node import Node, Usage

Rank: TypeAlias = tuple[int, ...]
Policy: TypeAlias = Callable[[Usage], Rank]

# (rank when filed, serial number, node); the serial keeps the heap from comparing nodes.
_Entry: TypeAlias = tuple[Rank, int, Node]

_SLACK = 64  # dead entries below which a rebuild is not worth it

POLICIES: Mapping[str, Policy] = MappingProxyType(
    {
        "lru": lambda usage: (usage.access, 0),
        "lfu": lambda usage: (usage.hits, usage.access),
        "fifo": lambda usage: (usage.created, 0),
        "mru": lambda usage: (-usage.access, 0),
        "filo": lambda usage: (-usage.created, 0),
        "slru": lambda usage: (min(usage.hits, 1), usage.access),
        "priority": lambda usage: (usage.priority, usage.access),
    }
)


def policy_named(name: str) -> Policy:
    """The policy of that name. Raises `InvalidSize`, listing the names, when there is none."""
    if name not in POLICIES:
        raise InvalidSize(f"there is no eviction policy {name!r}. Choose one of {', '.join(POLICIES)}.")
    return POLICIES[name]


def node_rank(policy: Policy, *, has_states: bool) -> Callable[[Node], Rank]:
    """For whole nodes: in a tree with states, a leaf without one is useless."""
    return lambda node: (not has_states or node.state is not None, *policy(node))


def window_rank(policy: Policy) -> Callable[[Node], Rank]:
    """For windows: those inside prompts go before those that a sequence ended with, whatever their age.

    A prompt brings in far more of them, and each is useful only to a request that branches exactly there. Of windows
    used at one time the one nearest the root goes first, so that the branch can still be matched.
    """
    return lambda node: (node.window.was_needed, *policy(node.window), node.end)


def state_rank(policy: Policy) -> Callable[[Node], Rank]:
    """For states: one that a single longer sequence extends is useful only to a request that branches exactly here."""

    def rank(node: Node) -> Rank:
        part = node.state
        assert part is not None, "only nodes with states wait to lose them"
        return (not part.is_superseded, *policy(part))

    return rank


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
