"""Where the bytes are."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from operator import mul
from typing import TYPE_CHECKING, Self

from kvstead.allocators import WindowSide
from kvstead.arena.accounting import ArenaBytes
from kvstead.engine.room import FULL, STATE, WINDOW

if TYPE_CHECKING:
    from kvstead.engine.view import MemoryView

FULL_SIDE, WINDOW_SIDE, STATE_SIDE = FULL, WINDOW, STATE
STATES = ("live", "cached", "parked", "free", "padding")


@dataclass(frozen=True, slots=True)
class SideStats:
    """Bytes of one side of the memory by state; `by_state` adds up to `total_bytes`.

    live: held by running requests, shared prefixes included. cached: prefixes that nobody uses at the moment, evicted
    when room is short. parked: freed in an open group. padding: the page that kernels may scribble on, and what is left
    over when the memory is no whole number of pages.

    In an arena what is free is `hole`, free pages in the midst of a pool's span, and `gap`, between spans; `sink` is
    its padding page and `padding` what lies between spans and is too small for a page. A side there has no gap of its
    own: its total is what its pages take now.
    """

    total_bytes: int
    by_state: Mapping[str, int]

    @property
    def live(self) -> int:
        """Held by running requests."""
        return self.by_state["live"]

    @property
    def cached(self) -> int:
        """Held for whoever comes back."""
        return self.by_state["cached"]

    @property
    def parked(self) -> int:
        """Waiting for the end of a free group."""
        return self.by_state["parked"]

    @property
    def free(self) -> int:
        """Nobody's: in an arena holes and gaps."""
        return sum(self.by_state.get(state, 0) for state in ("free", "hole", "gap"))

    @property
    def padding(self) -> int:
        """Of no use to anybody."""
        return self.by_state.get("padding", 0)

    @classmethod
    def of(cls, total_bytes: int, unit_bytes: int, live: int, cached: int, parked: int, free: int) -> Self:
        """From numbers of slots, or states, of `unit_bytes` each; what is left of `total_bytes` is padding."""
        used = [count * unit_bytes for count in (live, cached, parked, free)]
        return cls(total_bytes, dict(zip(STATES, (*used, total_bytes - sum(used)), strict=True)))


@dataclass(frozen=True, slots=True)
class MemoryStats(SideStats):
    """Bytes of a manager's memory by state, and `by_side`: "full", "window" and "state", those that have bytes.

    Sides with memory of their own add up to the whole, state by state; sides that share it leave out what is no side's.
    """

    by_side: Mapping[str, SideStats]


def memory_stats(memory: MemoryView) -> MemoryStats:
    """The bytes of a memory. O(1)."""
    return _separate(memory) if memory.chain is None else _shared(memory.chain.by_state(), memory)


def _separate(memory: MemoryView) -> MemoryStats:
    plan, tree, allocator = memory.plan, memory.tree, memory.allocator
    sides = {}
    if plan.token_bytes:
        live, cached, parked = memory.live_tokens(), tree.evictable_tokens, allocator.parked_size()
        counts = live, cached, parked, memory.num_slots - live - cached - parked
        total = plan.total_bytes - plan.window_bytes - plan.states_bytes
        sides[FULL_SIDE] = SideStats.of(total, plan.token_bytes, *counts)
    if isinstance(allocator, WindowSide):
        live, cached, parked = memory.window_live_tokens(), tree.window_evictable_tokens, allocator.swa_parked_size()
        counts = live, cached, parked, memory.num_window_slots - live - cached - parked
        sides[WINDOW_SIDE] = SideStats.of(plan.window_bytes, plan.window_token_bytes, *counts)
    if allocator.states is not None:
        live, cached, parked = memory.live_states(), tree.evictable_states, allocator.states.parked_size()
        counts = live, cached, parked, memory.num_states - live - cached - parked
        sides[STATE_SIDE] = SideStats.of(plan.states_bytes, plan.state_bytes, *counts)
    sums = {state: sum(side.by_state[state] for side in sides.values()) for state in STATES}
    return MemoryStats(plan.total_bytes, sums, sides)


def _shared(found: ArenaBytes, memory: MemoryView) -> MemoryStats:
    plan, evictable = memory.plan, memory.room.evictable()
    cached = dict(zip((FULL, WINDOW, STATE), map(mul, evictable, plan.own_page_bytes), strict=True))
    sides = {}
    page_bytes = dict(zip((FULL, WINDOW, STATE), plan.own_page_bytes, strict=True))
    for name, pool in found.pools.items():
        parked = memory.allocator.pools[name].num_parked * page_bytes[name]
        by_state = {"live": pool.used - parked - cached[name], "cached": cached[name], "parked": parked}
        if plan.has_arena:
            by_state["hole"] = pool.hole
        sides[name] = SideStats(sum(by_state.values()), by_state)
    sums = {state: sum(side.by_state[state] for side in sides.values()) for state in sides[FULL].by_state}
    if plan.has_arena:
        rest = {"gap": found.gap, "sink": found.sink, "padding": found.padding}
    else:
        rest = {"free": found.gap, "padding": found.padding + found.sink}
    return MemoryStats(found.total, sums | rest, sides)
