"""Host kernels for rows that grow: the checks, how many pages a batch takes, and the new slots.

As in `host`, a kernel that can refuse returns where it stumbled and has undone its own writes by then.
"""

from __future__ import annotations

from typing import TypeAlias

from numba import types

from kvstead.kernels.array_types import IntArray, StateArray, TagArray
from kvstead.kernels.compiling import I32, I64, U8, i64, kernel
from kvstead.kernels.host import (
    CLAIMED,
    FAULT_FOREIGN,
    FAULT_LENGTHS,
    FAULT_NONE,
    FAULT_NOT_LIVE,
    FAULT_OFFSET,
    FAULT_SHARED,
    LIVE,
    PADDING,
)

# (fault, row, new slots, new pages)
Verdict: TypeAlias = tuple[int, int, int, int]
VERDICT = types.UniTuple(types.int64, 4)


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
