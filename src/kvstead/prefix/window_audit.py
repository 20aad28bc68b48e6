"""The audit of the window side of a tree."""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple

from kvstead.prefix.component import fail
from kvstead.prefix.node import Node
from kvstead.prefix.slot_pools import WindowPool


class WindowCounts(NamedTuple):
    """What `WindowComponent` counts, in pages."""

    evictable: int
    spare: int
    protected: int
    dead: int


def audit_windows(root: Node, pool: WindowPool, counts: WindowCounts, waiting: set[Node]) -> None:
    """Recount liveness, locks, counters and the nodes that wait to lose their window. Raises `AuditError`."""
    nodes = list(root.below())
    locks: Counter[Node] = Counter()
    for node in nodes:
        for start, count in node.window.starts.items():
            for at in node.behind(start):
                locks[at] += count
    for node in nodes:
        has = pool.window_pages[node.pages] > 0
        if not (has == node.window.is_live).all():
            fail(f"{node} is {'live' if node.window.is_live else 'a tombstone'}, {has.sum()} pages have windows")
        if sum(node.window.starts.values()) != node.pins:
            fail(f"{node} has {node.pins} pins, but windows of {node.window.starts} (start: locks)")
        if node.window.locks != locks[node]:
            fail(f"{node} counts {node.window.locks} locks on its window side, but {locks[node]} reach it")
    live = [node for node in nodes if node.window.is_live]
    free = [node for node in live if node.window.locks == 0]
    spare = sum(node.pages.size for node in free if not node.window.was_needed)
    evictable, num_live = (sum(node.pages.size for node in some) for some in (free, live))
    dead = sum(node.pages.size for node in nodes) - num_live
    found = WindowCounts(evictable, spare, num_live - evictable, dead)
    if counts != found:
        fail(f"window pages are counted as {counts}, but the nodes hold {found}")
    if waiting != set(free):
        fail(f"{len(waiting)} nodes wait to lose their window, and they are not the unlocked live ones")
