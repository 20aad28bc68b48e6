"""Host kernels: what an allocator does to its arrays, compiled by numba and cached on disk.

Every function here is a plain loop over the pages or rows of one call and touches nothing else, so a call on k pages
costs O(k) whatever the pool's size. Signatures are explicit: nothing is compiled at call time, and with a warm cache
importing this module loads machine code. With `NUMBA_DISABLE_JIT=1` the same loops run as Python.

A kernel that can refuse returns where it stumbled and has undone its own writes by then.
"""

from __future__ import annotations

from typing import TypeAlias

from numba import types

from kvstead.kernels.array_types import IntArray, StateArray, TagArray
from kvstead.kernels.compiling import I32, I64, U8, i64, kernel

# The states of a page, one byte each. CLAIMED never outlives a kernel call.
FREE = 0
LIVE = 1
PARKED = 2
PADDING = 3
CLAIMED = 4

# What can be wrong with a row that is to grow.
FAULT_NONE = 0
FAULT_LENGTHS = 1  # prefix < 0 or seq < prefix
FAULT_OFFSET = 2  # the last slot's place in its page does not follow from the prefix length
FAULT_FOREIGN = 3  # the last slot lies in no page of this pool
FAULT_NOT_LIVE = 4  # ... or in one that nobody holds
FAULT_SHARED = 5  # ... or in one that another row of the batch grows in

# (fault, row, new slots, new pages)
Verdict: TypeAlias = tuple[int, int, int, int]
VERDICT = types.UniTuple(types.int64, 4)


@kernel(types.void(I64, i64, i64, i64))
def _write_run(ring: IntArray, start: int, first: int, count: int) -> None:
    """Write `first`, `first + 1`, ... into a ring from `start` on."""
    straight = min(count, ring.size - start)
    front = ring[start : start + straight]  # loops over whole slices compile to vector code
    for i in range(front.size):
        front[i] = first + i
    for i in range(count - straight):
        ring[i] = first + straight + i


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


@kernel(i64(U8, i64, i64, i64))
def claim_last_page(state: StateArray, prefix: int, last: int, page_size: int) -> int:
    """Check the slot behind which a row grows; a row that grows inside a live page claims it against its neighbours."""
    offset = prefix % page_size
    if (last + 1) % page_size != offset:
        return FAULT_OFFSET
    if offset == 0:
        return FAULT_NONE
    page = last // page_size
    if last < 0 or page >= state.size or state[page] == PADDING:
        return FAULT_FOREIGN
    if state[page] == CLAIMED:
        return FAULT_SHARED
    if state[page] != LIVE:
        return FAULT_NOT_LIVE
    state[page] = CLAIMED
    return FAULT_NONE


@kernel(VERDICT(U8, I64, I64, I64, i64))
def extend_demand(
    state: StateArray, prefix_lens: IntArray, seq_lens: IntArray, last_locs: IntArray, page_size: int
) -> Verdict:
    """Check a batch of rows that are to grow from `prefix_lens` to `seq_lens` and count what they take.

    Returns (fault, row, new slots, new pages); a row counts as no more pages than the pool has states. The states are
    left as they were.
    """
    fault = FAULT_NONE
    num_slots = 0
    num_pages = 0
    rows = 0
    for i in range(seq_lens.size):
        prefix = prefix_lens[i]
        seq = seq_lens[i]
        if prefix < 0 or seq < prefix:
            fault = FAULT_LENGTHS
        elif seq > prefix:
            fault = claim_last_page(state, prefix, last_locs[i], page_size)
            num_slots += seq - prefix
            # More than the pool has is too much whatever the number; so bounded, no sum of rows overflows.
            num_pages += min((seq - 1) // page_size - (prefix - 1) // page_size, state.size)
        if fault != FAULT_NONE:
            break
        rows += 1
    for i in range(rows):
        if seq_lens[i] > prefix_lens[i] and prefix_lens[i] % page_size != 0:
            state[last_locs[i] // page_size] = LIVE
    return fault, rows, num_slots, num_pages


@kernel(types.void(I64, I64, I64, i64, I64, I64))
def extend_slots(
    prefix_lens: IntArray, seq_lens: IntArray, last_locs: IntArray, page_size: int, pages: IntArray, out: IntArray
) -> None:
    """New slots of every row, one row after the other: the rest of its last page, then `pages` in order."""
    taken = 0
    k = 0
    for i in range(seq_lens.size):
        position = prefix_lens[i]
        seq = seq_lens[i]
        if position < seq and position % page_size != 0:
            end = min(seq, (position // page_size + 1) * page_size)
            shift = last_locs[i] + 1 - position
            while position < end:
                out[k] = position + shift
                k += 1
                position += 1
        while position < seq:
            base = pages[taken] * page_size
            taken += 1
            length = min(page_size, seq - position)
            for j in range(length):
                out[k + j] = base + j
            k += length
            position += length


@kernel(VERDICT(U8, I64, I64, i64, I64))
def decode_slots(state: StateArray, seq_lens: IntArray, last_locs: IntArray, page_size: int, out: IntArray) -> Verdict:
    """The next slot of every row where its last page has room, and -1 where it opens a page.

    `seq_lens` count the new token. Returns (fault, row, new slots, new pages), as `extend_demand` with a prefix of
    `seq_lens - 1`. The states are left as they were.
    """
    fault = FAULT_NONE
    num_pages = 0
    rows = 0
    for i in range(seq_lens.size):
        prefix = seq_lens[i] - 1
        last = last_locs[i]
        if seq_lens[i] < 1:
            fault = FAULT_LENGTHS
            break
        fault = claim_last_page(state, prefix, last, page_size)
        if fault != FAULT_NONE:
            break
        if prefix % page_size == 0:
            out[i] = -1
            num_pages += 1
        else:
            out[i] = last + 1
        rows += 1
    for i in range(rows):
        if out[i] >= 0:
            state[last_locs[i] // page_size] = LIVE
    return fault, rows, seq_lens.size, num_pages


@kernel(types.void(I64, i64, I64))
def open_pages(pages: IntArray, page_size: int, out: IntArray) -> None:
    """Give each -1 in `out` the first slot of the next page."""
    taken = 0
    for i in range(out.size):
        if out[i] < 0:
            out[i] = pages[taken] * page_size
            taken += 1


@kernel(types.void(I32, I64, I64, i64, I64, I32))
def tag_rows(
    owner: TagArray, prefix_lens: IntArray, seq_lens: IntArray, page_size: int, pages: IntArray, tags: TagArray
) -> None:
    """Write each row's tag on the pages that `extend_slots` gives it."""
    taken = 0
    for i in range(seq_lens.size):
        last = (seq_lens[i] + page_size - 1) // page_size
        for _ in range((prefix_lens[i] + page_size - 1) // page_size, last):
            owner[pages[taken]] = tags[i]
            taken += 1
