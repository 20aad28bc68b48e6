"""Allocators of one pool: pages of any size, and the page size of one token.

A request's row, page size 4, 10 tokens; `row[p] % 4 == p % 4`, whatever pages it has:

    position   0  1  2  3 | 4  5  6  7 | 8  9
    slot      20 21 22 23 | 8  9 10 11 | 40 41          the next decode takes 42, the one after 43, then a new page
                page 5       page 2      page 10
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NoReturn

import numpy as np
import torch

from kvstead.allocators.base import Allocator
from kvstead.allocators.checks import refuse_lengths, refuse_shapes, require_pool, whole_pages
from kvstead.errors import ForeignPage, InvalidSize, MisalignedSegment, UseAfterFree
from kvstead.kernels import host, windows
from kvstead.kernels import rows as row_kernels
from kvstead.kernels.array_types import IntArray, StateArray, TagArray
from kvstead.kernels.arrays import Integers, to_device, to_host
from kvstead.pages import FreeList, Release
from kvstead.pages.page_table import require_tag

_NO_PAGES: IntArray = np.empty(0, dtype=np.int64)


def all_slots(pages: IntArray, page_size: int) -> IntArray:
    """The slots of pages, int64[pages * page_size], page by page; at page size 1 the pages themselves."""
    if page_size == 1:
        return pages
    slots = np.empty(pages.size * page_size, dtype=np.int64)
    host.expand_pages(pages, page_size, slots)
    return slots


class PagedAllocator(Allocator):
    """Slots in pages of `page_size`, for rows that grow page by page.

    size: slots; a remainder that fills no page is unusable (`.size` is the floored figure). page_size: any positive
    number. num_states: slots for recurrent states beside them, in a pool of their own (`states`; None: no states).
    device: where handed-out slots live. order: `lifo`, `fifo` or `lowest`, see `FreeList`. A new pool hands pages out
    from 1 upward.

    Raises `InvalidSize` for a negative size, a page size below 1 or an unknown order.
    """

    def __init__(
        self,
        size: int,
        page_size: int,
        *,
        num_states: int | None = None,
        device: str | torch.device = "cpu",
        order: str = "lifo",
    ) -> None:
        require_pool(size, page_size)
        self._manage(FreeList(size // page_size, order), page_size, device)
        if num_states is not None:
            if num_states < 0:
                raise InvalidSize(f"num_states is {num_states}. Give 0 or more, or None for no states.")
            self._keep_states(FreeList(num_states, order))

    def available_size(self) -> int:
        """Tokens that can be allocated now. What is parked in an open group does not count."""
        return self._free_list.table.num_free * self.page_size

    def parked_size(self) -> int:
        """Tokens freed in the open group: no longer owned, not yet available."""
        return self._free_list.table.num_parked * self.page_size

    def live_size(self) -> int:
        """Tokens that somebody holds, in whole pages."""
        return self._free_list.table.num_live * self.page_size

    def page_states(self) -> StateArray:
        """The state of every page, uint8[num_pages + 1], page 0 first: the allocator's own array, to be read only."""
        return self._free_list.table.state

    def free_pages(self) -> IntArray:
        """All free pages, in the order in which they will be handed out: int64[k], a copy. O(pages)."""
        return self._free_list.contents()

    def owners(self) -> dict[int, int]:
        """Live pages by owner tag. O(pages of the pool)."""
        return self._free_list.table.owners()

    def alloc(self, num_tokens: int, owner: int = 0) -> torch.Tensor | None:
        """Hand out whole pages: int64[num_tokens] slots, page by page; None when short, with nothing changed.

        owner: int32 tag written on the pages. Raises `InvalidSize` for a negative number, `MisalignedSize` for one that
        is no multiple of the page size. O(num_tokens).
        """
        pages = self._take(whole_pages(num_tokens, self.page_size), owner)
        return None if pages is None else to_device(all_slots(pages, self.page_size), self.device)

    def alloc_extend(
        self, prefix_lens: Integers, seq_lens: Integers, last_locs: Integers, owners: Integers | None = None
    ) -> torch.Tensor | None:
        """Grow rows from `prefix_lens` to `seq_lens` tokens.

        prefix_lens, seq_lens, last_locs: one entry a row; `last_locs` is the slot of the row's last token, -1 for an
        empty row. owners: int32 tags for the new pages, one a row (0 if not given). Returns int64[sum(seq - prefix)],
        one row after the other: first the rest of the row's last page, then fresh pages. None when the pool is short,
        decided before any index is computed, with nothing changed.

        Raises `InvalidSize` for lengths that shrink or do not match in number, `MisalignedSegment` for a last slot
        whose place in its page does not follow from the prefix length, `ForeignPage` or `UseAfterFree` when a row would
        grow in a page that is not of this pool, not live, or that a second row of the batch grows in. O(rows + tokens).
        """
        prefix, seq, last = self._rows(prefix_lens, seq_lens, last_locs)
        num_slots, num_pages = self._demand(prefix, seq, last)
        self._check_rows(prefix, seq, last)
        tags = None if owners is None else self._tags(owners, seq.size)
        pages = self._take(num_pages)
        if pages is None:
            return None
        return to_device(self._extend(prefix, seq, last, tags, pages, num_slots), self.device)

    def alloc_decode(
        self, seq_lens: Integers, last_locs: Integers, owners: Integers | None = None
    ) -> torch.Tensor | None:
        """Grow each row by one token; `seq_lens` count it. The same as `alloc_extend` from `seq_lens - 1`.

        Returns int64[rows], or None when short, with nothing changed. Raises as `alloc_extend`. O(rows).
        """
        seq, last = to_host(seq_lens), to_host(last_locs)
        if seq.size != last.size:
            refuse_shapes(seq.size, last.size)
        table = self._free_list.table
        slots = np.empty(seq.size, dtype=np.int64)
        fault, row, _, num_pages = host.decode_slots(table.state, seq, last, self.page_size, slots)
        if fault:
            self._refuse_row(fault, row, int(seq[row]) - 1, int(seq[row]), int(last[row]))
        self._check_next(slots)
        tags = None if owners is None else self._tags(owners, seq.size)
        if num_pages:
            pages = self._take(num_pages)
            if pages is None:
                return None
            if tags is not None:
                host.tag_rows(table.owner, seq - 1, seq, self.page_size, pages, tags)
            host.open_pages(pages, self.page_size, slots)
        return to_device(slots, self.device)

    def alloc_decode_rows(
        self, slots: IntArray, lengths: IntArray, rows: IntArray, owners: TagArray
    ) -> IntArray | None:
        """`alloc_decode` for rows of a table on the host, which are read and written in place.

        slots: int64[*, width]; lengths: int64[*]; rows: int64[n] of them, distinct, each with room for one more slot;
        owners: int32[n]. Writes one slot behind each row and returns them, int64[n]; None when short, with nothing
        changed. Raises as `alloc_extend`. O(rows).
        """
        table = self._free_list.table
        out = np.empty(rows.size, dtype=np.int64)
        fault, bad, _, num_pages = row_kernels.next_slots(table.state, slots, lengths, rows, self.page_size, out)
        if fault:
            length = int(lengths[rows[bad]])
            self._refuse_row(fault, bad, length, length + 1, int(slots[rows[bad], length - 1]))
        self._check_next(out)
        pages = self._take(num_pages) if num_pages else _NO_PAGES
        if pages is None:
            return None
        row_kernels.append_slots(table.owner, slots, lengths, rows, owners, pages, self.page_size, out)
        return out

    def _manage(self, pages: FreeList, page_size: int, device: str | torch.device) -> None:
        """Start with pages of any make; for subclasses that are not given a size."""
        super().__init__(pages.num_pages * page_size, page_size, device)
        self._free_list = pages

    def _take(self, num_pages: int, owner: int = 0) -> IntArray | None:
        """Where every new page comes from; None when short, with nothing changed."""
        return self._free_list.take(num_pages, owner)

    def _check_rows(self, prefix: IntArray, seq: IntArray, last: IntArray) -> None:
        """What else a row needs in the page it grows in, asked before anything is taken. Here: nothing."""

    def _check_next(self, slots: IntArray) -> None:
        """`_check_rows` for rows that grow by one: their next slots, -1 where one opens a page."""

    def _demand(self, prefix: IntArray, seq: IntArray, last: IntArray) -> tuple[int, int]:
        """Check rows that are to grow: how many slots they get, and how many pages that takes."""
        state = self._free_list.table.state
        fault, row, num_slots, num_pages = host.extend_demand(state, prefix, seq, last, self.page_size)
        if fault:
            self._refuse_row(fault, row, int(prefix[row]), int(seq[row]), int(last[row]))
        return num_slots, num_pages

    def _extend(
        self, prefix: IntArray, seq: IntArray, last: IntArray, tags: TagArray | None, pages: IntArray, num_slots: int
    ) -> IntArray:
        """The rows' new slots, once their pages are taken."""
        if tags is not None:
            host.tag_rows(self._free_list.table.owner, prefix, seq, self.page_size, pages, tags)
        slots = np.empty(num_slots, dtype=np.int64)
        host.extend_slots(prefix, seq, last, self.page_size, pages, slots)
        return slots

    def _token_pools(self) -> dict[str, FreeList]:
        return {"full": self._free_list}

    def _park(self, slots: IntArray) -> Sequence[Release]:
        pool = self._free_list
        return (Release(pool, pool.park(slots) if self.page_size == 1 else pool.park_slots(slots, self.page_size)),)

    def _park_segments(self, segments: Sequence[IntArray]) -> Sequence[Release]:
        pool = self._free_list
        return [Release(pool, pages) for pages in pool.park_segments(segments, self.page_size)]

    def _give(self, slots: IntArray) -> IntArray:
        if self.page_size == 1:
            self._free_list.give(slots)
            return slots
        return self._free_list.give_slots(slots, self.page_size)

    def _give_segment(self, slots: IntArray) -> IntArray:
        return self._free_list.give_segment(slots, self.page_size)

    def _unmap_from(self, mapping: IntArray, pages: IntArray) -> IntArray:
        """Take the pages of another pool that `pages` own out of their mapping: what they were, for the caller to free.

        mapping: int64[num_pages + 2], 0 for none. Raises `ForeignPage` for a page outside the pool.
        """
        peers = np.empty(pages.size, dtype=np.int64)
        count, bad = windows.unmap_pages(mapping, pages, peers)
        if bad >= 0:
            self._free_list.table.refuse(int(pages[bad]))
        return peers[:count]

    def _park_owned(self, releases: Sequence[Release], mapping: IntArray, pool: FreeList) -> Sequence[Release]:
        """Park the pages of `pool` that pages just parked own as well; nothing here can fail."""
        owned = [self._unmap_from(mapping, pages) for own, pages in releases if own is self._free_list]
        return [*releases, *(Release(pool, pool.park(pages)) for pages in owned if pages.size)]

    def _free_owned(self, pages: IntArray, mapping: IntArray, pool: FreeList) -> None:
        """Free the pages of `pool` that `pages` own, at once or when the group ends."""
        owned = self._unmap_from(mapping, pages)
        if owned.size:
            self._free_pages(pool, owned)

    def _rows(self, *columns: Integers) -> tuple[IntArray, ...]:
        arrays = tuple(to_host(column) for column in columns)
        if len({array.size for array in arrays}) > 1:
            refuse_shapes(*(array.size for array in arrays))
        return arrays

    def _tags(self, owners: Integers, num_rows: int) -> TagArray:
        if isinstance(owners, np.ndarray) and owners.dtype == np.int32 and owners.flags.carray:
            tags = owners.reshape(-1)
        else:
            tags = to_host(owners)  # kernels take no read-only array, and must not fail once pages are taken
        if tags.size != num_rows:
            refuse_shapes(num_rows, tags.size)
        if tags.dtype != np.int32 and tags.size:
            require_tag(int(tags.min()))
            require_tag(int(tags.max()))
        return np.ascontiguousarray(tags, dtype=np.int32)

    def _refuse_row(self, fault: int, row: int, prefix: int, seq: int, last: int) -> NoReturn:
        if fault == host.FAULT_LENGTHS:
            refuse_lengths(row, prefix, seq)
        if fault == host.FAULT_OFFSET:
            raise MisalignedSegment(
                f"row {row} has {prefix} tokens but its last slot is {last}, which lies at offset "
                f"{last % self.page_size} of its page of {self.page_size}. Pass the slot of token {prefix - 1} (-1 for "
                "an empty row)."
            )
        page = last // self.page_size
        if fault == host.FAULT_FOREIGN:
            raise ForeignPage(
                f"row {row} would grow behind slot {last}, in page {page}; the pool's pages are 1..{self.num_pages}. "
                "Pass the slot of the row's last token."
            )
        holder = self._free_list.table.owner[page]
        shared = fault == host.FAULT_SHARED
        why = "another row of this batch grows in it too" if shared else "nobody holds it any more"
        raise UseAfterFree(
            f"row {row} would grow in page {page} (last owner {holder}) behind slot {last}, but {why}. Rows share "
            "whole pages only, and a freed row starts again from nothing."
        )


class TokenAllocator(PagedAllocator):
    """Slots one by one: `PagedAllocator` with pages of one token, and by default first freed, first reused."""

    def __init__(self, size: int, *, device: str | torch.device = "cpu", order: str = "fifo") -> None:
        super().__init__(size, 1, device=device, order=order)
