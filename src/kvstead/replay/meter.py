"""What a memory holds over the clock: its bytes by state and side, averaged, and the most that was held at once."""

from __future__ import annotations

from collections.abc import Mapping

from kvstead.engine import KVCacheManager
from kvstead.engine.stats import FULL_SIDE, WINDOW_SIDE
from kvstead.model import BOUNDED, WHOLE_SEQUENCE, CacheKind, ModelLayout


class MemoryMeter:
    """Adds up what one manager holds, in slots x seconds; `spend` is called at every step and is O(1)."""

    __slots__ = (
        "_cached_time",
        "_live_time",
        "_manager",
        "_seconds",
        "_window_cached_time",
        "_window_live_time",
        "peak_bytes",
    )

    def __init__(self, manager: KVCacheManager) -> None:
        self._manager = manager
        self._seconds = 0.0
        self._live_time = 0.0
        self._cached_time = 0.0
        self._window_live_time = 0.0
        self._window_cached_time = 0.0
        self.peak_bytes = 0  # live and cached, both sides together

    def spend(self, seconds: float) -> None:
        """Note that the memory is used for so long as it is used now."""
        manager = self._manager
        live, cached = manager.live_tokens(), manager.tree.evictable_tokens
        held = (live + cached) * manager.token_bytes
        self._seconds += seconds
        self._live_time += live * seconds
        self._cached_time += cached * seconds
        if manager.window is not None:
            live, cached = manager.window_live_tokens(), manager.tree.window_evictable_tokens
            held += (live + cached) * manager.window_token_bytes
            self._window_live_time += live * seconds
            self._window_cached_time += cached * seconds
        self.peak_bytes = max(self.peak_bytes, held)

    def mean_by_side(self) -> dict[str, dict[str, int]]:
        """Per side that has bytes: `total_bytes`, and averages by state that sum to it.

        Whole bytes; what rounding leaves over counts as free. Nothing is parked on average: frees are parked only
        while results are processed, for no time of the clock.
        """
        manager, seconds = self._manager, self._seconds or 1.0
        held = {
            FULL_SIDE: (self._live_time, self._cached_time, manager.token_bytes),
            WINDOW_SIDE: (self._window_live_time, self._window_cached_time, manager.window_token_bytes),
        }
        means = {}
        for name, side in manager.stats().by_side.items():
            live_time, cached_time, token_bytes = held[name]
            live, cached = (int(time / seconds * token_bytes) for time in (live_time, cached_time))
            free = side.total_bytes - side.padding - live - cached
            means[name] = {
                "total_bytes": side.total_bytes,
                "live": live,
                "cached": cached,
                "parked": 0,
                "free": free,
                "padding": side.padding,
            }
        return means


def bytes_by_kind(layout: ModelLayout, by_side: Mapping[str, Mapping[str, int]]) -> dict[str, int]:
    """Bytes live or cached by kind, in the order of the layout's kinds; they sum to those of the sides.

    by_side: bytes by state of each side. A side's bytes divide among its kinds as their bytes per token do; what
    rounding leaves over goes to the last of them.
    """
    by_kind: dict[CacheKind, int] = {}
    for name, kinds in ((FULL_SIDE, WHOLE_SEQUENCE), (WINDOW_SIDE, BOUNDED)):
        shares = {kind: layout.bytes_per_token(kind) for kind in layout.kinds if kind in kinds}
        if not shares:
            continue
        held, weight = by_side[name]["live"] + by_side[name]["cached"], sum(shares.values())
        parts = {kind: held * share // weight for kind, share in shares.items()}
        parts[max(parts, key=layout.kinds.index)] += held - sum(parts.values())
        by_kind |= parts
    return {str(kind): by_kind[kind] for kind in layout.kinds}
