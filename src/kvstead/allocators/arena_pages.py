"""Pages that have ids of their own and share bytes with those of other pools.

    FreeList     which ids are free, live or parked, and whose they are      what callers hold, never changes
    Chain        where the page of each live or parked id lies now           what kernels read, may change

To whoever allocates, it is a free list; the chain says how many pages there are to take.
"""

from __future__ import annotations

import numpy as np

from kvstead.arena import Chain
from kvstead.errors import AuditError
from kvstead.kernels import host
from kvstead.kernels.array_types import IntArray
from kvstead.pages import FreeList
from kvstead.pages.page_table import require_tag


class ArenaPages(FreeList):
    """The pages of one pool of `chain`, by ids 1 .. `num_pages`: as many as the pool could ever hold alone.

    That many ids may be free and no page: `capacity` says what can be taken, and `take` is None if and only if the
    chain has no room. Everything else is as in a free list of pages that stay where they are.

    Raises `LayoutError` for a pool that the chain does not have, `InvalidSize` for an unknown order.
    """

    __slots__ = ("chain", "pool")

    def __init__(self, chain: Chain, pool: str, order: str = "lifo") -> None:
        super().__init__(chain.num_ids(pool), order)
        self.chain = chain
        self.pool = pool

    def capacity(self) -> int:
        """Pages that `take` can hand out now, with the other pools as they are."""
        return min(self.num_free, self.chain.capacity((self.pool,)))

    def translate(self, slots: IntArray, page_size: int) -> IntArray:
        """The physical slots, a new int64[k]; see `PageMap.translate`."""
        page_map = self.chain.page_map(self.pool)
        return super().translate(slots, page_size) if page_map is None else page_map.translate(slots, page_size)

    def take(self, num_pages: int, owner: int = 0) -> IntArray | None:
        """Hand out pages, tagged with `owner`: int64[num_pages], the caller's own array; None when short."""
        require_tag(owner)
        if num_pages > self.num_free or not self.chain.fits({self.pool: num_pages}):
            return None
        pages = super().take(num_pages, owner)
        assert pages is not None, "the ids were counted first"
        placed = self.chain.take(self.pool, pages)
        assert placed is not None, "the chain was asked first"
        return pages

    def give(self, pages: IntArray) -> None:
        """Make live pages available again. Raises `DoubleFree` or `ForeignPage` and then changes nothing."""
        super().give(pages)
        self.chain.release(self.pool, pages)

    def give_slots(self, slots: IntArray, page_size: int) -> IntArray:
        """Make the pages that live slots lie in available again, each once."""
        return self._release_in_chain(super().give_slots(slots, page_size))

    def give_segment(self, slots: IntArray, page_size: int) -> IntArray:
        """Make the pages of a row segment available again."""
        return self._release_in_chain(super().give_segment(slots, page_size))

    def park(self, pages: IntArray) -> IntArray:
        """Make live pages parked; their bytes are kept, wherever they move."""
        return self._park_in_chain(super().park(pages))

    def park_slots(self, slots: IntArray, page_size: int) -> IntArray:
        """Park the pages that live slots lie in, each once."""
        return self._park_in_chain(super().park_slots(slots, page_size))

    def park_segment(self, slots: IntArray, page_size: int) -> IntArray:
        """Park the pages of a row segment."""
        return self._park_in_chain(super().park_segment(slots, page_size))

    def unpark(self, pages: IntArray) -> None:
        """Make parked pages available; `pages` is what a `park` returned."""
        super().unpark(pages)
        self.chain.unpark(self.pool, pages)

    def restore(self, pages: IntArray) -> None:
        """Take a `park` back."""
        super().restore(pages)
        self.chain.restore(self.pool, pages)

    def clear(self) -> None:
        """Every page of this pool is free again, whoever held it."""
        super().clear()
        self.chain.clear(self.pool)

    def audit(self) -> None:
        """As a free list, and hold it against the chain, which is audited as a whole. Raises `AuditError`. O(pages)."""
        super().audit()
        self.chain.audit()
        num_used = self.table.num_live + self.table.num_parked
        if self.chain.num_used(self.pool) != num_used:
            raise AuditError(
                f"pool {self.pool!r}: {num_used} pages are in use by their ids, {self.chain.num_used(self.pool)} in "
                "the chain. Only the allocator may take from its pool of the chain."
            )
        page_map = self.chain.page_map(self.pool)
        if page_map is not None:
            self._audit_places(page_map.v2p[1 : self.num_pages + 1])

    def _audit_places(self, v2p: IntArray) -> None:
        states = np.where(v2p > 0, host.LIVE, np.where(v2p < -1, host.PARKED, host.FREE))
        odd = np.flatnonzero(states != self.table.state[1:]) + 1
        if odd.size:
            raise AuditError(
                f"pool {self.pool!r}: pages {odd.tolist()} are in one state by their ids and in another by their "
                "places. Only the allocator may take from its pool of the chain."
            )

    def _release_in_chain(self, pages: IntArray) -> IntArray:
        self.chain.release(self.pool, pages)
        return pages

    def _park_in_chain(self, pages: IntArray) -> IntArray:
        self.chain.park(self.pool, pages)
        return pages
