"""Kernels of the request table: many rows, a slot or two each."""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
from numba import types
from numpy.typing import NDArray

from kvstead.kernels.host import CLAIMED, LIVE, VERDICT, Verdict, decode_slots
from kvstead.kernels.jit import I32, I64, U8, IntArray, StateArray, TagArray, i64, kernel

Table: TypeAlias = NDArray[np.int64]  # [rows, width]
TokenTable: TypeAlias = NDArray[np.int32]  # [rows, width]

MAX_TOKEN = 2**31 - 1  # ids are kept as int32

_T64 = types.int64[:, ::1]
_T32 = types.int32[:, ::1]


@kernel(types.UniTuple(i64, 2)(U8, i64, I64, I64, i64))
def count_opening(
    row_state: StateArray, width: int, lengths: IntArray, rows: IntArray, page_size: int
) -> tuple[int, int]:
    """How many of the rows open a page when each grows by one slot.

    Returns (number, -1), or (0, index of the first row that is not out, is full or was named before). The states are
    left as they were.
    """
    opening = 0
    done = 0
    for i in range(rows.size):
        row = rows[i]
        if row < 0 or row >= row_state.size or row_state[row] != LIVE or lengths[row] >= width:
            break
        row_state[row] = CLAIMED
        if lengths[row] % page_size == 0:
            opening += 1
        done += 1
    for i in range(done):
        row_state[rows[i]] = LIVE
    return (opening, -1) if done == rows.size else (0, done)


@kernel(VERDICT(U8, _T64, I64, I64, i64, I64))
def next_slots(
    state: StateArray, slots: Table, lengths: IntArray, rows: IntArray, page_size: int, out: IntArray
) -> Verdict:
    """`decode_slots` for rows of a table: the next slot of each where its last page has room, else -1."""
    seq_lens = np.empty(rows.size, dtype=np.int64)
    last_locs = np.empty(rows.size, dtype=np.int64)
    for i in range(rows.size):
        length = lengths[rows[i]]
        seq_lens[i] = length + 1
        last_locs[i] = slots[rows[i], length - 1] if length > 0 else -1
    return decode_slots(state, seq_lens, last_locs, page_size, out)


@kernel(types.void(I32, _T64, I64, I64, I32, I64, i64, I64))
def append_slots(
    owner: TagArray,
    slots: Table,
    lengths: IntArray,
    rows: IntArray,
    tags: TagArray,
    pages: IntArray,
    page_size: int,
    out: IntArray,
) -> None:
    """Write one new slot behind each row: `out`, and where that is -1 the first slot of the next of `pages`, tagged."""
    taken = 0
    for i in range(rows.size):
        row = rows[i]
        if out[i] < 0:
            page = pages[taken]
            taken += 1
            out[i] = page * page_size
            owner[page] = tags[i]
        slots[row, lengths[row]] = out[i]
        lengths[row] += 1


@kernel(i64(U8, I64, I64, _T32, I64, I64, I64, I64))
def commit_rows(
    row_state: StateArray,
    allocated: IntArray,
    computed: IntArray,
    tokens: TokenTable,
    num_tokens: IntArray,
    rows: IntArray,
    lengths: IntArray,
    new_tokens: IntArray,
) -> int:
    """Note that each row is computed up to `lengths`; where that was its last known token, write the one that follows.

    Returns -1, or the index of the first row that is not out or was named before, whose length is not one of
    computed .. min(allocated, known), or whose new token is wanted and no id of 0 .. 2**31 - 1. On a fault nothing is
    changed.
    """
    done = 0
    for i in range(rows.size):
        row = rows[i]
        length = lengths[i]
        if row < 0 or row >= row_state.size or row_state[row] != LIVE:
            break
        if length < computed[row] or length > allocated[row] or length > num_tokens[row]:
            break
        if length == num_tokens[row] and (new_tokens[i] < 0 or new_tokens[i] > MAX_TOKEN):
            break
        row_state[row] = CLAIMED
        done += 1
    for i in range(done):
        row_state[rows[i]] = LIVE
    if done < rows.size:
        return done
    for i in range(rows.size):
        row = rows[i]
        length = lengths[i]
        computed[row] = length
        if length == num_tokens[row]:
            tokens[row, length] = new_tokens[i]
            num_tokens[row] = length + 1
    return -1
