"""`device_ops` as Triton kernels, for CUDA: the same answers in a launch or two a call.

A program works on `_BLOCK` neighbours. Where torch looks rows up, gathers their figures and combines them one operation
at a time, a kernel does all of that for its block before it writes. Sizes and the alignment of callers' views are no
part of what a kernel is compiled for, so no call compiles anew because of them.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from kvstead.kernels.device_ops import FAR

_BLOCK = 512


@triton.jit
def _floor_div(a, b):
    """Division that rounds down, of any `a` by a positive `b`, in compiled and interpreted code alike."""
    return tl.where(a < 0, -1 - (-1 - a) // b, a // b)


@triton.jit
def _count_up_to(sorted_ptr, size, values, steps, OR_EQUAL: tl.constexpr):
    """How many of `size` ascending numbers lie before each value (`OR_EQUAL`: or are equal to it); 2**steps > size."""
    low = tl.zeros_like(values)
    high = low + size
    for _ in range(steps):
        middle = (low + high) // 2
        found = tl.load(sorted_ptr + middle, mask=middle < high, other=0)
        before = (middle < high) & ((found <= values) if OR_EQUAL else (found < values))
        low = tl.where(before, middle + 1, low)
        high = tl.where(before, high, middle)
    return low


@triton.jit(
    do_not_specialize=["num_rows", "num_slots", "steps"], do_not_specialize_on_alignment=["last_ptr", "pages_ptr"]
)
def _extend(rows_ptr, last_ptr, pages_ptr, out_ptr, num_rows, num_slots, page_size, steps, BLOCK: tl.constexpr):
    index = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = index < num_slots
    row = _count_up_to(rows_ptr, num_rows, index, steps, True)
    start = tl.load(rows_ptr + num_rows + row, mask=inside, other=0)
    position = index + tl.load(rows_ptr + 2 * num_rows + row, mask=inside, other=0)
    page = position // page_size + tl.load(rows_ptr + 3 * num_rows + row, mask=inside, other=0)
    is_fresh = inside & (index >= tl.load(rows_ptr + 4 * num_rows + row, mask=inside, other=0))
    kept = tl.load(last_ptr + row, mask=inside, other=0) + 1 + index - start
    fresh = tl.load(pages_ptr + page, mask=is_fresh, other=0) * page_size + position % page_size
    tl.store(out_ptr + index, tl.where(is_fresh, fresh, kept), mask=inside)


@triton.jit(
    do_not_specialize=["num_pages", "num_rows", "steps"],
    do_not_specialize_on_alignment=["opening_ptr", "last_ptr", "pages_ptr"],
)
def _decode(opening_ptr, last_ptr, pages_ptr, out_ptr, num_pages, num_rows, page_size, steps, BLOCK: tl.constexpr):
    row = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = row < num_rows
    rank = _count_up_to(opening_ptr, num_pages, row, steps, False)
    opens = inside & (rank < num_pages) & (tl.load(opening_ptr + rank, mask=rank < num_pages, other=-1) == row)
    kept = tl.load(last_ptr + row, mask=inside, other=0) + 1
    fresh = tl.load(pages_ptr + rank, mask=opens, other=0) * page_size
    tl.store(out_ptr + row, tl.where(opens, fresh, kept), mask=inside)


@triton.jit(do_not_specialize=["num_slots"], do_not_specialize_on_alignment=["pages_ptr"])
def _expand(pages_ptr, out_ptr, num_slots, page_size, BLOCK: tl.constexpr):
    index = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    page = tl.load(pages_ptr + index // page_size, mask=index < num_slots, other=0)
    tl.store(out_ptr + index, page * page_size + index % page_size, mask=index < num_slots)


@triton.jit(do_not_specialize=["stride", "num_pages"], do_not_specialize_on_alignment=["slots_ptr"])
def _segment(slots_ptr, out_ptr, stride, num_pages, page_size, BLOCK: tl.constexpr):
    index = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    slot = tl.load(slots_ptr + index.to(tl.int64) * page_size * stride, mask=index < num_pages, other=0)
    tl.store(out_ptr + index, _floor_div(slot, page_size), mask=index < num_pages)


@triton.jit
def _pages_of(slots_ptr, num_slots, page_size, other, BLOCK: tl.constexpr):
    """This program's entries, which of them there are, their pages, and these as places in the marks."""
    index = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = index < num_slots
    page = _floor_div(tl.load(slots_ptr + index, mask=inside, other=0), page_size)
    return index, inside, page, tl.where((page < 0) | (page > other), other, page)


@triton.jit(do_not_specialize=["num_slots", "other"], do_not_specialize_on_alignment=["slots_ptr"])
def _mark(slots_ptr, marks_ptr, num_slots, page_size, other, BLOCK: tl.constexpr):
    index, inside, _page, place = _pages_of(slots_ptr, num_slots, page_size, other, BLOCK)
    tl.atomic_min(marks_ptr + place, index, mask=inside)


