"""The one allocator of the host: a pool of pages, pools linked to it, and slots for recurrent states.

A request's row, page size 4, 10 tokens; `row[p] % 4 == p % 4`, whichever pages it has:

    position   0  1  2  3 | 4  5  6  7 | 8  9
    slot      20 21 22 23 | 8  9 10 11 | 40 41          the next decode takes 42, the one after 43, then a new page
                page 5       page 2      page 10

Every free is the same: slots are resolved to pages, the pages leave their holder (to FREE, or to PARKED while a group
is open), and the pages linked to them leave with them. The exported classes only say which parts they are made of.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import torch

from kvstead.allocators import growth
from kvstead.allocators.checks import refuse_shapes, require_page_start, whole_pages
from kvstead.allocators.fill import fill_text
from kvstead.allocators.states import StateAllocator
from kvstead.arena import Chain
from kvstead.errors import AuditError, DoubleFree, ForeignPage
from kvstead.kernels import growing_rows
from kvstead.kernels import rows as row_kernels
from kvstead.kernels.array_types import IntArray, StateArray, TagArray
from kvstead.kernels.arrays import Integers, to_device, to_host, whole
from kvstead.kernels.host import FREE, PARKED
from kvstead.pages import FreeList, LinkedPool, Release
from kvstead.pages.page_table import require_tag

_NO_PAGES: IntArray = np.empty(0, dtype=np.int64)


class Allocator:
    """Slots for tokens, in pages of `page_size`. Slots 0 .. `page_size` - 1 are padding and belong to nobody.

    pool: the pages that tokens come from. windows: a linked pool from which every new page gets a page as well. states:
    a pool for the recurrent states of the same requests. chain: the pools of an arena, where these are some of them.
    device: where handed-out slots live; all bookkeeping is on the host.

    `num_pages`, `size`: pages and slots that the pool could hold alone, without padding. `pools`: all pools by name:
    "full", then "window", "hot" and "state" as there are. `free_group`: None (frees take effect at once) or the list of
    releases parked until the group ends, which holds the frees of all pools. `states`: the `StateAllocator`, or None.
    """

    def __init__(
        self,
        pool: FreeList,
        page_size: int,
        device: str | torch.device,
        *,
        windows: LinkedPool | None = None,
        states: FreeList | None = None,
        chain: Chain | None = None,
    ) -> None:
        self.page_size = page_size = whole(page_size, "page_size")
        self.num_pages, self.size = pool.num_pages, pool.num_pages * page_size
        self.device, self.chain, self._windows = torch.device(device), chain, windows
        self.free_group: list[Release] | None = None
        self.pools, self._pool = {"full": pool}, pool
        self._links: tuple[LinkedPool, ...] = ()
        if windows is not None:
            self._link(windows)
        self.states = None
        if states is not None:
            self.pools["state"] = states
            self.states = StateAllocator(states, self._release, self.device)

    def __repr__(self) -> str:
        return fill_text(self, self.page_size, self.pools)

    def available_size(self) -> int:
        """Tokens that can be allocated now, with what comes with them. Pages parked in an open group do not count."""
        if self._windows is None:
            return self._pool.capacity() * self.page_size
        if self.chain is None:
            return min(self._pool.num_free, self._windows.pool.num_free) * self.page_size
        return self.chain.capacity(("full", "window")) * self.page_size

    def parked_size(self) -> int:
        """Tokens freed in the open group: no longer held, not yet available."""
        return self._pool.table.num_parked * self.page_size

    def live_size(self) -> int:
        """Tokens that requests or the cache hold, in whole pages."""
        return self._pool.table.num_live * self.page_size

    def page_states(self) -> StateArray:
        """The state of every page, uint8[num_pages + 1], page 0 first: the allocator's own array, to be read only."""
        return self._pool.table.state

    def free_pages(self) -> IntArray:
        """All free pages, in the order in which they will be handed out: int64[k], a copy. O(pages)."""
        return self._pool.contents()

    def owners(self) -> dict[int, int]:
        """Count live pages by owner tag. O(pages of the pool)."""
        return self._pool.table.owners()

    def alloc(self, num_tokens: int, owner: int = 0) -> torch.Tensor | None:
        """Hand out whole pages: int64[num_tokens] slots, page by page; None when short, with nothing changed.

        owner: int32 tag written on the pages. Raises `InvalidSize` for a negative number, `MisalignedSize` for one that
        is no multiple of the page size. O(num_tokens).
        """
        num_pages = whole_pages(num_tokens, self.page_size)
        pages = self._take(num_pages, num_pages, owner)
        return None if pages is None else self._slots(pages)

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
        table, page_size = self._pool.table, self.page_size
        rows = growth.plan(table, page_size, prefix_lens, seq_lens, last_locs, owners, self._windows)
        pages = self._take(rows.num_pages, rows.num_pages, 0)
        return None if pages is None else to_device(growth.new_slots(table, page_size, rows, pages), self.device)

    def alloc_decode(
        self, seq_lens: Integers, last_locs: Integers, owners: Integers | None = None
    ) -> torch.Tensor | None:
        """Grow each row by one token; `seq_lens` count it. The same as `alloc_extend` from `seq_lens - 1`.

        Returns int64[rows], or None when short, with nothing changed. Raises as `alloc_extend`. O(rows).
        """
        seq, last = to_host(seq_lens), to_host(last_locs)
        table = self._pool.table
        if seq.size != last.size:
            refuse_shapes(seq.size, last.size)
        slots = np.empty(seq.size, dtype=np.int64)
        fault, row, _, num_pages = growing_rows.decode_slots(table.state, seq, last, self.page_size, slots)
        if fault:
            length = int(seq[row])
            growth.refuse_row(table, self.page_size, fault, row, length - 1, length, int(last[row]))
        if self._windows is not None:
            growth.require_linked(self._windows, slots, self.page_size)
        tags = None if owners is None else growth.tags(owners, seq.size)
        if num_pages:
            pages = self._take(num_pages, num_pages, 0)
            if pages is None:
                return None
            if tags is not None:
                growing_rows.tag_rows(table.owner, seq - 1, seq, self.page_size, pages, tags)
            growing_rows.open_pages(pages, self.page_size, slots)
        return to_device(slots, self.device)

    def alloc_decode_rows(
        self, slots: IntArray, lengths: IntArray, rows: IntArray, owners: TagArray
    ) -> IntArray | None:
        """`alloc_decode` for rows of a table on the host, which are read and written in place.

        slots: int64[*, width]; lengths: int64[*]; rows: int64[n] of them, distinct, each with room for one more slot;
        owners: int32[n]. Writes one slot behind each row and returns them, int64[n]; None when short, with nothing
        changed. Raises as `alloc_extend`. O(rows).
        """
        table = self._pool.table
        out = np.empty(rows.size, dtype=np.int64)
        fault, bad, _, num_pages = row_kernels.next_slots(table.state, slots, lengths, rows, self.page_size, out)
        if fault:
            length = int(lengths[rows[bad]])
            last = int(slots[rows[bad], length - 1])
            growth.refuse_row(table, self.page_size, fault, bad, length, length + 1, last)
        if self._windows is not None:
            growth.require_linked(self._windows, out, self.page_size)
        pages = self._take(num_pages, num_pages, 0) if num_pages else _NO_PAGES
        if pages is None:
            return None
        row_kernels.append_slots(table.owner, slots, lengths, rows, owners, pages, self.page_size, out)
        return out

    def free(self, slots: Integers) -> None:
        """Free the pages that `slots` lie in, and the pages linked to them.

        slots: any integer tensor or array, in any order (from another device it is copied to the host, which waits for
        it). Slots of one page stand for that page once; at page size 1 a repeated slot raises. The caller may overwrite
        `slots` at once. Raises `ForeignPage` for padding or a slot outside the pool, `DoubleFree` for a page that
        nobody holds; then nothing is changed. O(slots).
        """
        after = self._after_free()
        array = to_host(slots)
        if array.size:
            self._follow(self._pool.leave_slots(array, self.page_size, after), after)

    def free_segment(self, slots: Integers, *, start_pos: int) -> None:
        """Free a stretch of a request's row, `row[start_pos : start_pos + len(slots)]`, whole pages at a time.

        Cheaper than `free`: each page is looked up once. A partial last page goes as a whole. Raises
        `MisalignedSegment` when `start_pos` is not on a page boundary or the slots do not follow one another as
        positions of a row do; else as `free`. O(slots).
        """
        require_page_start(start_pos, self.page_size)
        array = to_host(slots)
        if array.size:
            after = self._after_free()
            self._follow(self._pool.leave_segment(array, self.page_size, after), after)

    def free_segments(self, pairs: Iterable[growth.Segment]) -> None:
        """Free several stretches, (slots, start_pos) each, all or none. They may not share a page."""
        parts = growth.pages_of(pairs, self.page_size)
        pages = np.concatenate(parts)
        if not pages.size:
            return
        after = self._after_free()
        queued = np.concatenate(parts[::-1]) if self._pool.order == "lifo" else pages
        try:
            left = self._pool.leave(queued, after)
        except (DoubleFree, ForeignPage):
            left = self._pool.leave(pages, after)  # raises for the first bad page in the caller's order
        self._follow(left, after)

    def clear(self) -> None:
        """Make every slot free, no matter who holds it; an open group is dropped."""
        self.free_group = None
        for pool in self.pools.values():
            pool.clear()
        for link in self._links:
            link.clear()

    def audit(self) -> None:
        """Check all pages, links and the open group. Raises `AuditError`. O(pages of all pools)."""
        for pool in self.pools.values():
            pool.audit()
            in_group = sum(release.pages.size for release in self.free_group or () if release.pool is pool)
            if in_group != pool.num_parked:
                raise AuditError(
                    f"{pool.num_parked} pages are parked, the open group holds {in_group}. Only the group parks pages."
                )
        for link in self._links:
            link.audit()

    def _link(self, link: LinkedPool) -> None:
        """Add a linked pool, for constructors: its pages are freed with the pages that they are linked to."""
        self.pools[link.name] = link.pool
        self._links = (*self._links, link)

    def _take(self, num_pages: int, num_windows: int, owner: int) -> IntArray | None:
        """New pages, the last `num_windows` of them with window pages; None when short, with nothing changed."""
        windows = self._windows
        if windows is None:
            return self._pool.take(num_pages, owner)
        if owner:
            require_tag(owner)
        if self.chain is not None:
            fits = self.chain.fits({"full": num_pages, "window": num_windows})
        else:
            fits = num_pages <= self._pool.table.num_free and num_windows <= windows.pool.table.num_free
        if not fits:
            return None
        pages = self._pool.take(num_pages, owner)
        assert pages is not None, "room for both was found"
        try:
            linked = windows.pool.take(num_windows)
        except BaseException:  # the arena's fence may raise anything
            self._pool.leave(pages)
            raise
        assert linked is not None, "as above"
        windows.link(pages, linked)
        return pages

    def _slots(self, pages: IntArray) -> torch.Tensor:
        """The slots of pages that were just taken, page by page, on the device."""
        return to_device(growth.all_slots(pages, self.page_size), self.device)

    def _follow(self, pages: IntArray, after: int) -> None:
        """Note pages of the pool that have left in the group, if it is open, and free the pages linked to them."""
        if self.free_group is not None:
            self.free_group.append(Release(self._pool, pages))
        for link in self._links:
            linked = link.unlink(pages)
            if linked.size:
                left = link.pool.leave(linked, after)
                if self.free_group is not None:
                    self.free_group.append(Release(link.pool, left))

    def _release(self, pool: FreeList, pages: IntArray, after: int | None = None) -> None:
        """Free live pages of a pool, raising as `FreeList.leave`. after: what `_after_free` has said before."""
        left = pool.leave(pages, self._after_free() if after is None else after)
        if self.free_group is not None:
            self.free_group.append(Release(pool, left))

    def _after_free(self) -> int:
        """What pages that are freed now become. An eager arena's fence is called before anything is changed."""
        if self.free_group is not None:
            return PARKED
        if self.chain is not None and self.chain.eager:
            self.chain.order()
        return FREE
