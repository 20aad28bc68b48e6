"""Kernels of the arena: holes of a span as bits, and the two tables between virtual and physical pages.

Holes are a bitmap in levels, as in `bitmap`: bit p of level 0 is set when page p is a hole. A side is a sign, -1 for
low and +1 for high, and so is the end at which a span is anchored (0: at none).

    v2p[v]   the physical page of virtual page v, -1: none
    p2v[p]   the virtual page that has page p,    -1: none

Row 0 of both tables is 0, the sink; their last rows stay -1, so that index -1 reads -1.
"""

from __future__ import annotations

import numpy as np
from numba import types

from kvstead.kernels.array_types import IntArray, WordArray
from kvstead.kernels.bitmap import set_bits
from kvstead.kernels.compiling import I64, U64, i64, kernel

LOW = -1
HIGH = 1

u64 = types.uint64


@kernel(i64(u64, i64))
def _edge_bit(word: int, side: int) -> int:
    """Index of the lowest or highest set bit of a non-zero word, by halving."""
    index = 0
    width = 32
    while width > 0:
        mask = u64((1 << width) - 1)
        lower = (word >> u64(index)) & mask
        upper = (word >> u64(index + width)) & mask
        if (side < 0 and lower == 0) or (side > 0 and upper != 0):
            index += width
        width //= 2
    return index


