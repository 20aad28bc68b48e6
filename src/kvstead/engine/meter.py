"""What a memory holds over the clock: its bytes by state and side, averaged, and the most that was held at once."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from kvstead.engine.manager import KVCacheManager
from kvstead.engine.stats import FULL_SIDE, STATE_SIDE, WINDOW_SIDE
from kvstead.model import BOUNDED, WHOLE_SEQUENCE, CacheKind, ModelLayout

_KINDS = ((FULL_SIDE, WHOLE_SEQUENCE), (WINDOW_SIDE, BOUNDED), (STATE_SIDE, (CacheKind.STATE,)))


class _Side:
    """One side's slots, or states, over time.

    unit_bytes: of one of them. excess_bytes: what it takes of shared bytes beyond that. `*_time` are numbers x seconds,
    `hole_time` is bytes x seconds.
    """

    __slots__ = ("cached", "cached_time", "excess_bytes", "hole_time", "live", "live_time", "name", "unit_bytes")

    def __init__(
        self, name: str, live: Callable[[], int], cached: Callable[[], int], unit_bytes: int, excess_bytes: float
    ) -> None:
        self.name = name
        self.live, self.cached = live, cached
        self.unit_bytes, self.excess_bytes = unit_bytes, excess_bytes
        self.live_time = self.cached_time = self.hole_time = 0.0


class MemoryMeter:
    """Adds up what one manager holds, over time; `spend` is called at every step and is O(sides)."""

    __slots__ = ("_arena", "_manager", "_padding_time", "_seconds", "_sides", "peak_bytes")

    def __init__(self, manager: KVCacheManager) -> None:
        self._manager = manager
        self._sides = _sides_of(manager)
        self._arena = manager.chain if manager.plan.has_arena else None
        self._padding_time = 0.0
        self._seconds = 0.0
        self.peak_bytes = 0  # live and cached, all sides together

    def spend(self, seconds: float) -> None:
        """Note that the memory is used for so long as it is used now."""
        held = 0
        self._seconds += seconds
        for side in self._sides:
            live, cached = side.live(), side.cached()
            held += (live + cached) * side.unit_bytes
            side.live_time += live * seconds
            side.cached_time += cached * seconds
        self.peak_bytes = max(self.peak_bytes, held)
        if self._arena is not None:
            found = self._arena.by_state()
            self._padding_time += found.padding * seconds
            for side in self._sides:
                side.hole_time += found.pools[side.name].hole * seconds

    def mean_by_side(self) -> dict[str, dict[str, int]]:
        """Per side that has bytes: `total_bytes`, and averages by state that sum to it.

        Whole bytes. In a side with bytes of its own, what rounding leaves over counts as free; one that shares bytes
        has no free ones but its holes in an arena, so that its total is an average too. Nothing is parked on average:
        frees are parked only while results are processed, for no time of the clock.
        """
        seconds, stats = self._seconds or 1.0, self._manager.stats().by_side
        means = {}
        for side in self._sides:
            live, cached = (int(time / seconds * side.unit_bytes) for time in (side.live_time, side.cached_time))
            by_state = {"live": live, "cached": cached, "parked": 0}
            if self._manager.chain is None:
                total, padding = stats[side.name].total_bytes, stats[side.name].padding
                by_state |= {"free": total - padding - live - cached, "padding": padding}
            elif self._arena is not None:
                by_state["hole"] = int(side.hole_time / seconds)
            means[side.name] = {"total_bytes": sum(by_state.values()), **by_state}
        return means

    def mean_by_state(self, by_side: Mapping[str, Mapping[str, int]]) -> dict[str, int]:
        """Averages that sum to the memory's bytes: those of the sides, and what is no side's.

        by_side: what `mean_by_side` said. Whole bytes; what rounding leaves over counts as free, in an arena as gap.
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
        padding = int(sum((side.live_time + side.cached_time) * side.excess_bytes for side in self._sides) / seconds)
        return sums | {"free": left - padding, "padding": padding + sink}


def _sides_of(manager: KVCacheManager) -> tuple[_Side, ...]:
    """The sides that have bytes: full, window, state."""
    tree, plan = manager.tree, manager.plan
    counts: dict[str, tuple[Callable[[], int], Callable[[], int], int]] = {
        FULL_SIDE: (manager.live_tokens, lambda: tree.evictable_tokens, plan.page_size),
        WINDOW_SIDE: (manager.window_live_tokens, lambda: tree.window_evictable_tokens, plan.page_size),
        STATE_SIDE: (manager.live_states, lambda: tree.evictable_states, 1),
    }
    own = dict(zip(counts, plan.own_page_bytes, strict=True))
    cost = dict(zip(counts, plan.page_bytes, strict=True)) if plan.is_shared else own
    return tuple(
        _Side(name, live, cached, own[name] // per_page, (cost[name] - own[name]) / per_page)
        for name, (live, cached, per_page) in counts.items()
        if own[name]
    )


def bytes_by_kind(layout: ModelLayout, by_side: Mapping[str, Mapping[str, int]]) -> dict[str, int]:
    """Bytes live or cached by kind, in the order of the layout's kinds; they sum to those of the sides.

    by_side: bytes by state of each side. A side's bytes divide among its kinds as their bytes per token do; what
    rounding leaves over goes to the last of them.
    """
    by_kind: dict[CacheKind, int] = {}
    for name, kinds in _KINDS:
        shares = {kind: layout.bytes_per_token(kind) for kind in layout.kinds if kind in kinds}
        if not shares:
            continue
        held, weight = by_side[name]["live"] + by_side[name]["cached"], sum(shares.values())
        parts = {kind: held * share // weight if weight else 0 for kind, share in shares.items()}
        parts[max(parts, key=layout.kinds.index)] += held - sum(parts.values())
        by_kind |= parts
    return {str(kind): by_kind[kind] for kind in layout.kinds}
