"""What a memory holds over the clock: its bytes by state and side, averaged, and the most that was held at once."""

from __future__ import annotations

from collections.abc import Mapping

from kvstead.engine.manager import KVCacheManager
from kvstead.engine.memory_plan import SIDE_KINDS, Side
from kvstead.model import CacheKind, ModelLayout
from kvstead.pages import FreeList


class _HeldOverTime:
    """One side's tokens, or states, over time.

    excess_bytes: what one takes of shared bytes beyond its own. `*_time` are numbers x seconds, `hole_time` is bytes x
    seconds.
    """

    __slots__ = ("cached_time", "excess_bytes", "hole_time", "live_time", "pool", "side")

    def __init__(self, side: Side, pool: FreeList, excess_bytes: float) -> None:
        self.side = side
        self.pool = pool
        self.excess_bytes = excess_bytes
        self.live_time = self.cached_time = self.hole_time = 0.0


class MemoryMeter:
    """Adds up what one manager holds, over time; `spend` is called at every step and is O(sides)."""

    __slots__ = ("_arena", "_manager", "_padding_time", "_seconds", "_sides", "peak_bytes", "peak_live_bytes")

    def __init__(self, manager: KVCacheManager) -> None:
        plan, pools = manager.plan, manager.allocator.pools
        self._manager = manager
        self._sides = [
            _HeldOverTime(side, pools[name], max(0, plan.page_bytes[name] - side.page_bytes) / side.page_entries)
            for name, side in plan.sides.items()
            if side.page_bytes
        ]
        self._arena = manager.chain if plan.has_arena else None
        self._padding_time = 0.0
        self._seconds = 0.0
        self.peak_bytes = self.peak_live_bytes = 0  # all sides together, with what is cached and without

    def spend(self, seconds: float) -> None:
        """Note that the memory stays as it is now for that time."""
        held, held_live, evictable = 0, 0, self._manager.tree.evictable()
        self._seconds += seconds
        for each in self._sides:
            cached = evictable[each.side.name]
            live = each.pool.num_live - cached
            held += (live + cached) * each.side.page_bytes
            held_live += live * each.side.page_bytes
            each.live_time += live * each.side.page_entries * seconds
            each.cached_time += cached * each.side.page_entries * seconds
        self.peak_bytes = max(self.peak_bytes, held)
        self.peak_live_bytes = max(self.peak_live_bytes, held_live)
        if self._arena is not None:
            found = self._arena.by_state()
            self._padding_time += found.padding * seconds
            for each in self._sides:
                each.hole_time += found.pools[each.side.name].hole * seconds

    def mean_by_side(self) -> dict[str, dict[str, int]]:
        """Per side that has bytes: `total_bytes`, and averages by state that sum to it.

        Whole bytes. In a side with bytes of its own, what rounding leaves over counts as free; one that shares bytes
        has no free ones but its holes in an arena, so that its total is an average too. Nothing is parked on average:
        frees are parked only while results are processed, for no time of the clock.
        """
        seconds, stats = self._seconds or 1.0, self._manager.stats().by_side
        means = {}
        for each in self._sides:
            name, unit = each.side.name, each.side.entry_bytes
            live, cached = (int(time / seconds * unit) for time in (each.live_time, each.cached_time))
            by_state = {"live": live, "cached": cached, "parked": 0}
            if self._manager.chain is None:
                total, padding = stats[name].total_bytes, stats[name].padding
                by_state |= {"free": total - padding - live - cached, "padding": padding}
            elif self._arena is not None:
                by_state["hole"] = int(each.hole_time / seconds)
            means[name] = {"total_bytes": sum(by_state.values()), **by_state}
        return means

    def mean_by_state(self, by_side: Mapping[str, Mapping[str, int]]) -> dict[str, int]:
        """Averages that sum to the memory's bytes: those of the sides, and of the bytes that belong to no side.

        by_side: from `mean_by_side`. Whole bytes; what rounding leaves over counts as free, in an arena as gap.
        """
        sides, seconds = list(by_side.values()), self._seconds or 1.0
        sums = {state: sum(side[state] for side in sides) for state in sides[0] if state != "total_bytes"}
        if self._manager.chain is None:
            return sums
        sink = self._manager.chain.by_state().sink
        left = self._manager.total_bytes - sum(sums.values()) - sink
        if self._arena is not None:
            padding = int(self._padding_time / seconds)
            return sums | {"gap": left - padding, "sink": sink, "padding": padding}
        excess_time = sum((each.live_time + each.cached_time) * each.excess_bytes for each in self._sides)
        padding = int(excess_time / seconds)
        return sums | {"free": left - padding, "padding": padding + sink}


def bytes_by_kind(layout: ModelLayout, by_side: Mapping[str, Mapping[str, int]]) -> dict[str, int]:
    """Bytes live or cached by kind, in the order of the layout's kinds; they sum to those of the sides.

    by_side: bytes by state of each side. A side's bytes divide among its kinds as their bytes per token do; what
    rounding leaves over goes to the last of them.
    """
    by_kind: dict[CacheKind, int] = {}
    for name, kinds in SIDE_KINDS.items():
        shares = {kind: layout.bytes_per_token(kind) for kind in layout.kinds if kind in kinds}
        if not shares:
            continue
        held, weight = by_side[name]["live"] + by_side[name]["cached"], sum(shares.values())
        parts = {kind: held * share // weight if weight else 0 for kind, share in shares.items()}
        parts[max(parts, key=layout.kinds.index)] += held - sum(parts.values())
        by_kind |= parts
    return {str(kind): by_kind[kind] for kind in layout.kinds}
