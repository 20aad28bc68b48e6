"""Kernels of a linked pool: which window page is linked to each full page, and what rows, frees and moves change.

    full page      0   1   2   3   4   5 .. N   N + 1
    window_pages [ 0 | 7 | 0 | 2 | 0 | 1 .. 4 |  -1   ]     0: none; the last entry keeps index -1 at -1

A full page and its window page have their tokens at equal offsets, so a page needs one entry, not one a slot.
`map_pages`, `bare_slot` and `bare_row` are for pages just taken and rows just checked; the others refuse ids outside 1
.. N before they change anything.
"""

from __future__ import annotations

from numba import types

from kvstead.kernels.array_types import IntArray, StateArray
from kvstead.kernels.compiling import I64, U8, i64, kernel
from kvstead.kernels.host import LIVE

# What can be wrong with a pair of slots between which a window page is to move.
MOVE_FOREIGN_SRC = 1  # the first lies in no page of this pool
MOVE_FOREIGN_DST = 2  # ... the second does
MOVE_OFFSET = 3  # they lie at different offsets, or one of their pages is paired with a third
MOVE_SRC_BARE = 4  # the first's page has no window page
MOVE_DST_DEAD = 5  # the second's page is not live
MOVE_DST_TAKEN = 6  # it has a window page already


@kernel(types.void(I64, I64, I64, i64))
def map_pages(window_pages: IntArray, pages: IntArray, linked: IntArray, start: int) -> None:
    """Link `pages[start:]` to window pages, one each."""
    for i in range(linked.size):
        window_pages[pages[start + i]] = linked[i]


@kernel(types.UniTuple(i64, 2)(I64, I64, I64))
def unmap_pages(window_pages: IntArray, pages: IntArray, out: IntArray) -> tuple[int, int]:
    """Unlink the window pages of `pages` and write them to `out`; a page without one, or named again, gives none.

    Returns (number of window pages, -1), or (0, index of the first page outside the pool) with nothing changed. `out`
    is as long as `pages`, or as there are window pages if that is less.
    """
    limit = window_pages.size - 1
    for i in range(pages.size):
        if pages[i] < 1 or pages[i] >= limit:
            return 0, i
    count = 0
    for i in range(pages.size):
        window = window_pages[pages[i]]
        if window > 0:
            window_pages[pages[i]] = 0
            out[count] = window
            count += 1
    return count, -1


@kernel(i64(I64, i64, I64))
def pages_of_slots(slots: IntArray, page_size: int, out: IntArray) -> int:
    """Write the pages of `slots`, neighbours in one page once, and return their number. `out` is as long as `slots`."""
    count = 0
    for i in range(slots.size):
        page = slots[i] // page_size
        if count == 0 or out[count - 1] != page:
            out[count] = page
            count += 1
    return count


@kernel(i64(I64, i64, I64))
def pages_of_segment(slots: IntArray, page_size: int, out: IntArray) -> int:
    """Write the pages of a row segment that starts on a page boundary; the last page may be partial.

    Returns -1, or the index of the first page whose slots do not lie one behind the other from its start.
    """
    for i in range(out.size):
        first = i * page_size
        page = slots[first] // page_size
        wrong = slots[first] - page * page_size
        for j in range(1, min(page_size, slots.size - first)):
            wrong |= slots[first + j] - slots[first] - j
        if wrong != 0:
            return i
        out[i] = page
    return -1


@kernel(i64(I64, I64, i64, I64))
def window_slots(window_pages: IntArray, slots: IntArray, page_size: int, out: IntArray) -> int:
    """The window slot of each full slot: 0 where there is none, -1 for -1.

    Returns -1, or the index of the first slot that is neither -1 nor in the pool nor padding.
    """
    limit = (window_pages.size - 1) * page_size
    for i in range(slots.size):
        slot = slots[i]
        if slot < -1 or slot >= limit:
            return i
        if slot < 0:
            out[i] = -1
            continue
        page = slot // page_size
        window = window_pages[page]
        out[i] = window * page_size + slot - page * page_size if window > 0 else 0
    return -1


@kernel(i64(I64, I64, i64))
def bare_slot(window_pages: IntArray, slots: IntArray, page_size: int) -> int:
    """The index of the first slot whose page has no window page, or -1; -1 among the slots stands for a new page."""
    for i in range(slots.size):
        if slots[i] >= 0 and window_pages[slots[i] // page_size] <= 0:
            return i
    return -1


@kernel(i64(I64, I64, I64, I64, i64))
def bare_row(
    window_pages: IntArray, prefix_lens: IntArray, seq_lens: IntArray, last_locs: IntArray, page_size: int
) -> int:
    """The first row that is to grow inside a page that has no window page, or -1; the rows are sound otherwise."""
    for i in range(seq_lens.size):
        inside = seq_lens[i] > prefix_lens[i] and prefix_lens[i] % page_size != 0
        if inside and window_pages[last_locs[i] // page_size] <= 0:
            return i
    return -1


@kernel(i64(U8, I64, i64, i64, i64))
def _move_fault(state: StateArray, window_pages: IntArray, src: int, dst: int, page_size: int) -> int:
    """What is wrong with a pair of slots whose pages have not been paired in this call."""
    src_page = src // page_size
    dst_page = dst // page_size
    mismatched = src % page_size != dst % page_size
    fault = 0
    if src_page < 1 or src_page >= state.size:
        fault = MOVE_FOREIGN_SRC
    elif dst_page < 1 or dst_page >= state.size:
        fault = MOVE_FOREIGN_DST
    elif mismatched or window_pages[src_page] < 0 or window_pages[dst_page] < 0:
        fault = MOVE_OFFSET
    elif window_pages[src_page] == 0:
        fault = MOVE_SRC_BARE
    elif state[dst_page] != LIVE:
        fault = MOVE_DST_DEAD
    elif window_pages[dst_page] > 0:
        fault = MOVE_DST_TAKEN
    return fault


@kernel(types.UniTuple(i64, 2)(U8, I64, I64, I64, i64, I64))
def move_windows(
    state: StateArray, window_pages: IntArray, src: IntArray, dst: IntArray, page_size: int, pairs: IntArray
) -> tuple[int, int]:
    """Move the window page of the page of each `src` slot to the page of the `dst` slot beside it.

    Returns (0, number of pages moved), or (fault, index of the first bad pair) with nothing changed. `pairs` is room
    for three ids a slot. While the call lasts, a paired page's entry is negative and names its pair.
    """
    count = 0
    fault = 0
    bad = 0
    for i in range(src.size):
        mark = 0
        src_page = src[i] // page_size
        dst_page = dst[i] // page_size
        if 0 < src_page < state.size and src[i] % page_size == dst[i] % page_size:
            mark = -window_pages[src_page]
        if mark > 0 and pairs[3 * mark - 3] == src_page and pairs[3 * mark - 2] == dst_page:
            continue
        fault = _move_fault(state, window_pages, src[i], dst[i], page_size)
        if fault != 0:
            bad = i
            break
        pairs[3 * count] = src_page
        pairs[3 * count + 1] = dst_page
        pairs[3 * count + 2] = window_pages[src_page]
        count += 1
        window_pages[src_page] = -count
        window_pages[dst_page] = -count
    for i in range(count):
        window_pages[pairs[3 * i]] = pairs[3 * i + 2] if fault != 0 else 0
        window_pages[pairs[3 * i + 1]] = 0 if fault != 0 else pairs[3 * i + 2]
    return (fault, bad) if fault != 0 else (0, count)
