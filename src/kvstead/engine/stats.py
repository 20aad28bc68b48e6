"""Where the bytes are."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from kvstead.arena import Chain
from kvstead.engine.memory import Memory
from kvstead.pages.amounts import FULL, STATE, WINDOW, Amounts
from kvstead.prefix import PrefixTree

FULL_SIDE, WINDOW_SIDE, STATE_SIDE = FULL, WINDOW, STATE
STATES = ("live", "cached", "parked", "free", "padding")


@dataclass(frozen=True, slots=True)
class SideStats:
    """Bytes of one side of the memory by state; `by_state` adds up to `total_bytes`.

    live: held by running requests, shared prefixes included. cached: prefixes that no running request uses, evicted
    when memory is short. parked: freed in an open group. padding: the page that kernels may write to, and what is left
    over when the memory is no whole number of pages.

    In an arena what is free is `hole`, free pages inside a pool's span, and `gap`, between spans; `sink` is its padding
    page and `padding` what lies between spans and is too small for a page. A side there has no gap of its own: its
    total is what its pages take now.
    """

    total_bytes: int
    by_state: Mapping[str, int]

    @property
    def live(self) -> int:
        """Bytes that running requests hold."""
        return self.by_state["live"]

    @property
    def cached(self) -> int:
        """Bytes of prefixes that no running request uses."""
        return self.by_state["cached"]

    @property
    def parked(self) -> int:
        """Bytes that become free at the end of the open free group."""
        return self.by_state["parked"]

    @property
    def free(self) -> int:
        """Free bytes: in an arena holes and gaps."""
        return sum(self.by_state.get(state, 0) for state in ("free", "hole", "gap"))

    @property
    def padding(self) -> int:
        """Bytes that no request can use."""
        return self.by_state.get("padding", 0)


@dataclass(frozen=True, slots=True)
class MemoryStats(SideStats):
    """Bytes of a manager's memory by state, and `by_side`: "full", "window" and "state", those that have bytes.

    Sides with memory of their own add up to the whole, state by state; bytes of no side are missing in the sum of sides
    that share memory.
    """

    by_side: Mapping[str, SideStats]

    def __str__(self) -> str:
        return f"{self.live:,} bytes live, {self.cached:,} cached, of {self.total_bytes:,}"


def live_entries(memory: Memory, tree: PrefixTree, name: str) -> int:
    """Tokens, in whole pages, or states of a side that running requests hold; 0 without that side. O(1)."""
    if name not in memory.plan.sides:
        return 0
    num_pages = memory.allocator.pools[name].num_live - tree.evictable()[name]
    return num_pages * memory.plan.sides[name].page_entries


def memory_stats(memory: Memory, evictable: Amounts) -> MemoryStats:
    """The bytes of a memory, of which the prefix tree could free the evictable pages. O(sides)."""
    return _separate(memory, evictable) if memory.chain is None else _shared(memory, memory.chain, evictable)


def _separate(memory: Memory, evictable: Amounts) -> MemoryStats:
    sides = {}
    for name, side in memory.plan.sides.items():
        if not side.page_bytes:
            continue
        pool, cached = memory.allocator.pools[name], evictable[name]
        free = pool.num_pages - pool.num_live - pool.num_parked
        used = [count * side.page_bytes for count in (pool.num_live - cached, cached, pool.num_parked, free)]
        padding = side.total_bytes - sum(used)
        sides[name] = SideStats(side.total_bytes, dict(zip(STATES, (*used, padding), strict=True)))
    sums = {state: sum(side.by_state[state] for side in sides.values()) for state in STATES}
    return MemoryStats(memory.plan.total_bytes, sums, sides)


def _shared(memory: Memory, chain: Chain, evictable: Amounts) -> MemoryStats:
    found, plan, sides = chain.by_state(), memory.plan, {}
    for name, pool_bytes in found.pools.items():
        cached, pool = evictable[name], memory.allocator.pools[name]
        counts = {"live": pool.num_live - cached, "cached": cached, "parked": pool.num_parked}
        by_state = {state: count * plan.sides[name].page_bytes for state, count in counts.items()}
        if plan.has_arena:
            by_state["hole"] = pool_bytes.hole
        sides[name] = SideStats(sum(by_state.values()), by_state)
    sums = {state: sum(side.by_state[state] for side in sides.values()) for state in sides[FULL].by_state}
    if plan.has_arena:
        rest = {"gap": found.gap, "sink": found.sink, "padding": found.padding}
    else:
        rest = {"free": found.gap, "padding": found.padding + found.sink}
    return MemoryStats(found.total, sums | rest, sides)
