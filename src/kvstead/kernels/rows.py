"""Kernels of the request table: many rows, a slot or two each."""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
from numba import types
from numpy.typing import NDArray

from kvstead.kernels.host import LIVE
from kvstead.kernels.jit import I64, U8, IntArray, StateArray, i64, kernel

Table: TypeAlias = NDArray[np.int64]  # [rows, width]
TokenTable: TypeAlias = NDArray[np.int32]  # [rows, width]

_T64 = types.int64[:, ::1]
_T32 = types.int32[:, ::1]


@kernel(types.UniTuple(i64, 2)(U8, _T64, I64, I64, i64, I64, I64))
def row_tails(
    state: StateArray,
    slots: Table,
    lengths: IntArray,
    rows: IntArray,
    page_size: int,
    seq_lens: IntArray,
    last_locs: IntArray,
) -> tuple[int, int]:
    """For rows that are to grow by one slot: their new length and their last slot (-1 for an empty row).

    Returns (how many of them open a page, -1), or (0, index of the first row that is not out or is full).
    """
    opening = 0
    for i in range(rows.size):
        row = rows[i]
        if row < 0 or row >= state.size or state[row] != LIVE or lengths[row] >= slots.shape[1]:
            return 0, i
        length = lengths[row]
        seq_lens[i] = length + 1
        last_locs[i] = slots[row, length - 1] if length > 0 else -1
        if length % page_size == 0:
            opening += 1
    return opening, -1


@kernel(types.void(_T64, I64, I64, I64))
def append_slots(slots: Table, lengths: IntArray, rows: IntArray, new_slots: IntArray) -> None:
    """Write one new slot behind each row."""
    for i in range(rows.size):
        row = rows[i]
        slots[row, lengths[row]] = new_slots[i]
        lengths[row] += 1


@kernel(i64(I64, I64, _T32, I64, I64, I64, I64))
def commit_rows(
    allocated: IntArray,
    computed: IntArray,
    tokens: TokenTable,
    num_tokens: IntArray,
    rows: IntArray,
    lengths: IntArray,
    new_tokens: IntArray,
) -> int:
    """Note that each row is computed up to `lengths`; where that was its last known token, write the one that follows.

    Returns the index of the first row whose length is not one of computed .. min(allocated, known), or -1. On a fault
    nothing is changed.
    """
    for i in range(rows.size):
        row = rows[i]
        length = lengths[i]
        if length < computed[row] or length > allocated[row] or length > num_tokens[row]:
            return i
    for i in range(rows.size):
        row = rows[i]
        length = lengths[i]
        computed[row] = length
        if length == num_tokens[row]:
            tokens[row, length] = new_tokens[i]
            num_tokens[row] = length + 1
    return -1
