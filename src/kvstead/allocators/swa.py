"""Allocators of a model with full and sliding layers: a pool of full pages, and a linked pool of window pages.

Callers hold full slots. A full page may have one window page, with the same tokens at the same offsets. The window page
may be freed first, when the window has moved on; it is freed with its full page otherwise.

    full page       1    2    3    4    5    6                 pages of a request of 6 pages, its window 2 pages long
    window_pages    0    0    0    0    9    4                 pages 1 .. 4: `free_swa` has freed their window pages
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from operator import index
from typing import NoReturn

import numpy as np
import torch

from kvstead.allocators import growth
from kvstead.allocators.allocator import Allocator
from kvstead.allocators.checks import own_pages, require_page_start, require_tail, state_pages, window_pages
from kvstead.errors import InvalidSize, MisalignedSegment, UseAfterFree, WindowTaken
from kvstead.kernels import windows
from kvstead.kernels.array_types import IntArray, StateArray
from kvstead.kernels.arrays import Integers, to_device, to_host
from kvstead.pages import FreeList, LinkedPool, Release
from kvstead.pages.free_group import DefersFrees


class WindowSide:
    """What an allocator with window pages can do besides. window: the linked pool from which they come.

    `num_window_pages`, `swa_size`: window pages and slots, without padding. `window_pages`: int64[num_pages + 2], the
    window page of each full page, 0 for none, and -1 at the end, so that index -1 reads -1; the same array for the
    allocator's whole life, to be read only.
    """

    page_size: int
    device: torch.device
    _pool: FreeList
    _take: Callable[[int, int, int], IntArray | None]
    _release: Callable[..., None]
    _after_free: Callable[[], int]

    def __init__(self, window: LinkedPool, page_size: int) -> None:
        self.num_window_pages = window.pool.num_pages
        self.swa_size = window.pool.num_pages * page_size
        self.window_pages = window.linked
        self._window = window

    def full_available_size(self) -> int:
        """Tokens that the full side has capacity for now; in an arena, if the window side takes none."""
        return self._pool.capacity() * self.page_size

    def swa_available_size(self) -> int:
        """Tokens that the window side has capacity for now; in an arena, if the full side takes none."""
        return self._window.pool.capacity() * self.page_size

    def swa_parked_size(self) -> int:
        """Window slots freed in the open group: no longer held, not yet available."""
        return self._window.pool.num_parked * self.page_size

    def swa_live_size(self) -> int:
        """Window slots that requests or the cache hold, in whole pages."""
        return self._window.pool.num_live * self.page_size

    def window_page_states(self) -> StateArray:
        """The state of every window page, uint8[num_window_pages + 1]: the allocator's own array, to be read only."""
        return self._window.pool.table.state

    def window_free_pages(self) -> IntArray:
        """All free window pages, in the order in which they will be handed out: int64[k], a copy. O(pages)."""
        return self._window.pool.contents()

    def alloc_extend_swa_tail(
        self,
        prefix_lens: Integers,
        seq_lens: Integers,
        last_locs: Integers,
        tail_len: int,
        owners: Integers | None = None,
    ) -> torch.Tensor | None:
        """`alloc_extend` of one row, with window pages only under its last `tail_len` tokens.

        The other new pages have no window page, for a prompt whose head no window will look at. Returns
        int64[seq - prefix]; None when a side is short, with nothing changed.

        Raises as `alloc_extend`, but the head of the row may grow inside a page without a window page; `InvalidSize`
        for more or fewer rows than one, or a tail that is negative or longer than what is new; `MisalignedSegment` for
        a tail that does not start on a page boundary.
        """
        prefix, seq, last = to_host(prefix_lens), to_host(seq_lens), to_host(last_locs)
        if prefix.size == seq.size == last.size != 1:
            raise InvalidSize(f"{seq.size} rows are to grow with a tail. Pass one at a time.")
        rows = growth.plan(self._pool.table, self.page_size, prefix, seq, last, None)
        tail = index(tail_len)
        require_tail(int(rows.seq[0]), tail, rows.num_slots, self.page_size)
        rows = rows._replace(tags=None if owners is None else growth.tags(owners, 1))
        pages = self._take(rows.num_pages, -(-tail // self.page_size), 0)
        if pages is None:
            return None
        return to_device(growth.new_slots(self._pool.table, self.page_size, rows, pages), self.device)

    # A window page that is still linked is freed with its full page.
    free_full, free_full_segment, free_full_segments = Allocator.free, Allocator.free_segment, Allocator.free_segments

    def free_swa(self, slots: Integers) -> None:
        """Free the window pages of the pages that `slots` lie in; the full pages stay.

        slots: as for `free`. Pages without a window page are passed over, so a second call does nothing. Raises
        `ForeignPage` for padding or a slot outside the pool (-1 too), with nothing changed. O(slots).
        """
        array = to_host(slots)
        pages = np.empty(array.size, dtype=np.int64)
        self._free_windows(pages[: windows.pages_of_slots(array, self.page_size, pages)])

    def free_swa_segment(self, slots: Integers, *, start_pos: int) -> None:
        """`free_swa` for a stretch of a row, whole pages at a time. Raises `MisalignedSegment` as `free_segment`."""
        require_page_start(start_pos, self.page_size)
        self._free_windows(growth.segment_pages(to_host(slots), self.page_size))

    def free_swa_segments(self, pairs: Iterable[growth.Segment]) -> None:
        """`free_swa` for several stretches, (slots, start_pos) each, all or none."""
        self._free_windows(np.concatenate(growth.pages_of(pairs, self.page_size)))

    def free_window_pages(self, pages: IntArray) -> None:
        """`free_swa` for full pages given by id: int64[k], distinct or not. O(pages)."""
        self._free_windows(to_host(pages))

    def window_slots(self, slots: Integers) -> torch.Tensor:
        """Where the window side of full slots lies: int64 on the device, in the shape of `slots`.

        0 for a slot without one (padding too), -1 for -1. Raises `ForeignPage` for any other id outside the pool.
        O(slots); slots on another device are copied to the host, which waits for it.
        """
        return to_device(self._window.slots(to_host(slots), self.page_size), self.device).reshape(np.shape(slots))

    def move_window(self, src: Integers, dst: Integers) -> None:
        """Move the window page of the page of each `src` slot to the page of the `dst` slot beside it, all or none.

        The two pages hold the same tokens, and `dst` has lost its window page; it takes over that of a page about to be
        freed. Slots of one page stand for that page, whether all are named or one.

        Raises `InvalidSize` for different numbers of slots, `ForeignPage` for one outside the pool, `MisalignedSegment`
        for a pair at different offsets or a page paired with two, `UseAfterFree` for a `src` page without a window page
        or a `dst` page that nobody holds, `WindowTaken` for a `dst` page that has a window page. O(slots).
        """
        source, target = to_host(src), to_host(dst)
        if source.size != target.size:
            raise InvalidSize(f"{source.size} slots cannot give their windows to {target.size}. Pass them in pairs.")
        pairs = np.empty(3 * source.size, dtype=np.int64)
        state = self._pool.table.state
        fault, bad = windows.move_windows(state, self.window_pages, source, target, self.page_size, pairs)
        if fault:
            self._refuse_move(fault, int(source[bad]), int(target[bad]))

    def _free_windows(self, pages: IntArray) -> None:
        """Free the window pages of full pages, at once or when the group ends."""
        after = self._after_free()
        linked = self._window.unlink(pages)
        if linked.size:
            self._release(self._window.pool, linked, after)

    def _refuse_move(self, fault: int, src: int, dst: int) -> NoReturn:
        src_page, dst_page = src // self.page_size, dst // self.page_size
        if fault in {windows.MOVE_FOREIGN_SRC, windows.MOVE_FOREIGN_DST}:
            self._pool.table.refuse(src_page if fault == windows.MOVE_FOREIGN_SRC else dst_page)
        if fault == windows.MOVE_OFFSET:
            raise MisalignedSegment(
                f"slot {src} cannot give its window side to slot {dst}: their offsets in pages of {self.page_size} "
                f"differ, or page {src_page} or {dst_page} is paired with another page too. Pass the same stretch of "
                "two rows, from a page boundary on."
            )
        if fault == windows.MOVE_SRC_BARE:
            raise UseAfterFree(
                f"page {src_page} of slot {src} has no window page. Move only window pages that are still there."
            )
        if fault == windows.MOVE_DST_DEAD:
            raise UseAfterFree(f"page {dst_page} of slot {dst} is not live. Move to pages that rows or the cache hold.")
        raise WindowTaken(
            f"page {dst_page} of slot {dst} has window page {self.window_pages[dst_page]} already. Free that first, "
            "with free_swa, or free the duplicate row."
        )


class SWAAllocator(WindowSide, DefersFrees[Release], Allocator):
    """A `PagedAllocator` whose pages come with a page of a second, usually smaller, pool for the window layers.

    full_size, swa_size: slots of the two sides; a remainder that fills no page is unusable (`size` and `swa_size` are
    the floored figures). num_states, device, order: as for `PagedAllocator`. `alloc`, `alloc_extend` and `alloc_decode`
    give every new page a window page, or, when one of the sides is short, return None and take nothing. `page_states`,
    `owners` and `parked_size` are about the full side.

    Raises `InvalidSize` for a negative size, a page size below 1 or an unknown order.
    """

    _link_type: type[LinkedPool] = LinkedPool

    def __init__(
        self,
        full_size: int,
        swa_size: int,
        page_size: int,
        *,
        num_states: int | None = None,
        device: str | torch.device = "cpu",
        order: str = "lifo",
    ) -> None:
        full, states = own_pages(full_size, page_size, order), state_pages(num_states, order)
        window = self._link_type("window", window_pages(swa_size, page_size, order), full.table)
        Allocator.__init__(self, full, page_size, device, windows=window, states=states)
        WindowSide.__init__(self, window, page_size)
