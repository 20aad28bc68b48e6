"""Where the pages of a free list lie, when their bytes belong to an arena."""

from __future__ import annotations

from typing import Protocol

from kvstead.kernels.array_types import IntArray
from kvstead.pages.page_table import PageTable


class Places(Protocol):
    """The places of one pool's pages in bytes that several pools share.

    A free list hands out ids that never change; the page of a live or parked id lies at a place that may change. Ids
    and places are int64[k].
    """

    def place(self, num_pages: int) -> IntArray | None:
        """Make room for pages, moving others as needed: their places; None if and only if there is no room."""

    def bind(self, pages: IntArray, places: IntArray) -> None:
        """Give ids that were just taken the places that `place` returned for as many."""

    def release(self, pages: IntArray) -> None:
        """Give up the places of ids."""

    def capacity(self) -> int:
        """Pages that `place` has room for now, the other pools as they are."""

    def translate(self, slots: IntArray, page_size: int, table: PageTable) -> IntArray:
        """Where slots lie now: a new int64[k], 0 for -1 and for pages that are not live in `table`.

        Raises `ForeignPage` for a slot below -1 or outside the pool.
        """

    def clear(self) -> None:
        """Give up all places of the pool."""

    def audit(self, table: PageTable) -> None:
        """Check the places against the states of the ids. Raises `AuditError`."""
