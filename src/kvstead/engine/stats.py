"""Where the bytes are."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self

FULL_SIDE = "full"
WINDOW_SIDE = "window"
STATES = ("live", "cached", "parked", "free", "padding")


@dataclass(frozen=True, slots=True)
class SideStats:
    """Bytes of one side of the memory by state; `live + cached + parked + free + padding == total`.

    live: held by running requests, shared prefixes included. cached: prefixes that nobody uses at the moment, evicted
    when room is short. parked: freed in an open group. padding: the page that kernels may scribble on, and what is left
    over when the memory is no whole number of pages.
    """

    total_bytes: int
    live: int
    cached: int
    parked: int
    free: int
    padding: int

    @classmethod
    def of(cls, total_bytes: int, token_bytes: int, live: int, cached: int, parked: int, free: int) -> Self:
        """From slots of `token_bytes` each; what is left of `total_bytes` is padding."""
        used = (live + cached + parked + free) * token_bytes
        return cls(
            total_bytes,
            live * token_bytes,
            cached * token_bytes,
            parked * token_bytes,
            free * token_bytes,
            total_bytes - used,
        )

    @property
    def by_state(self) -> dict[str, int]:
        """The states by name, in the order of the sum."""
        return {state: getattr(self, state) for state in STATES}


@dataclass(frozen=True, slots=True)
class MemoryStats(SideStats):
    """Bytes of a manager's memory by state, and the same `by_side`: "full" and "window", those that have bytes.

    The sides add up to the whole, state by state.
    """

    by_side: Mapping[str, SideStats]

    @classmethod
    def whole(cls, by_side: Mapping[str, SideStats]) -> Self:
        """The sum of the sides."""
        sums = {state: sum(getattr(side, state) for side in by_side.values()) for state in STATES}
        return cls(sum(side.total_bytes for side in by_side.values()), **sums, by_side=by_side)
