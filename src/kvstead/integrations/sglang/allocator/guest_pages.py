"""Pages of one pool under the ids that the allocator of another pool hands out."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from kvstead.allocators.allocator import Segment
from kvstead.allocators.checks import require_page_start
from kvstead.allocators.free_groups import DefersFrees
from kvstead.arena import PoolChain
from kvstead.errors import InvalidSize
from kvstead.kernels import host
from kvstead.kernels.array_types import IntArray
from kvstead.kernels.arrays import Integers, to_host
from kvstead.pages.free_list import segment_pages
from kvstead.pages.page_table import PageTable


class GuestPages(DefersFrees[tuple["GuestPages", IntArray]]):
    """The pool `pool` of `chain`, for a caller who brings the ids; nobody else may take from it.

    Frees, groups and errors are those of a `kvstead.allocators.Allocator`.
    """

    def __init__(self, chain: PoolChain, pool: str) -> None:
        self.free_group = None
        self.page_size = chain.page_size(pool)
        self.num_pages = chain.num_ids(pool)
        self._chain = chain
        self._pool = pool
        self._ids = PageTable(self.num_pages)

    def available_size(self) -> int:
        """Slots that `take` has room for now."""
        return self._chain.capacity((self._pool,)) * self.page_size

    def take(self, virtual_pages: Integers) -> None:
        """Give free ids a page each, int64[k]. Raises `ForeignPage` for other ids, `InvalidSize` without room."""
        pages = to_host(virtual_pages)
        if self._chain.take(self._pool, pages) is None:
            raise InvalidSize(
                f"{pages.size} pages of pool {self._pool!r} are wanted, and there is room for "
                f"{self.available_size() // self.page_size}. Ask available_size first."
            )
        self._ids.state[pages] = host.LIVE

    def free(self, slots: Integers) -> None:
        """Give back the pages that `slots` lie in. Raises `ForeignPage` or `DoubleFree`, with nothing changed."""
        array = to_host(slots)
        self._free_pages(array.copy() if self.page_size == 1 else np.unique(array // self.page_size))

    def free_segment(self, slots: Integers, *, start_pos: int) -> None:
        """Give back a stretch of a row, whole pages at a time."""
        self.free_segments([(slots, start_pos)])

    def free_segments(self, pairs: Iterable[Segment]) -> None:
        """Give back several stretches, (slots, start_pos) each, all or none. They may not share a page."""
        arrays = [np.empty(0, dtype=np.int64)]
        for slots, start_pos in pairs:
            require_page_start(start_pos, self.page_size)
            arrays.append(segment_pages(to_host(slots), self.page_size))
        self._free_pages(np.concatenate(arrays))

    def unpark(self, parked: Iterable[IntArray]) -> None:
        """Make parked pages available."""
        for pages in parked:
            self._ids.state[pages] = host.FREE
            self._chain.release(self._pool, pages)

    def clear(self) -> None:
        """Every page is free again, whoever held it; an open group is dropped."""
        self.free_group = None
        self._ids.clear()
        self._chain.clear(self._pool)

    def audit(self) -> None:
        """Audit the chain. Raises `AuditError`."""
        self._chain.audit()

    def _free_pages(self, pages: IntArray) -> None:
        """Free pages, at once or when the open group ends; the array is our own."""
        if not pages.size:
            return
        after = host.FREE if self.free_group is None else host.PARKED
        bad = host.move(self._ids.state, pages, host.LIVE, after, np.empty_like(pages), 0)
        if bad >= 0:
            self._ids.refuse(int(pages[bad]))
        if self.free_group is None:
            self._chain.release(self._pool, pages)
        else:
            self.free_group.append((self, pages))
