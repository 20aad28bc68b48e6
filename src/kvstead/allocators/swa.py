"""The allocator of a model with full and sliding layers: two pools, and a mapping from one to the other.

Callers hold full slots. A full page may own one window page, its peer, with the same tokens at the same offsets. The
peer may die first, when the window has moved on; it never outlives the full page.

    full page       1    2    3    4    5    6                 pages of a request of 6 pages, its window 2 pages long
    window_pages    0    0    0    0    9    4                 pages 1 .. 4: `free_swa` has given their peers back
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from operator import index
from typing import NoReturn

import numpy as np
import torch

from kvstead.allocators.base import Segment
from kvstead.allocators.checks import require_tail
from kvstead.allocators.paged import PagedAllocator
from kvstead.errors import AuditError, ForeignPage, InvalidSize, MisalignedSegment, UseAfterFree, WindowTaken
from kvstead.kernels import host, windows
from kvstead.kernels.array_types import IntArray, StateArray
from kvstead.kernels.arrays import Integers, to_device, to_host
from kvstead.pages import FreeList, Release
from kvstead.pages.free_list import segment_pages
from kvstead.pages.page_table import require_tag


def refuse_window_slot(slot: int, end: int) -> NoReturn:
    """Raise the error for a slot that has no window side because there is no such slot."""
    raise ForeignPage(f"slot {slot} is none of this pool's (-1 .. {end - 1}). Ask for slots that it handed out, or -1.")


class SWAAllocator(PagedAllocator):
    """A `PagedAllocator` whose pages come with a page of a second, usually smaller, pool for the window layers.

    full_size, swa_size: slots of the two sides; a remainder that fills no page is unusable (`size` and `swa_size` are
    the floored figures). num_states, device, order: as for `PagedAllocator`. Whatever hands out pages gives each of
    them a peer, or, when one of the sides is short, nothing and None. `page_states`, `owners` and `parked_size` speak
    of the full side.

    window_pages: int64[num_pages + 2], the peer of each full page, 0 for none, and -1 at the end, so that index -1
    stays -1. The same array for the allocator's whole life; to be read only.

    Raises `InvalidSize` for a negative size, a page size below 1 or an unknown order.
    """

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
        super().__init__(full_size, page_size, num_states=num_states, device=device, order=order)
        if swa_size < 0:
            raise InvalidSize(f"swa_size is {swa_size}. The window side has 0 slots or more.")
        self._pair(FreeList(swa_size // page_size, order))

    @property
    def num_window_pages(self) -> int:
        """Window pages that can be handed out; the padding page is not counted."""
        return self._windows.num_pages

    def available_size(self) -> int:
        """Tokens that can be allocated now, on both sides. What is parked in an open group does not count."""
        return min(self.full_available_size(), self.swa_available_size())

    def full_available_size(self) -> int:
        """Tokens that the full side has room for now."""
        return super().available_size()

    def swa_available_size(self) -> int:
        """Tokens that the window side has room for now."""
        return self._windows.table.num_free * self.page_size

    def swa_parked_size(self) -> int:
        """Window slots freed in the open group: no longer owned, not yet available."""
        return self._windows.table.num_parked * self.page_size

    def swa_live_size(self) -> int:
        """Window slots that somebody holds, in whole pages."""
        return self._windows.table.num_live * self.page_size

    def window_page_states(self) -> StateArray:
        """The state of every window page, uint8[num_window_pages + 1]: the allocator's own array, to be read only."""
        return self._windows.table.state

    def window_free_pages(self) -> IntArray:
        """All free window pages, in the order in which they will be handed out: int64[k], a copy. O(pages)."""
        return self._windows.contents()

    def alloc_extend_swa_tail(
        self,
        prefix_lens: Integers,
        seq_lens: Integers,
        last_locs: Integers,
        tail_len: int,
        owners: Integers | None = None,
    ) -> torch.Tensor | None:
        """`alloc_extend` of one row, with window pages only under its last `tail_len` tokens.

        The other new pages have no peer, for a prompt whose head no window will look at. Returns int64[seq - prefix];
        None when a side is short, with nothing changed.

        Raises as `alloc_extend`, save that the head of the row may grow inside a page without a peer; `InvalidSize` for
        another number of rows than one, or a tail that is negative or longer than what is new; `MisalignedSegment` for
        a tail that does not start on a page boundary.
        """
        prefix, seq, last = self._rows(prefix_lens, seq_lens, last_locs)
        if seq.size != 1:
            raise InvalidSize(f"{seq.size} rows are to grow with a tail. Pass one at a time.")
        num_slots, num_pages = self._demand(prefix, seq, last)
        tail = index(tail_len)
        require_tail(int(seq[0]), tail, num_slots, self.page_size)
        tags = None if owners is None else self._tags(owners, 1)
        pages = self._take_tail(num_pages, -(-tail // self.page_size))
        if pages is None:
            return None
        return to_device(self._extend(prefix, seq, last, tags, pages, num_slots), self.device)

    def free_full(self, slots: Integers) -> None:
        """As `free`: a full page takes its peer, if it still has one, with it."""
        self.free(slots)

    def free_full_segment(self, slots: Integers, *, start_pos: int) -> None:
        """As `free_segment`."""
        self.free_segment(slots, start_pos=start_pos)

    def free_full_segments(self, pairs: Iterable[Segment]) -> None:
        """As `free_segments`."""
        self.free_segments(pairs)

    def free_swa(self, slots: Integers) -> None:
        """Give back the peers of the pages that `slots` lie in; the full pages stay.

        slots: as for `free`. Pages without a peer, whoever holds them, are passed over, so a second call does nothing.
        Raises `ForeignPage` for padding or a slot outside the pool (-1 too), with nothing changed. O(slots).
        """
        array = to_host(slots)
        pages = np.empty(array.size, dtype=np.int64)
        self._drop_peers(pages[: windows.pages_of_slots(array, self.page_size, pages)])

    def free_swa_segment(self, slots: Integers, *, start_pos: int) -> None:
        """`free_swa` for a stretch of a row, whole pages at a time. Raises `MisalignedSegment` as `free_segment`."""
        self._drop_peers(segment_pages(self._segment(slots, start_pos), self.page_size))

    def free_swa_segments(self, pairs: Iterable[Segment]) -> None:
        """`free_swa` for several stretches, (slots, start_pos) each, all or none."""
        arrays = [self._segment(slots, start_pos) for slots, start_pos in pairs]
        if arrays:
            self._drop_peers(np.concatenate([segment_pages(array, self.page_size) for array in arrays]))

    def free_window_pages(self, pages: IntArray) -> None:
        """`free_swa` for full pages given by id: int64[k], distinct or not. O(pages)."""
        self._drop_peers(to_host(pages))

    def window_slots(self, slots: Integers) -> torch.Tensor:
        """Where the window side of full slots lies: int64 on the device, in the shape of `slots`.

        0 for a slot without one (padding too), -1 for -1. Raises `ForeignPage` for any other id outside the pool.
        O(slots); slots on another device are copied to the host, which waits for it.
        """
        return to_device(self._peer_slots(to_host(slots)), self.device).reshape(np.shape(slots))

    def move_window(self, src: Integers, dst: Integers) -> None:
        """Make the peer of the page of each `src` slot that of the page of the `dst` slot beside it, all or none.

        The tokens of the two pages are the same, and `dst` has lost its window side; its holder takes over that of a
        page about to be freed. Slots of one page stand for that page, whether all are named or one.

        Raises `InvalidSize` for different numbers of slots, `ForeignPage` for one outside the pool, `MisalignedSegment`
        for a pair at different offsets or a page paired with two, `UseAfterFree` for a `src` page without a peer or a
        `dst` page that nobody holds, `WindowTaken` for a `dst` page with a peer. O(slots).
        """
        source, target = to_host(src), to_host(dst)
        if source.size != target.size:
            raise InvalidSize(f"{source.size} slots are to lend their windows to {target.size}. Pass them in pairs.")
        pairs = np.empty(3 * source.size, dtype=np.int64)
        state = self._free_list.table.state
        fault, bad = windows.move_peers(state, self.window_pages, source, target, self.page_size, pairs)
        if fault:
            self._refuse_move(fault, int(source[bad]), int(target[bad]))

    def clear(self) -> None:
        """Every slot of both sides is free again, whoever held it; an open group is dropped."""
        super().clear()
        self.window_pages[:-1] = 0

    def audit(self) -> None:
        """Check both sides, and that the live window pages are the peers of live full pages, each of one.

        Raises `AuditError`. O(pages of both pools).
        """
        super().audit()
        owners = np.flatnonzero(self.window_pages[:-1])
        if not np.array_equal(np.sort(self._held_windows()), np.flatnonzero(self._windows.table.state == host.LIVE)):
            raise AuditError("the window pages that are live are not those mapped. Only the allocator maps pages.")
        if not (self._free_list.table.state[owners] == host.LIVE).all() or self.window_pages[-1] != -1:
            raise AuditError("a page that is not live has a window page. Only the allocator maps pages.")

    def _pair(self, window_pages: FreeList) -> None:
        """Start with a window side of any make, beside the full side."""
        self._windows = window_pages
        self.swa_size = window_pages.num_pages * self.page_size
        self.window_pages: IntArray = np.zeros(self.num_pages + 2, dtype=np.int64)
        self.window_pages[-1] = -1

    def _held_windows(self) -> IntArray:
        """The window pages that somebody holds, in any order: those mapped."""
        return self.window_pages[np.flatnonzero(self.window_pages[:-1])]

    def _has_room(self, num_pages: int, num_windows: int) -> bool:
        """Whether both sides have so many pages now, together."""
        return num_pages <= self._free_list.num_free and num_windows <= self._windows.num_free

    def _take(self, num_pages: int, owner: int = 0) -> IntArray | None:
        return self._take_tail(num_pages, num_pages, owner)

    def _take_tail(self, num_pages: int, num_windows: int, owner: int = 0) -> IntArray | None:
        """New full pages, the last `num_windows` of them with peers. Tags are the full side's alone."""
        require_tag(owner)
        if not self._has_room(num_pages, num_windows):
            return None
        pages = self._free_list.take(num_pages, owner)
        assert pages is not None, "the full side was asked first"
        if num_windows:
            peers = self._windows.take(num_windows)
            assert peers is not None, "the window side was asked first"
            windows.map_pages(self.window_pages, pages, peers, num_pages - num_windows)
        return pages

    def _check_rows(self, prefix: IntArray, seq: IntArray, last: IntArray) -> None:
        row = windows.bare_row(self.window_pages, prefix, seq, last, self.page_size)
        if row >= 0:
            self._refuse_bare_row(row, int(last[row]))

    def _check_next(self, slots: IntArray) -> None:
        row = windows.bare_slot(self.window_pages, slots, self.page_size)
        if row >= 0:
            self._refuse_bare_row(row, int(slots[row]) - 1)

    def _token_pools(self) -> dict[str, FreeList]:
        return {"full": self._free_list, "window": self._windows}

    def _park(self, slots: IntArray) -> Sequence[Release]:
        return self._park_owned(super()._park(slots), self.window_pages, self._windows)

    def _park_segments(self, segments: Sequence[IntArray]) -> Sequence[Release]:
        return self._park_owned(super()._park_segments(segments), self.window_pages, self._windows)

    def _give(self, slots: IntArray) -> IntArray:
        pages = super()._give(slots)
        self._drop_peers(pages)
        return pages

    def _give_segment(self, slots: IntArray) -> IntArray:
        pages = super()._give_segment(slots)
        self._drop_peers(pages)
        return pages

    def _drop_peers(self, pages: IntArray) -> None:
        """Free the peers of full pages, at once or when the group ends."""
        self._free_owned(pages, self.window_pages, self._windows)

    def _peer_slots(self, slots: IntArray) -> IntArray:
        out = np.empty(slots.size, dtype=np.int64)
        bad = windows.window_slots(self.window_pages, slots, self.page_size, out)
        if bad >= 0:
            refuse_window_slot(int(slots[bad]), self.size + self.page_size)
        return out

    def _refuse_bare_row(self, row: int, last: int) -> NoReturn:
        page = last // self.page_size
        raise UseAfterFree(
            f"row {row} would grow behind slot {last}, in page {page}, whose window page is gone: its new tokens would "
            "have no window slot. Free the window side of whole pages only, up to the last page that is full."
        )

    def _refuse_move(self, fault: int, src: int, dst: int) -> NoReturn:
        src_page, dst_page = src // self.page_size, dst // self.page_size
        if fault in {windows.MOVE_FOREIGN_SRC, windows.MOVE_FOREIGN_DST}:
            self._free_list.table.refuse(src_page if fault == windows.MOVE_FOREIGN_SRC else dst_page)
        if fault == windows.MOVE_OFFSET:
            raise MisalignedSegment(
                f"slot {src} cannot lend its window side to slot {dst}: their places in their pages of "
                f"{self.page_size} differ, or one of pages {src_page} and {dst_page} is paired with another as well. "
                "Pass the same stretch of two rows, from a page boundary on."
            )
        if fault == windows.MOVE_SRC_BARE:
            raise UseAfterFree(f"page {src_page} of slot {src} has no window page. Move only what it still holds.")
        if fault == windows.MOVE_DST_DEAD:
            raise UseAfterFree(f"page {dst_page} of slot {dst} is held by nobody. Move to pages of live rows or nodes.")
        raise WindowTaken(
            f"page {dst_page} of slot {dst} has window page {self.window_pages[dst_page]} already. Free that first, "
            "with free_swa, or free the duplicate."
        )
