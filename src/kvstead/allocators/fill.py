"""What the repr of an allocator says: what it is, and how full its pools are."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol


class Filled(Protocol):
    """A pool that counts its pages."""

    @property
    def num_live(self) -> int:
        """Pages that requests or the cache hold."""

    @property
    def num_pages(self) -> int:
        """Pages of the pool, without the padding page."""


def fill_text(allocator: object, page_size: int, pools: Mapping[str, Filled]) -> str:
    """As `<PagedAllocator: full 7 of 64 pages live, page size 16>`, with each of its pools by name. O(pools)."""
    fills = ", ".join(f"{name} {pool.num_live:,} of {pool.num_pages:,} pages live" for name, pool in pools.items())
    return f"<{type(allocator).__name__}: {fills}, page size {page_size}>"
