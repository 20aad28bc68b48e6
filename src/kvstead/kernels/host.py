"""Host kernels: what an allocator does to its arrays, compiled by numba and cached on disk.

Every function here is a plain loop over the pages or rows of one call and touches nothing else, so a call on k pages
costs O(k) whatever the size of the pool. Each has one signature (`kvstead.kernels.compiling`).
With `NUMBA_DISABLE_JIT=1` the same loops run as Python.

A kernel that can refuse returns where it stumbled and has undone its own writes by then.
"""

from __future__ import annotations

from numba import types

from kvstead.kernels.array_types import IntArray, StateArray, TagArray
from kvstead.kernels.compiling import I32, I64, U8, i64, kernel

# The states of a page, one byte each. CLAIMED never outlives a kernel call.
FREE = 0
LIVE = 1
PARKED = 2
PADDING = 3
CLAIMED = 4

# What can be wrong with a segment of a row, or with a row that is to grow.
FAULT_NONE = 0
FAULT_LENGTHS = 1  # prefix < 0 or seq < prefix
FAULT_OFFSET = 2  # slots are not consecutive from a page's start, or a last slot does not match the row's length
FAULT_FOREIGN = 3  # the last slot does not belong to this pool
FAULT_NOT_LIVE = 4  # ... or nobody holds its page
FAULT_SHARED = 5  # ... or another row of the batch grows in its page


@kernel(types.void(I64, i64, i64, i64))
def _write_run(ring: IntArray, start: int, first: int, count: int) -> None:
    """Write `first`, `first + 1`, ... into a ring from `start` on."""
    straight = min(count, ring.size - start)
    front = ring[start : start + straight]  # loops over whole slices compile to vector code
    for i in range(front.size):
        front[i] = first + i
    for i in range(count - straight):
        ring[i] = first + straight + i


@kernel(types.void(I64, i64, I64))
def write_ring(ring: IntArray, start: int, pages: IntArray) -> None:
    """Write `pages` into a ring from `start` on, wrapping around."""
    straight = min(pages.size, ring.size - start)
    front = ring[start : start + straight]
    for i in range(front.size):
        front[i] = pages[i]
    for i in range(pages.size - straight):
        ring[i] = pages[straight + i]


@kernel(types.boolean(U8, I64, i64))
def _is_run(state: StateArray, pages: IntArray, before: int) -> bool:
    """Whether the pages follow one another, all in the pool and in one state; a quick look says no to most others."""
    first = pages[0]
    count = pages.size
    if first < 0 or first > state.size - count or pages[count - 1] != first + count - 1:  # none of this overflows
        return False
    wrong = 0
    for i in range(count):
        wrong |= pages[i] ^ (first + i)
    odd = 0
    part = state[first : first + count]
    for i in range(count):
        odd |= part[i] ^ before
    return wrong == 0 and odd == 0


@kernel(i64(U8, I64, i64, i64, I64, i64))
def move(state: StateArray, pages: IntArray, before: int, after: int, ring: IntArray, start: int) -> int:
    """Turn every page from `before` to `after` and write the ids into `ring` from `start` on, wrapping around.

    Returns the index of the first page that is out of range or in another state (a repeated id is), or -1. On a fault
    no state is changed; what was written to the ring lies where nothing is listed. `ring` has room for all pages.
    """
    count = pages.size
    if count == 0:
        return -1
    if _is_run(state, pages, before):
        first = pages[0]
        state[first : first + count] = after
        _write_run(ring, start, first, count)
        return -1
    capacity = ring.size
    at = start
    for i in range(count):
        page = pages[i]
        if page < 0 or page >= state.size or state[page] != before:
            for j in range(i):
                state[pages[j]] = before
            return i
        state[page] = after
        ring[at] = page
        at += 1
        if at == capacity:
            at = 0
    return -1


