"""Rows: those that grow, checked, and their new slots; stretches of rows that are freed, and their pages."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple, NoReturn, TypeAlias

import numpy as np

from kvstead.allocators.checks import refuse_lengths, refuse_shapes, require_page_start
from kvstead.errors import ForeignPage, MisalignedSegment, UseAfterFree
from kvstead.kernels import growing_rows, host, windows
from kvstead.kernels.array_types import IntArray, TagArray
from kvstead.kernels.arrays import Integers, to_host
from kvstead.pages import LinkedPool, PageTable
from kvstead.pages.page_table import refuse_segment, require_tag

Segment: TypeAlias = tuple[Integers, int]  # slots, and the position in the row where they start

_NO_PAGES: IntArray = np.empty(0, dtype=np.int64)


class Rows(NamedTuple):
    """Rows that are to grow: int64[rows] each, tags int32[rows] or None, and what they take together."""

    prefix: IntArray
    seq: IntArray
    last: IntArray
    tags: TagArray | None
    num_slots: int
    num_pages: int


def plan(
    table: PageTable,
    page_size: int,
    prefix_lens: Integers,
    seq_lens: Integers,
    last_locs: Integers,
    owners: Integers | None,
    link: LinkedPool | None = None,
) -> Rows:
    """Check rows that are to grow in pages of `table`, and count what they take. Raises as `Allocator.alloc_extend`.

    link: a pool with which the page must be linked that a row grows in.
    """
    prefix, seq, last = to_host(prefix_lens), to_host(seq_lens), to_host(last_locs)
    if not prefix.size == seq.size == last.size:
        refuse_shapes(prefix.size, seq.size, last.size)
    fault, row, num_slots, num_pages = growing_rows.extend_demand(table.state, prefix, seq, last, page_size)
    if fault:
        refuse_row(table, page_size, fault, row, int(prefix[row]), int(seq[row]), int(last[row]))
    if link is not None:
        row = windows.bare_row(link.linked, prefix, seq, last, page_size)
        if row >= 0:
            _refuse_bare(row, int(last[row]), page_size)
    return Rows(prefix, seq, last, None if owners is None else tags(owners, seq.size), num_slots, num_pages)


def new_slots(table: PageTable, page_size: int, rows: Rows, pages: IntArray) -> IntArray:
    """The rows' new slots, int64[num_slots], once their pages are taken; writes the rows' tags on the pages."""
    if rows.tags is not None:
        growing_rows.tag_rows(table.owner, rows.prefix, rows.seq, page_size, pages, rows.tags)
    slots = np.empty(rows.num_slots, dtype=np.int64)
    growing_rows.extend_slots(rows.prefix, rows.seq, rows.last, page_size, pages, slots)
    return slots


def pages_of(pairs: Iterable[Segment], page_size: int) -> list[IntArray]:
    """The pages of each of several stretches of rows: arrays, at least one. Raises `MisalignedSegment`."""
    pages = [_NO_PAGES]
    for slots, start_pos in pairs:
        require_page_start(start_pos, page_size)
        pages.append(segment_pages(to_host(slots), page_size))
    return pages


def segment_pages(slots: IntArray, page_size: int) -> IntArray:
    """The pages of a row segment, the last of which may be partial: int64[k], a new array; their states do not matter.

    Raises `MisalignedSegment` where the slots are not consecutive from a page's start. O(slots).
    """
    pages = np.empty(-(-slots.size // page_size), dtype=np.int64)
    bad = windows.pages_of_segment(slots, page_size, pages)
    if bad >= 0:
        refuse_segment(slots, page_size, bad)
    return pages


def all_slots(pages: IntArray, page_size: int) -> IntArray:
    """The slots of pages, int64[pages * page_size], page by page; at page size 1 the pages themselves."""
    if page_size == 1:
        return pages
    slots = np.empty(pages.size * page_size, dtype=np.int64)
    host.expand_pages(pages, page_size, slots)
    return slots


def require_linked(link: LinkedPool, slots: IntArray, page_size: int) -> None:
    """Raise `UseAfterFree` for the first row that would grow by one in a page without a linked page.

    slots: the next slot of each row, -1 where a row opens a page.
    """
    row = windows.bare_slot(link.linked, slots, page_size)
    if row >= 0:
        _refuse_bare(row, int(slots[row]) - 1, page_size)


def tags(owners: Integers, num_rows: int) -> TagArray:
    """Owner tags as an array that kernels take: int32[num_rows]. Raises `InvalidSize` for other tags or numbers."""
    if isinstance(owners, np.ndarray) and owners.dtype == np.int32 and owners.flags.carray:
        array = owners.reshape(-1)
    else:
        array = to_host(owners)  # kernels take no read-only array, and must not fail once pages are taken
    if array.size != num_rows:
        refuse_shapes(num_rows, array.size)
    if array.dtype != np.int32 and array.size:
        require_tag(int(array.min()))
        require_tag(int(array.max()))
    return np.ascontiguousarray(array, dtype=np.int32)


def refuse_row(table: PageTable, page_size: int, fault: int, row: int, prefix: int, seq: int, last: int) -> NoReturn:
    """Raise the error for a row that cannot grow from `prefix` to `seq` tokens behind slot `last`."""
    if fault == host.FAULT_LENGTHS:
        refuse_lengths(row, prefix, seq)
    if fault == host.FAULT_OFFSET:
        raise MisalignedSegment(
            f"row {row} has {prefix} tokens but its last slot is {last}, which lies at offset {last % page_size} of "
            f"its page of {page_size}. Pass the slot of token {prefix - 1} (-1 for an empty row)."
        )
    page = last // page_size
    if fault == host.FAULT_FOREIGN:
        raise ForeignPage(
            f"row {row} would grow behind slot {last}, in page {page}; the pool's pages are 1..{table.num_pages}. Pass "
            "the slot of the row's last token."
        )
    why = "another row of this batch grows in it too" if fault == host.FAULT_SHARED else "nobody holds it any more"
    raise UseAfterFree(
        f"row {row} would grow in page {page} (last owner {table.owner[page]}) behind slot {last}, but {why}. Rows "
        "share whole pages only, and a freed row starts again from nothing."
    )


def _refuse_bare(row: int, last: int, page_size: int) -> NoReturn:
    raise UseAfterFree(
        f"row {row} would grow behind slot {last}, in page {last // page_size}, whose window page is gone: its new "
        "tokens would have no window slot. Free the window side of whole pages only, up to the last page that is full."
    )