@kernel(types.boolean(U64, i64))
def _is_hole(words: WordArray, page: int) -> bool:
    return bool((words[page // 64] >> u64(page % 64)) & u64(1))


@kernel(types.void(U64, I64, i64, i64))
def _clear(words: WordArray, starts: IntArray, level: int, index: int) -> None:
    """Clear bit `index` of a level, and of those above while the word is empty then."""
    for upward in range(level, starts.size):
        at = starts[upward] + index // 64
        words[at] = words[at] & ~(u64(1) << u64(index % 64))
        if words[at] != 0:
            break
        index //= 64


@kernel(types.void(U64, I64, i64, I64))
def take_holes(words: WordArray, starts: IntArray, side: int, out: IntArray) -> None:
    """Take the `out.size` outermost holes on `side`, outermost first; there must be that many."""
    top = starts.size - 1
    taken = 0
    while taken < out.size:
        at = 0
        for step in range(top):
            at = at * 64 + _edge_bit(words[starts[top - step] + at], side)
        word = words[at]
        while word != 0 and taken < out.size:
            bit = _edge_bit(word, side)
            out[taken] = at * 64 + bit
            taken += 1
            word = word ^ (u64(1) << u64(bit))
        words[at] = word
        if word == 0:
            _clear(words, starts, 1, at)


@kernel(u64(i64, i64))
def _mask(first: int, count: int) -> np.uint64:
    """Bits `first` to below `first + count` of a word; `count` is 1 or more."""
    return (u64(0xFFFFFFFFFFFFFFFF) >> u64(64 - count)) << u64(first)


@kernel(types.UniTuple(i64, 2)(U64, I64, i64, i64, i64))
def _trim(words: WordArray, starts: IntArray, lo: int, hi: int, anchor: int) -> tuple[int, int]:
    """The edges of a span without the holes that lie at an edge which may move; their bits are cleared, by the word."""
    for side in (LOW, HIGH):
        while side != anchor and lo < hi:
            at = (lo if side < 0 else hi - 1) // 64
            first = max(lo - at * 64, 0)
            last = min(hi - at * 64, 64)
            used = ~words[at] & _mask(first, last - first)
            count = last - first
            if used != 0:
                count = _edge_bit(used, side) - first if side < 0 else last - 1 - _edge_bit(used, side)
            if count == 0:
                break
            words[at] = words[at] & ~_mask(first if side < 0 else last - count, count)
            if words[at] == 0:
                _clear(words, starts, 1, at)
            lo, hi = (lo + count, hi) if side < 0 else (lo, hi - count)
            if used != 0:
                break
    return lo, hi


@kernel(i64(U64, i64, i64))
def count_used(words: WordArray, lo: int, hi: int) -> int:
    """How many of the pages from `lo` to `hi` are no holes."""
    count = 0
    for page in range(lo, hi):
        if not _is_hole(words, page):
            count += 1
    return count


@kernel(types.UniTuple(i64, 2)(U64, i64, i64, i64, i64))
def longest_band(words: WordArray, edge: int, side: int, num_pages: int, max_used: int) -> tuple[int, int]:
    """The longest band at an edge, `num_pages` at most, with `max_used` used pages at most: (its pages, used ones)."""
    used = 0
    for n in range(num_pages):
        page = edge + n if side < 0 else edge - 1 - n
        if not _is_hole(words, page):
            if used == max_used:
                return n, used
            used += 1
    return num_pages, used


@kernel(types.UniTuple(i64, 2)(U64, I64, I64, i64, i64, i64, i64, i64, i64, I64, I64))
def retreat(
    words: WordArray,
    starts: IntArray,
    band: IntArray,
    lo: int,
    hi: int,
    anchor: int,
    far: int,
    num_holes: int,
    fresh: int,
    src: IntArray,
    dst: IntArray,
) -> tuple[int, int]:
    """Move what is used in a band to the `num_holes` holes farthest on side `far`, the rest to `fresh` and upward.

    band: [first page, end]. lo, hi: the span's edges without the band. Fills `src`, ascending, and `dst`; the band's
    holes are no more. Returns the span's edges, trimmed.
    """
    count = 0
    for page in range(band[0], band[1]):
        if _is_hole(words, page):
            _clear(words, starts, 0, page)
        else:
            src[count] = page
            count += 1
    take_holes(words, starts, far, dst[:num_holes])
    for i in range(num_holes, count):
        dst[i] = fresh + i - num_holes
    return _trim(words, starts, lo, hi, anchor)


@kernel(i64(I64, I64))
def first_bound(v2p: IntArray, v_pages: IntArray) -> int:
    """The index of the first virtual page that is out of range, bound or named again, or -1. Changes nothing."""
    limit = v2p.size - 1
    bad = -1
    seen = 0
    for i in range(v_pages.size):
        v = v_pages[i]
        if v < 1 or v >= limit or v2p[v] != -1:
            bad = i
            break
        v2p[v] = 0
        seen += 1
    for i in range(seen):
        v2p[v_pages[i]] = -1
    return bad


@kernel(types.void(I64, I64, I64, I64))
def bind(v2p: IntArray, p2v: IntArray, v_pages: IntArray, pages: IntArray) -> None:
    """Bind virtual pages to physical ones."""
    for i in range(v_pages.size):
        v2p[v_pages[i]] = pages[i]
        p2v[pages[i]] = v_pages[i]


@kernel(types.UniTuple(i64, 3)(I64, I64, I64, U64, I64, i64, i64, i64))
def release(
    v2p: IntArray, p2v: IntArray, v_pages: IntArray, words: WordArray, starts: IntArray, lo: int, hi: int, anchor: int
) -> tuple[int, int, int]:
    """Take the physical pages of bound virtual pages away and make them holes of the span from `lo` to `hi`.

    Returns (-1, the span's edges, trimmed), or (index of the first page that is out of range or not bound, lo, hi) with
    nothing changed.
    """
    limit = v2p.size - 1
    pages = np.empty(v_pages.size, dtype=np.int64)
    for i in range(v_pages.size):
        v = v_pages[i]
        page = v2p[v] if 0 < v < limit else 0
        if page <= 0:
            for j in range(i):
                v2p[v_pages[j]] = pages[j]
            return i, lo, hi
        pages[i] = page
        v2p[v] = -1
    for i in range(pages.size):
        p2v[pages[i]] = -1
    set_bits(words, starts, pages)
    edges = _trim(words, starts, lo, hi, anchor)
    return -1, edges[0], edges[1]


@kernel(types.void(I64, I64, I64, I64))
def rebind(v2p: IntArray, p2v: IntArray, src: IntArray, dst: IntArray) -> None:
    """Move the owners of pages `src` to pages `dst`. No page is in both."""
    for i in range(src.size):
        owner = p2v[src[i]]
        p2v[src[i]] = -1
        p2v[dst[i]] = owner
        v2p[owner] = dst[i]


@kernel(i64(I64, I64, i64, I64))
def translate(v2p: IntArray, slots: IntArray, page_size: int, out: IntArray) -> int:
    """The physical slot of each virtual slot: 0, in the sink, for -1 and where the page is not bound.

    Returns -1, or the index of the first slot that is below -1 or past the table. `out` may be `slots`.
    """
    limit = (v2p.size - 1) * page_size
    for i in range(slots.size):
        if slots[i] < -1 or slots[i] >= limit:
            return i
    for i in range(slots.size):
        slot = slots[i]
        page = v2p[slot // page_size] if slot >= 0 else 0
        out[i] = page * page_size + slot % page_size if page > 0 else 0
    return -1
