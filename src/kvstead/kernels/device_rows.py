"""What the host works out about rows that grow in a pool whose pages live on a device.

Lengths are the host's, slots the device's. So the host counts slots and pages and says, in numbers to be added to the
index of a new slot, where in which row it lies; the device does the rest.

    rows grow from 2 to 9 and from 0 to 3, page size 4

    index       0  1 | 2  3  4  5 | 6 || 7  8  9      row 0: ends  7, starts 0, to_position  2, to_page -1, opens_at 2
    position    2  3 | 4  5  6  7 | 8 || 0  1  2      row 1: ends 10, starts 7, to_position -7, to_page  2, opens_at 7
    new page    -  - | 0  0  0  0 | 1 || 2  2  2      new page = position // 4 + to_page, none before `opens_at`
"""

from __future__ import annotations

from numba import types

from kvstead.kernels.array_types import IntArray
from kvstead.kernels.compiling import I64, i64, kernel

ROW_COLUMNS = 5  # ends, starts, to_position, to_page, opens_at


@kernel(types.UniTuple(i64, 3)(I64, I64, i64, i64, types.int64[:, ::1]))
def plan_rows(
    prefix_lens: IntArray, seq_lens: IntArray, page_size: int, num_free: int, out: IntArray
) -> tuple[int, int, int]:
    """Describe rows that grow from `prefix_lens` to `seq_lens`, for `device_ops.extend_slots`.

    out: int64[5, rows], filled. Returns (-1, new slots, new pages), or the first row whose length shrinks or starts
    below 0 and two zeros. Pages are counted up to `num_free` and one more; then neither `out` nor the slots say
    anything.
    """
    num_slots = 0
    num_pages = 0
    for i in range(prefix_lens.size):
        prefix = prefix_lens[i]
        seq = seq_lens[i]
        if prefix < 0 or seq < prefix:
            return i, 0, 0
        held = prefix // page_size + (1 if prefix % page_size else 0)
        out[1, i] = num_slots
        out[2, i] = prefix - num_slots
        out[3, i] = num_pages - held
        out[4, i] = num_slots + (page_size - prefix % page_size) % page_size
        opened = max(0, seq // page_size + (1 if seq % page_size else 0) - held)
        num_pages += min(opened, num_free + 1 - num_pages)
        if num_pages <= num_free:  # else no sum of lengths need overflow
            num_slots += seq - prefix
        out[0, i] = num_slots
    return -1, num_slots, num_pages


@kernel(types.UniTuple(i64, 2)(I64, i64, I64))
def plan_decode(seq_lens: IntArray, page_size: int, out: IntArray) -> tuple[int, int]:
    """Which rows open a page when each grows by one token, which `seq_lens` count.

    out: int64[rows], the numbers of these rows in front. Returns (-1, how many), or the first row that is not 1 long
    at least and 0.
    """
    opening = 0
    for i in range(seq_lens.size):
        if seq_lens[i] < 1:
            return i, 0
        if (seq_lens[i] - 1) % page_size == 0:
            out[opening] = i
            opening += 1
    return -1, opening
