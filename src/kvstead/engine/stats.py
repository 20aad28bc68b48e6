"""Where the bytes are."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class MemoryStats:
    """Bytes of a manager's memory by state; `live + cached + parked + free + padding == total`.

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

    @property
    def by_state(self) -> dict[str, int]:
        """The states by name, in the order of the sum."""
        return {
            "live": self.live,
            "cached": self.cached,
            "parked": self.parked,
            "free": self.free,
            "padding": self.padding,
        }