@kernel(types.void(U8, I32, I64, i64, i64, i64, i64, i64, I64))
def take(
    state: StateArray,
    owner: TagArray,
    ring: IntArray,
    head: int,
    num_listed: int,
    listed_at: int,
    fresh: int,
    tag: int,
    out: IntArray,
) -> None:
    """Make pages live, tag them and write them to `out`: `num_listed` from the ring, the others from `fresh` upward.

    The listed ones go to `out[listed_at:]`, the fresh ones to what is left.
    """
    num_fresh = out.size - num_listed
    _write_run(out, num_listed if listed_at == 0 else 0, fresh, num_fresh)
    at = head
    for i in range(num_listed):
        out[listed_at + i] = ring[at]
        at += 1
        if at == ring.size:
            at = 0
    for i in range(out.size):
        state[out[i]] = LIVE
        owner[out[i]] = tag


@kernel(i64(I64, i64, i64))
def _length_of_page(slots: IntArray, base: int, page_size: int) -> int:
    """`page_size` where the slots are those of the page at `base`, all in order; else 1, the first of them."""
    if slots.size < page_size:
        return 1
    wrong = 0
    for j in range(page_size):
        wrong |= slots[j] ^ (base + j)
    return page_size if wrong == 0 else 1


@kernel(types.UniTuple(i64, 2)(U8, I64, i64, i64, I64))
def move_slots(state: StateArray, slots: IntArray, page_size: int, after: int, out: IntArray) -> tuple[int, int]:
    """Collect the distinct pages of live `slots` into `out`, in the order first seen, and set them to `after`.

    Returns (number of pages, -1), or (0, index of the first bad slot) with nothing changed.
    """
    count = 0
    base = 0
    end = 0  # slots in [base, end) lie in the page just seen
    i = 0
    while i < slots.size:
        slot = slots[i]
        if base <= slot < end:
            i += 1
            continue
        page = slot // page_size
        good = slot >= 0 and page < state.size
        if good and state[page] == LIVE:
            state[page] = CLAIMED
            out[count] = page
            count += 1
        elif not good or state[page] != CLAIMED:
            for j in range(count):
                state[out[j]] = LIVE
            return 0, i
        base = page * page_size
        end = base + page_size
        i += _length_of_page(slots[i : i + page_size], base, page_size)
    for j in range(count):
        state[out[j]] = after
    return count, -1


@kernel(types.UniTuple(i64, 2)(U8, I64, i64, I64, I64, i64, i64))
def free_slots(
    state: StateArray, slots: IntArray, page_size: int, out: IntArray, ring: IntArray, at: int, shift: int
) -> tuple[int, int]:
    """`move_slots` to FREE, which writes the pages into a ring as well: from `at - shift * number of pages` on."""
    count, bad = move_slots(state, slots, page_size, FREE, out)
    write_ring(ring, (at - shift * count) % ring.size, out[:count])
    return count, bad


@kernel(types.UniTuple(i64, 2)(U8, I64, i64, i64, I64, i64))
def move_segment(
    state: StateArray, slots: IntArray, page_size: int, after: int, ring: IntArray, start: int
) -> tuple[int, int]:
    """`move` for the pages of a row segment that starts on a page boundary; the last page may be partial.

    Returns (fault, index of the page): FAULT_OFFSET when the page's slots do not lie one behind the other from its
    start, FAULT_NOT_LIVE when it is out of range or not live, else (FAULT_NONE, -1).
    """
    at = start
    fault = FAULT_NONE
    num_pages = (slots.size + page_size - 1) // page_size
    for i in range(num_pages):
        first = i * page_size
        head = slots[first]
        page = head // page_size
        wrong = head - page * page_size
        for j in range(1, min(page_size, slots.size - first)):
            wrong |= slots[first + j] - head - j
        if wrong != 0:
            fault = FAULT_OFFSET
        elif head < 0 or page >= state.size or state[page] != LIVE:
            fault = FAULT_NOT_LIVE
        if fault != FAULT_NONE:
            for j in range(i):
                state[slots[j * page_size] // page_size] = LIVE
            return fault, i
        state[page] = after
        ring[at] = page
        at += 1
        if at == ring.size:
            at = 0
    return FAULT_NONE, -1


@kernel(types.void(I64, i64, I64))
def expand_pages(pages: IntArray, page_size: int, out: IntArray) -> None:
    """All slots of `pages`, page by page."""
    for i in range(pages.size):
        base = pages[i] * page_size
        start = i * page_size
        for j in range(page_size):
            out[start + j] = base + j
