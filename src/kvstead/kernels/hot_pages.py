"""Kernels of the hot side: which device page is linked to each logical page, and how many entries it holds.

    logical page    0   1   2   3   4 .. N   N + 1
    device_pages  [ 0 | 7 | 0 | 2 | 0 .. 4 |  -1   ]     0: none
    hot_lens      [ . | 4 | . | 1 | . .. 4 |   .   ]     entries, where there is a device page

An entry is one token, or a block of `ratio` tokens that is there once its last token is. A page and its device page
have their entries at equal places, and the device page holds the first ones: a row grows in order, and cannot leave a
gap.
"""

from __future__ import annotations

from numba import types

from kvstead.kernels.array_types import IntArray, TagArray
from kvstead.kernels.compiling import I32, I64, i64, kernel


@kernel(types.UniTuple(i64, 2)(I64, I64, I64, I64, I64, i64, i64))
def hot_demand(
    device_pages: IntArray,
    hot_lens: IntArray,
    prefix_lens: IntArray,
    seq_lens: IntArray,
    last_locs: IntArray,
    page_size: int,
    ratio: int,
) -> tuple[int, int]:
    """Device pages for the entries that rows complete when they grow; the rows are sound otherwise.

    Returns (-1, number of pages), or (row, 0) for the first row that would grow behind an entry that is not there.
    """
    per_page = page_size // ratio
    num_pages = 0
    for i in range(seq_lens.size):
        start = prefix_lens[i] // ratio
        end = seq_lens[i] // ratio
        if start == end:
            continue
        num_pages += (end - 1) // per_page - start // per_page + 1
        if prefix_lens[i] % page_size != 0:
            page = last_locs[i] // page_size
            there = hot_lens[page] if device_pages[page] > 0 else 0
            if there < start % per_page:
                return i, 0
            if there > 0:
                num_pages -= 1
    return -1, num_pages


@kernel(types.void(I64, I64, I32, I64, I64, I64, I64, i64, i64))
def warm_rows(
    device_pages: IntArray,
    hot_lens: IntArray,
    holders: TagArray,
    prefix_lens: IntArray,
    seq_lens: IntArray,
    slots: IntArray,
    fresh: IntArray,
    page_size: int,
    ratio: int,
) -> None:
    """Note the entries that rows have completed with their new `slots`; `fresh` are the pages of `hot_demand`.

    holders: the logical page of each device page.
    """
    per_page = page_size // ratio
    taken = 0
    base = 0
    for i in range(seq_lens.size):
        shift = base - prefix_lens[i]
        entry = prefix_lens[i] // ratio
        end = seq_lens[i] // ratio
        while entry < end:
            first = entry // per_page * per_page
            entry = min(end, first + per_page)
            page = slots[shift + entry * ratio - 1] // page_size
            if device_pages[page] <= 0:
                device_pages[page] = fresh[taken]
                holders[fresh[taken]] = page
                hot_lens[page] = 0
                taken += 1
            hot_lens[page] = max(hot_lens[page], entry - first)
        base += seq_lens[i] - prefix_lens[i]


@kernel(i64(I64, I64, I64, i64, i64, I64))
def hot_slots(
    device_pages: IntArray, hot_lens: IntArray, slots: IntArray, page_size: int, ratio: int, out: IntArray
) -> int:
    """The device slot of the entry that each logical slot completes: 0 where there is none, -1 for -1.

    Returns -1, or the index of the first slot that is neither -1 nor in the pool nor padding.
    """
    per_page = page_size // ratio
    limit = (device_pages.size - 1) * page_size
    for i in range(slots.size):
        slot = slots[i]
        if slot < -1 or slot >= limit:
            return i
        if slot < 0:
            out[i] = -1
            continue
        page = slot // page_size
        offset = slot - page * page_size
        entry = offset // ratio
        there = device_pages[page] > 0 and entry < hot_lens[page] and offset % ratio == ratio - 1
        out[i] = device_pages[page] * per_page + entry if there else 0
    return -1
