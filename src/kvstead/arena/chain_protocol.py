"""What allocators and the memory plan ask of pools that share bytes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

import torch

from kvstead.arena.accounting import ArenaBytes
from kvstead.arena.page_map import PageMap
from kvstead.kernels.array_types import IntArray
from kvstead.pages.places import Places


class Chain(Protocol):
    """Pools by name. Their pages have ids from 1 upward, int64[k], which a free list hands out.

    `PoolChain` keeps them in an arena, where they move; `SharedBytes` counts them. Every method is O(pools), and O(k)
    where it is given ids, save `clear` and `audit`. An unknown pool is a `LayoutError`, a negative number of pages an
    `InvalidSize`. `bytes_moved` and `num_moves` count copied bytes and pages since the start.
    """

    bytes_moved: int
    num_moves: int

    @property
    def device(self) -> torch.device:
        """Where the bytes are."""
        ...

    def page_size(self, pool: str) -> int:
        """Entries in a page of the pool."""
        ...

    def num_ids(self, pool: str) -> int:
        """Pages that the pool could hold alone: their ids are 1 to this."""
        ...

    def num_used(self, pool: str) -> int:
        """Pages of the pool that are live or parked."""
        ...

    def places(self, pool: str) -> Places:
        """The places of the pool's pages, for the free list of its ids."""
        ...

    def page_map(self, pool: str) -> PageMap | None:
        """Where the pool's pages lie, for kernels; None where a page lies at its id."""
        ...

    def take(self, pool: str, v_pages: IntArray) -> IntArray | None:
        """Make room for free ids: the pages they get, in any order; None if and only if not `fits`."""
        ...

    def release(self, pool: str, v_pages: IntArray) -> None:
        """Make used pages free."""
        ...

    def fits(
        self,
        demand: Mapping[str, int],
        moves: bool | None = None,  # noqa: FBT001 - a third answer
        *,
        without: Mapping[str, int] | None = None,
    ) -> bool:
        """Whether every pool can take its number of pages now, or once `without` used pages of each are released."""
        ...

    def holds(self, demand: Mapping[str, int]) -> bool:
        """Whether there would be room if nothing were held."""
        ...

    def shortfall(self, demand: Mapping[str, int]) -> int:
        """The least number of bytes to free before the demand can fit: 0 if it fits, else 1 or more."""
        ...

    def capacity(self, pools: Sequence[str]) -> int:
        """The most pages that each of `pools` can take at once."""
        ...

    def compact(self, budget_bytes: int | None = None) -> int:
        """Move pages together, for idle moments: the bytes that were copied."""
        ...

    def order(self) -> None:
        """Order what is written next behind the last forward pass."""
        ...

    def clear(self, pool: str | None = None) -> None:
        """Make every page, or every page of one pool, free."""
        ...

    def by_state(self) -> ArenaBytes:
        """Count every byte by its state."""
        ...

    def audit(self) -> None:
        """Check every table and count. Raises `AuditError`."""
        ...
