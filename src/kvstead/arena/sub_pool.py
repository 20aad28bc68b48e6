"""One pool of an arena: its pages on the arena, their holes, and who holds them."""

from __future__ import annotations

from typing import NamedTuple

from kvstead.arena.page_map import PageMap
from kvstead.arena.span import Span
from kvstead.errors import AuditError
from kvstead.kernels.array_types import IntArray
from kvstead.pools.byte_arena import ByteArena
from kvstead.pools.entry_spec import EntrySpec


class PoolBytes(NamedTuple):
    """Bytes of one pool's pages by state."""

    live: int
    parked: int
    hole: int


class SubPool:
    """A span and a page map that agree, and the bytes they are about.

    `num_parked` counts pages freed inside an open group. Pages are int64[k]; calls are O(k). Whoever calls sees to
    room, order and fences (`PoolChain`).
    """

    __slots__ = ("arena", "map", "num_parked", "span", "spec")

    def __init__(self, arena: ByteArena, spec: EntrySpec, num_virtual: int) -> None:
        self.arena = arena
        self.spec = spec
        num_pages = arena.num_pages(spec)
        self.span = Span(arena.first_page(spec), num_pages, int(spec.place), spec.page_bytes)
        self.map = PageMap(num_virtual, num_pages)
        self.num_parked = 0

    @property
    def num_live(self) -> int:
        """Pages that somebody holds."""
        return self.span.extent.num_used - self.num_parked

    def grant(self, v_pages: IntArray, lo: int, hi: int) -> IntArray:
        """Give free virtual pages holes and what the span gains by growing to `lo` and `hi`: the physical pages."""
        pages = self.span.take(v_pages.size, lo, hi)
        self.map.bind(v_pages, pages)
        return pages

    def release(self, v_pages: IntArray) -> bool:
        """Make live pages holes. Says whether the span gave up bytes. Raises `DoubleFree` or `ForeignPage`."""
        return self.span.give(self.map.unbind(v_pages))

    def park(self, v_pages: IntArray) -> None:
        """Make live pages parked. Raises `DoubleFree` or `ForeignPage`."""
        self.map.park(v_pages)
        self.num_parked += v_pages.size

    def unpark(self, v_pages: IntArray) -> bool:
        """Make parked pages holes. Says whether the span gave up bytes."""
        pages = self.map.unbind_parked(v_pages)
        self.num_parked -= v_pages.size
        return self.span.give(pages)

    def restore(self, v_pages: IntArray) -> None:
        """Make parked pages live again."""
        self.map.restore(v_pages)
        self.num_parked -= v_pages.size

    def retreat(self, side: int, num_pages: int) -> int:
        """Clear the outermost pages on `side` (`Span.retreat`), bytes and owners with them: the number of copies."""
        src, dst = self.span.retreat(side, num_pages)
        self.arena.copy(self.spec, dst, src)
        self.map.rebind(src, dst)
        return int(src.size)

    def clear(self) -> None:
        """Every page is free, whoever held it. O(pages)."""
        self.span.clear()
        self.map.clear()
        self.num_parked = 0

    def by_state(self) -> PoolBytes:
        """Bytes of its pages."""
        page_bytes = self.spec.page_bytes
        counts = self.num_live, self.num_parked, self.span.extent.num_holes
        return PoolBytes(*(count * page_bytes for count in counts))

    def audit(self) -> None:
        """Hold span, map and counts against each other. Raises `AuditError`, naming the pool. O(pages)."""
        try:
            self.span.audit()
            self.map.audit()
            self._audit_owners()
        except AuditError as error:
            raise AuditError(f"pool {self.spec.name!r}: {error}") from None

    def _audit_owners(self) -> None:
        extent, p2v = self.span.extent, self.map.p2v
        inside = p2v[extent.lo : extent.hi]
        num_owned = int((p2v != -1).sum()) - 1  # without the sink
        num_live, num_parked = int((inside >= 0).sum()), int((inside < -1).sum())
        if num_owned != num_live + num_parked:
            raise AuditError(f"{num_owned} pages have owners, {num_live + num_parked} of them inside the span.")
        if (num_live, num_parked) != (self.num_live, self.num_parked):
            raise AuditError(
                f"{num_live} pages are live and {num_parked} parked where the counts say {self.num_live} and "
                f"{self.num_parked}. A page is lost or counted twice."
            )
        holes = self.span.holes()
        held = holes[p2v[holes] != -1]
        if held.size:
            raise AuditError(f"pages {held.tolist()} are holes and have owners. A page is both free and held.")
