"""Host kernels: what an allocator does to its arrays, compiled by numba and cached on disk.

Every function here is a plain loop over the pages or rows of one call and touches nothing else, so a call on k pages
costs O(k) whatever the pool's size. Signatures are explicit: nothing is compiled at call time, and with a warm cache
importing this module loads machine code. With `NUMBA_DISABLE_JIT=1` the same loops run as Python.

A kernel that can refuse returns where it stumbled and has undone its own writes by then.
"""

from __future__ import annotations

from typing import TypeAlias

from numba import types

from kvstead.kernels.jit import I32, I64, U8, IntArray, StateArray, TagArray, i64, kernel

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
_VERDICT = types.UniTuple(types.int64, 4)


@kernel(i64(U8, I64, i64, i64, I64))
def mark(state: StateArray, pages: IntArray, before: int, after: int, out: IntArray) -> int:
    """Turn every page from `before` to `after` and copy the ids to `out`; a repeated id counts as wrong.

    Returns the index of the first page that is out of range or in another state, or -1. On a fault nothing is changed.
    """
    num_states = state.size
    for i in range(pages.size):
        page = pages[i]
        if page < 0 or page >= num_states or state[page] != before:
            for j in range(i):
                state[pages[j]] = before
            return i
        state[page] = after
        out[i] = page
    return -1


@kernel(types.void(U8, I64, i64))
def fill(state: StateArray, pages: IntArray, value: int) -> None:
    """Set the state of pages that are known to be good."""
    for i in range(pages.size):
        state[pages[i]] = value


@kernel(types.void(U8, I32, I64, i64))
def occupy(state: StateArray, owner: TagArray, pages: IntArray, tag: int) -> None:
    """Make free pages live and write down who takes them."""
    for i in range(pages.size):
        page = pages[i]
        state[page] = LIVE
        owner[page] = tag


@kernel(types.UniTuple(i64, 2)(U8, I64, i64, i64, I64))
def claim_slots(state: StateArray, slots: IntArray, page_size: int, after: int, out: IntArray) -> tuple[int, int]:
    """Collect the distinct pages of live `slots` into `out`, in the order first seen, and set them to `after`.

    Returns (number of pages, -1), or (0, index of the first bad slot) with nothing changed.
    """
    num_states = state.size
    count = 0
    base = 0
    end = 0  # slots in [base, end) lie in the page just seen
    for i in range(slots.size):
        slot = slots[i]
        if base <= slot < end:
            continue
        page = slot // page_size
        good = slot >= 0 and page < num_states
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
    for j in range(count):
        state[out[j]] = after
    return count, -1


@kernel(i64(I64, i64, I64))
def segment_pages(slots: IntArray, page_size: int, out: IntArray) -> int:
    """Pages of a row segment that starts on a page boundary: one for every `page_size` slots, the last may be partial.

    Returns the index of the first page whose slots do not lie one behind the other from its start, or -1.
    """
    num_pages = (slots.size + page_size - 1) // page_size
    for i in range(num_pages):
        start = i * page_size
        length = min(page_size, slots.size - start)
        head = slots[start]
        page = head // page_size
        wrong = head - page * page_size
        for j in range(1, length):
            wrong |= slots[start + j] - head - j
        if wrong != 0:
            return i
        out[i] = page
    return -1


@kernel(types.void(I64, i64, I64))
def expand_pages(pages: IntArray, page_size: int, out: IntArray) -> None:
    """All slots of `pages`, page by page."""
    for i in range(pages.size):
        base = pages[i] * page_size
        start = i * page_size
        for j in range(page_size):
            out[start + j] = base + j


@kernel(i64(U8, i64, i64, i64))
def _claim_last_page(state: StateArray, prefix: int, last: int, page_size: int) -> int:
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


@kernel(_VERDICT(U8, I64, I64, I64, i64))
def extend_demand(
    state: StateArray, prefix_lens: IntArray, seq_lens: IntArray, last_locs: IntArray, page_size: int
) -> Verdict:
    """Check a batch of rows that are to grow from `prefix_lens` to `seq_lens` and count what they take.

    Returns (fault, row, new slots, new pages). The states are left as they were.
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
            fault = _claim_last_page(state, prefix, last_locs[i], page_size)
            num_slots += seq - prefix
            num_pages += (seq + page_size - 1) // page_size - (prefix + page_size - 1) // page_size
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


@kernel(_VERDICT(U8, I64, I64, i64, I64))
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
        if prefix < 0:
            fault = FAULT_LENGTHS
            break
        fault = _claim_last_page(state, prefix, last, page_size)
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


@kernel(types.void(I32, I64, I64, i64, I64, I64))
def tag_rows(
    owner: TagArray, prefix_lens: IntArray, seq_lens: IntArray, page_size: int, pages: IntArray, tags: IntArray
) -> None:
    """Write each row's tag on the pages that `extend_slots` gives it."""
    taken = 0
    for i in range(seq_lens.size):
        last = (seq_lens[i] + page_size - 1) // page_size
        for _ in range((prefix_lens[i] + page_size - 1) // page_size, last):
            owner[pages[taken]] = tags[i]
            taken += 1
