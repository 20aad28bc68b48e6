"""What a prefix tree does to arrays: compare token ids, store them in 32 bits, claim pages."""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
from numba import types
from numpy.typing import NDArray

from kvstead.kernels.array_types import IntArray, StateArray
from kvstead.kernels.compiling import I32, I64, U8, i64, kernel

TokenArray: TypeAlias = NDArray[np.int32]  # token ids of a key

# What can be wrong with the slots of a page to hold.
FAULT_NONE = 0
FAULT_OFFSET = 1  # they do not follow one another from the page's start
FAULT_FOREIGN = 2  # it is padding, or not a page of the pool
FAULT_HELD = 3  # it is held already

_BLOCK = 64  # tokens compared at once: long enough for vector instructions, short enough to compare in vain


@kernel(i64(I32, i64, I32))
def common_prefix(a: TokenArray, a_start: int, b: TokenArray) -> int:
    """How many leading tokens `a[a_start:]` and `b` share."""
    length = min(a.size - a_start, b.size)
    left = a[a_start : a_start + length]
    right = b[:length]
    i = 0
    while i + _BLOCK <= length:
        differing = 0
        for j in range(_BLOCK):
            differing |= left[i + j] ^ right[i + j]
        if differing != 0:
            break
        i += _BLOCK
    while i < length and left[i] == right[i]:
        i += 1
    return i


@kernel(i64(I64, I32))
def narrow(tokens: IntArray, out: TokenArray) -> int:
    """Copy ids to `out` as int32. Returns the index of the first one that does not fit, or -1."""
    wide = 0
    for i in range(tokens.size):
        wide |= (tokens[i] >> 31) ^ (tokens[i] >> 63)  # zero as long as the upper half only repeats the sign
    if wide != 0:
        bad = 0
        while tokens[bad] >> 31 == tokens[bad] >> 63:
            bad += 1
        return bad
    for i in range(tokens.size):
        out[i] = tokens[i]
    return -1


@kernel(types.UniTuple(i64, 2)(U8, I64, i64, I64))
def hold_pages(held: StateArray, slots: IntArray, page_size: int, out: IntArray) -> tuple[int, int]:
    """Set `held` to 1 for the pages that `slots` list whole and in order, and write their ids to `out`.

    Returns (FAULT_NONE, 0), or (fault, index of the page among them) with `held` as it was. Entry 0 stands for padding.
    """
    fault = FAULT_NONE
    count = 0
    while count < out.size and fault == FAULT_NONE:
        start = count * page_size
        page = slots[start] // page_size
        wrong = slots[start] - page * page_size
        for j in range(1, page_size):
            wrong |= slots[start + j] - slots[start] - j
        if wrong != 0:
            fault = FAULT_OFFSET
        elif page < 1 or page >= held.size:
            fault = FAULT_FOREIGN
        elif held[page] != 0:
            fault = FAULT_HELD
        else:
            held[page] = 1
            out[count] = page
            count += 1
    if fault == FAULT_NONE:
        return FAULT_NONE, 0
    for i in range(count):
        held[out[i]] = 0
    return fault, count
