"""One pool of an arena: the span of its pages, which of them are holes, and the ids that hold the others."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, Protocol

import numpy as np

from kvstead.arena.page_map import PageMap
from kvstead.arena.span import Span
from kvstead.errors import AuditError
from kvstead.kernels import spans
from kvstead.kernels.array_types import IntArray
from kvstead.kernels.host import FREE, LIVE, PADDING
from kvstead.pages.page_table import PageTable
from kvstead.pools.byte_arena import ByteArena
from kvstead.pools.entry_spec import EntrySpec


class PoolBytes(NamedTuple):
    """Bytes of one pool's pages. used: live or parked. hole: free pages between them."""

    used: int
    hole: int


class Neighbours(Protocol):
    """What a pool asks of the chain that it is in. eager: whether a pool closes its holes at every release."""

    eager: bool

    def make_room(self, index: int, grown: int, num_pages: int) -> tuple[int, int] | None:
        """The edges that give pool `index` `grown` pages more, free now; None where `num_pages` have no room."""

    def note_release(self, index: int, *, shrunk: bool) -> None:
        """Pages of pool `index` have become holes; `shrunk`: its span gave up bytes."""

    def capacity(self, pools: tuple[str, ...]) -> int:
        """The most pages that each of `pools` can take at once."""

    def order(self) -> None:
        """Order what is written next behind the last forward pass."""


class SubPool:
    """A span and a page map that agree, and the bytes they are about: the `Places` of one pool's ids.

    index: the pool's position in the chain. num_virtual: ids that the pool may have. Pages are int64[k]; calls are
    O(k), and the moves. `followers` are called with (dst, src), the physical pages of each move, when its bytes have
    been copied: for what is kept by physical page outside the arena.
    """

    __slots__ = ("_chain", "_index", "arena", "followers", "map", "span", "spec")

    def __init__(self, chain: Neighbours, index: int, arena: ByteArena, spec: EntrySpec, num_virtual: int) -> None:
        self._chain = chain
        self._index = index
        self.arena = arena
        self.spec = spec
        num_pages = arena.num_pages(spec)
        self.span = Span(arena.first_page(spec), num_pages, int(spec.place), spec.page_bytes)
        self.span.extent.most = num_virtual
        self.map = PageMap(num_virtual, num_pages)
        self.followers: list[Callable[[IntArray, IntArray], None]] = []

    def place(self, num_pages: int) -> IntArray | None:
        """Physical pages for `num_pages` ids: holes first, then gaps, then neighbours move; None where nothing fits.

        The caller binds them before anything else happens. With `zero_on_take` the pages are zeroed.
        """
        extent = self.span.extent
        grown = num_pages - extent.num_holes
        edges = (extent.lo, extent.hi) if grown <= 0 else self._chain.make_room(self._index, grown, num_pages)
        if edges is None:
            return None
        is_zeroed = self.spec.zero_on_take and num_pages > 0
        if is_zeroed:
            self._chain.order()  # which may raise: nothing is taken yet
        pages = self.span.take(num_pages, *edges)
        if is_zeroed:
            self.arena.zero(self.spec, pages)
        return pages

    def bind(self, pages: IntArray, places: IntArray) -> None:
        """Bind ids to the physical pages that `place` returned."""
        spans.bind(self.map.v2p, self.map.p2v, pages, places)
        self.map.num_changes += 1

    def release(self, pages: IntArray) -> None:
        """Make the physical pages of ids holes; those at an edge leave the span. O(k), and the moves if eager.

        Raises `ForeignPage` or `DoubleFree` for the first bad id and changes nothing.
        """
        page_map = self.map
        bad, shrunk = self.span.release(page_map.v2p, page_map.p2v, pages)
        if bad >= 0:
            page_map.refuse(int(pages[bad]))
        page_map.num_changes += 1
        if shrunk or self._chain.eager:
            self._chain.note_release(self._index, shrunk=shrunk)

    def capacity(self) -> int:
        """Pages that `place` has room for now, the other pools as they are."""
        return self._chain.capacity((self.spec.name,))

    def translate(self, slots: IntArray, page_size: int, table: PageTable) -> IntArray:
        """The physical slots of slots: a new int64[k], 0 for -1 and for pages that are not live in `table`."""
        places = self.map.translate(slots, page_size)
        if table.num_parked:  # a parked page keeps its place until the group ends
            pages = np.minimum(slots // page_size, table.num_pages)  # ids past the pool's have no place
            places[table.state[pages] != LIVE] = 0
        return places

    def retreat(self, side: int, num_pages: int) -> int:
        """Clear the outermost pages on `side` (`Span.retreat`), bytes and owners with them: the number of copies."""
        src, dst = self.span.retreat(side, num_pages)
        self.arena.copy(self.spec, dst, src)
        self.map.rebind(src, dst)
        if src.size:
            for follow in self.followers:
                follow(dst, src)
        return int(src.size)

    def clear(self) -> None:
        """Give up every place. O(pages)."""
        self.span.clear()
        self.map.clear()
        self._chain.note_release(self._index, shrunk=True)

    def by_state(self) -> PoolBytes:
        """Bytes of its pages, used and holes."""
        extent = self.span.extent
        return PoolBytes(extent.num_used * extent.page_bytes, extent.num_holes * extent.page_bytes)

    def audit(self, table: PageTable | None = None) -> None:
        """Check span and map against each other, and against the states of the ids. Raises `AuditError`. O(pages)."""
        try:
            self.span.audit()
            self.map.audit()
            self._audit_owners()
            if table is not None:
                self._audit_ids(table)
        except AuditError as error:
            raise AuditError(f"pool {self.spec.name!r}: {error}") from None

    def _audit_owners(self) -> None:
        extent, p2v = self.span.extent, self.map.p2v
        num_owned = int((p2v != -1).sum()) - 1  # without the sink
        num_inside = int((p2v[extent.lo : extent.hi] != -1).sum())
        if not num_owned == num_inside == extent.num_used:
            raise AuditError(
                f"{num_owned} pages have owners, {num_inside} of them inside the span, which counts {extent.num_used}. "
                "A page is lost or counted twice."
            )
        holes = self.span.holes()
        held = holes[p2v[holes] != -1]
        if held.size:
            raise AuditError(f"pages {held.tolist()} are holes and have owners. A page is both free and held.")

    def _audit_ids(self, table: PageTable) -> None:
        is_placed = self.map.v2p[: table.num_pages + 1] > 0
        odd = np.flatnonzero(is_placed != ((table.state != FREE) & (table.state != PADDING)))
        if odd.size or np.any(self.map.v2p[table.num_pages + 1 :] > 0):
            raise AuditError(
                f"pages {odd.tolist() or 'past the last id'} are free by their ids and placed in the arena, or the "
                "reverse. Only the pool's free list may place its pages."
            )
