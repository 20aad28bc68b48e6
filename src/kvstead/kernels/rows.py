"""Kernels of the request table: many rows, a slot or two each."""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
from numba import types
from numpy.typing import NDArray

from kvstead.kernels.array_types import IntArray, StateArray, TagArray
from kvstead.kernels.compiling import I32, I64, U8, i64, kernel
from kvstead.kernels.growing_rows import VERDICT, Verdict, decode_slots
from kvstead.kernels.host import CLAIMED, LIVE

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
    """`decode_slots` for rows of a table: the next slot of each where its last page has a free slot, else -1."""
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


@kernel(i64(i64, i64, i64, types.boolean, types.boolean))
def _frontier(computed: int, page_size: int, span: int, is_chunked: bool, is_cached: bool) -> int:  # noqa: FBT001
    """The first position whose window slot a row with `computed` tokens still needs, on a page boundary.

    That is what a prefix needs, by `Window.needed_from`, that ends with the last computed token, or, where prefixes are
    cached, with the last whole page of them. Steps under way only compute tokens behind `computed`.
    """
    end = computed - computed % page_size if is_cached else computed
    needed = end // span * span if is_chunked else max(0, end - span)
    return needed - needed % page_size


@kernel(types.UniTuple(i64, 2)(_T64, I64, I64, I64, I64, i64, i64, types.boolean, types.boolean, i64, I64, I64))
def slide_windows(
    slots: Table,
    computed: IntArray,
    protected: IntArray,
    window_start: IntArray,
    rows: IntArray,
    page_size: int,
    span: int,
    is_chunked: bool,  # noqa: FBT001 - kernels take no keywords
    is_cached: bool,  # noqa: FBT001
    grain: int,
    pages: IntArray,
    loosened: IntArray,
) -> tuple[int, int]:
    """Move the start of each row's window to its `_frontier`, and list what falls out.

    pages: the row's own pages that fall out. loosened: pairs of a row and its old start, for rows that need less of the
    tree's pages: by `grain` tokens at least, or none at all. Returns how many of each; (number needed, -1), with
    nothing changed, where `pages` is too small.
    """
    num_pages = num_loosened = 0
    for row in rows:
        frontier = _frontier(computed[row], page_size, span, is_chunked, is_cached)
        num_pages += max(0, frontier - max(window_start[row], protected[row])) // page_size
    if num_pages > pages.size:
        return num_pages, -1
    num_pages = 0
    for row in rows:
        start = window_start[row]
        frontier = _frontier(computed[row], page_size, span, is_chunked, is_cached)
        if frontier <= start or (frontier < protected[row] and frontier - start < grain):
            continue
        if start < protected[row]:
            loosened[2 * num_loosened], loosened[2 * num_loosened + 1] = row, start
            num_loosened += 1
        for position in range(max(start, protected[row]), frontier, page_size):
            pages[num_pages] = slots[row, position] // page_size
            num_pages += 1
        window_start[row] = frontier
    return num_pages, num_loosened