@triton.jit(do_not_specialize=["num_slots", "other"], do_not_specialize_on_alignment=["slots_ptr"])
def _count(slots_ptr, marks_ptr, counts_ptr, num_slots, page_size, other, BLOCK: tl.constexpr):
    index, inside, _page, place = _pages_of(slots_ptr, num_slots, page_size, other, BLOCK)
    is_first = inside & ((tl.load(marks_ptr + place, mask=inside, other=-1) == index) | (place == other))
    tl.store(counts_ptr + tl.program_id(0), tl.sum(is_first.to(tl.int32)))


@triton.jit(do_not_specialize=["num_slots", "other"], do_not_specialize_on_alignment=["slots_ptr"])
def _gather(slots_ptr, marks_ptr, ends_ptr, out_ptr, num_slots, page_size, other, BLOCK: tl.constexpr):
    index, inside, page, place = _pages_of(slots_ptr, num_slots, page_size, other, BLOCK)
    is_first = inside & ((tl.load(marks_ptr + place, mask=inside, other=-1) == index) | (place == other))
    flags = is_first.to(tl.int32)
    ends = tl.load(ends_ptr + tl.program_id(0))
    rank = ends - tl.sum(flags) + tl.cumsum(flags) - 1
    tl.store(out_ptr + rank, page, mask=is_first)


@triton.jit(do_not_specialize=["num_slots", "other"], do_not_specialize_on_alignment=["slots_ptr"])
def _unmark(slots_ptr, marks_ptr, num_slots, page_size, other, mark, BLOCK: tl.constexpr):
    index, inside, _page, place = _pages_of(slots_ptr, num_slots, page_size, other, BLOCK)
    tl.store(marks_ptr + place, tl.zeros_like(index) + mark, mask=inside)


def extend_slots(
    rows: torch.Tensor, last_locs: torch.Tensor, pages: torch.Tensor, page_size: int, num_slots: int
) -> torch.Tensor:
    """The same as `device_ops.extend_slots`, in one Triton kernel."""
    out, last_locs = pages.new_empty(num_slots), last_locs.contiguous()
    if num_slots:
        num_rows = rows.shape[1]
        with torch.cuda.device_of(out):
            _extend[_grid(num_slots)](
                rows, last_locs, pages, out, num_rows, num_slots, page_size, num_rows.bit_length(), BLOCK=_BLOCK
            )
    return out


def decode_slots(opening: torch.Tensor, last_locs: torch.Tensor, pages: torch.Tensor, page_size: int) -> torch.Tensor:
    """The same as `device_ops.decode_slots`, in one Triton kernel."""
    last_locs = last_locs.contiguous()
    out = torch.empty_like(last_locs)
    num_rows, num_pages = out.numel(), pages.numel()
    if num_rows:
        with torch.cuda.device_of(out):
            _decode[_grid(num_rows)](
                opening, last_locs, pages, out, num_pages, num_rows, page_size, num_pages.bit_length(), BLOCK=_BLOCK
            )
    return out


def expand_pages(pages: torch.Tensor, page_size: int) -> torch.Tensor:
    """The same as `device_ops.expand_pages`, in one Triton kernel."""
    out = pages.new_empty(pages.numel() * page_size)
    if out.numel():
        with torch.cuda.device_of(out):
            _expand[_grid(out.numel())](pages, out, out.numel(), page_size, BLOCK=_BLOCK)
    return out


def segment_pages(slots: torch.Tensor, page_size: int) -> torch.Tensor:
    """The same as `device_ops.segment_pages`, in one Triton kernel."""
    out = slots.new_empty(-(-slots.numel() // page_size))
    if out.numel():
        with torch.cuda.device_of(out):
            _segment[_grid(out.numel())](slots, out, slots.stride(0), out.numel(), page_size, BLOCK=_BLOCK)
    return out


def first_seen(slots: torch.Tensor, page_size: int, marks: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """As `device_ops.first_seen`: mark, count by block, sum up the counts, gather, and clean the marks."""
    slots = slots.contiguous()
    out, size, other = torch.empty_like(slots), slots.numel(), marks.numel() - 1
    grid = _grid(size)
    counts = marks.new_empty(grid[0])
    with torch.cuda.device_of(out):
        _mark[grid](slots, marks, size, page_size, other, BLOCK=_BLOCK)
        _count[grid](slots, marks, counts, size, page_size, other, BLOCK=_BLOCK)
        ends = counts.cumsum(0)
        _gather[grid](slots, marks, ends, out, size, page_size, other, BLOCK=_BLOCK)
        _unmark[grid](slots, marks, size, page_size, other, FAR, BLOCK=_BLOCK)
    return out, ends[-1:]


def _grid(size: int) -> tuple[int]:
    return (triton.cdiv(size, _BLOCK),)
