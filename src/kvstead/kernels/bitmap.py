"""A bitmap in levels: which pages are free, and which is the lowest, in O(log64 N) steps.

    level 2                    [ w ]                    a bit for every non-zero word of level 1
    level 1         [ w ][ w ] ... [ w ]                a bit for every non-zero word of level 0
    level 0   [ w ][ w ][ w ][ w ] ... [ w ]            a bit for every page: 1 is free

All levels lie in one uint64 array, level 0 first; `starts[k]` is where level k begins.
"""

from __future__ import annotations

from numba import types

from kvstead.kernels.array_types import IntArray, WordArray
from kvstead.kernels.compiling import I64, U64, i64, kernel

u64 = types.uint64


@kernel(i64(u64))
def _lowest_bit(word: int) -> int:
    """Index of the lowest set bit of a non-zero word, by halving."""
    index = 0
    width = 32
    while width > 0:
        low = (1 << width) - 1
        if (word >> u64(index)) & u64(low) == 0:
            index += width
        width //= 2
    return index


@kernel(types.void(U64, I64, I64))
def set_bits(words: WordArray, starts: IntArray, pages: IntArray) -> None:
    """Mark pages as free, on every level until one where the word was not empty."""
    for i in range(pages.size):
        index = pages[i]
        for level in range(starts.size):
            at = starts[level] + index // 64
            before = words[at]
            words[at] = before | (u64(1) << u64(index % 64))
            if before != 0:
                break
            index //= 64


@kernel(types.void(U64, I64, I64))
def take_lowest(words: WordArray, starts: IntArray, out: IntArray) -> None:
    """Take the `out.size` lowest free pages, ascending; there must be that many."""
    top = starts.size - 1
    for i in range(out.size):
        index = 0
        for step in range(starts.size):
            at = starts[top - step] + index
            index = index * 64 + _lowest_bit(words[at])
        out[i] = index
        for level in range(starts.size):
            at = starts[level] + index // 64
            words[at] = words[at] & ~(u64(1) << u64(index % 64))
            if words[at] != 0:
                break
            index //= 64
