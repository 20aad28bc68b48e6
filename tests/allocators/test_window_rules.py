"""What an allocator of two sides refuses, and how it does without one of them."""

from itertools import product

import numpy as np
import pytest
import torch
from allocator_pair import snapshot
from window_scenes import FREES, every_order, every_page_size, grouped_or_not, pages_of, windows_of

from kvstead.allocators import SWAAllocator
from kvstead.errors import DoubleFree, ForeignPage, InvalidSize, MisalignedSegment, UseAfterFree, WindowTaken

# A side that is short.


@every_order
@every_page_size
@pytest.mark.parametrize("short", ["full", "window"])
def test_a_side_that_is_short_costs_the_other_nothing(page_size, order, short):
    """With one page less than needed on one side and plenty on the other, every call is None and changes nothing."""
    for needed in range(1, 4):
        allocator = SWAAllocator(8 * page_size, 8 * page_size, page_size, order=order)
        if short == "full":
            allocator.free_swa(pages_of(allocator, 9 - needed))
        else:
            allocator = SWAAllocator(8 * page_size, (needed - 1) * page_size, page_size, order=order)
        before = snapshot(allocator)
        rows = [0] * needed, [page_size] * needed, [-1] * needed
        assert allocator.alloc(needed * page_size, 7) is None
        assert allocator.alloc_extend(*rows, [1] * needed) is None
        assert allocator.alloc_decode([1] * needed, [-1] * needed) is None
        assert allocator.alloc_extend_swa_tail([0], [needed * page_size], [-1], needed * page_size) is None
        table = np.full((needed + 1, 4), -1, dtype=np.int64)
        lengths, tags = np.zeros(needed + 1, dtype=np.int64), np.ones(needed, dtype=np.int32)
        assert allocator.alloc_decode_rows(table, lengths, np.arange(1, needed + 1), tags) is None
        assert snapshot(allocator) == before
        assert not lengths.any()
        assert allocator.alloc((needed - 1) * page_size) is not None
        assert allocator.available_size() == 0


@every_page_size
def test_a_bad_argument_is_refused_before_a_short_side_is_noticed(page_size):
    """Whether or not there is room, an owner that fits no tag and a length that shrinks raise."""
    for num_windows in (0, 8):
        allocator = SWAAllocator(8 * page_size, num_windows * page_size, page_size)
        before = snapshot(allocator)
        with pytest.raises(InvalidSize):
            allocator.alloc(page_size, 2**31)
        with pytest.raises(InvalidSize):
            allocator.alloc_extend([0], [page_size], [-1], [2**31])
        with pytest.raises(InvalidSize):
            allocator.alloc_extend_swa_tail([0], [page_size], [-1], page_size, [-(2**31) - 1])
        with pytest.raises(InvalidSize):
            allocator.alloc_extend_swa_tail([0], [-1], [-1], 0)
        with pytest.raises(TypeError):
            allocator.alloc_extend_swa_tail([0], [page_size], [-1], float(page_size))
        assert snapshot(allocator) == before


# Growing where the window is gone.


@every_order
@pytest.mark.parametrize("page_size", [2, 4, 8])
def test_no_row_grows_inside_a_page_that_has_lost_its_window(page_size, order):
    """Its tokens would have no window slot: extend, decode and decode of table rows name the row and change nothing."""
    allocator = SWAAllocator(8 * page_size, 8 * page_size, page_size, order=order)
    sound = allocator.alloc_extend([0], [1], [-1])
    bare = allocator.alloc_extend([0], [page_size + 1], [-1])
    allocator.free_swa(bare[-1:])
    last = int(bare[-1])
    table = np.full((3, 2 * page_size), -1, dtype=np.int64)
    table[1, 0], table[2, : page_size + 1] = sound[0], bare
    lengths = np.array([0, 1, page_size + 1])
    tags = np.zeros(2, dtype=np.int32)
    before = snapshot(allocator)
    told = rf"row 1 would grow behind slot {last}, in page {last // page_size}, whose window page is gone"
    with pytest.raises(UseAfterFree, match=told):
        allocator.alloc_extend([1, page_size + 1], [2, 4 * page_size], [int(sound[0]), last])
    with pytest.raises(UseAfterFree, match=told):
        allocator.alloc_decode([2, page_size + 2], [int(sound[0]), last])
    with pytest.raises(UseAfterFree, match=told):
        allocator.alloc_decode_rows(table, lengths, np.array([1, 2]), tags)
    assert lengths.tolist() == [0, 1, page_size + 1]
    assert snapshot(allocator) == before
    allocator.alloc_extend([1, page_size + 1], [1, page_size + 1], [int(sound[0]), last])  # rows that stay as they are
    head = allocator.alloc_extend_swa_tail([page_size + 1], [2 * page_size + 1], [last], 1)
    assert head[: page_size - 1].tolist() == list(range(last + 1, last + page_size))
    assert (allocator.window_slots(head) > 0).tolist() == [False] * (page_size - 1) + [True]


@pytest.mark.parametrize("page_size", [2, 4, 8])
def test_a_tail_that_starts_inside_a_page_is_refused(page_size):
    """Two full pages would share a window page: the allocator checks what callers elsewhere had to promise."""
    allocator = SWAAllocator(8 * page_size, 8 * page_size, page_size)
    before = snapshot(allocator)
    for seq, tail in product(range(3 * page_size), repeat=2):
        if tail > seq:
            with pytest.raises(InvalidSize):
                allocator.alloc_extend_swa_tail([0], [seq], [-1], tail)
        elif (seq - tail) % page_size:
            with pytest.raises(MisalignedSegment, match=f"position {seq - tail}"):
                allocator.alloc_extend_swa_tail([0], [seq], [-1], tail)
        else:
            row = allocator.alloc_extend_swa_tail([0], [seq], [-1], tail)
            windows = allocator.window_slots(row)
            assert (windows > 0).tolist() == [position >= seq - tail for position in range(seq)]
            assert (windows[seq - tail :] % page_size).tolist() == [position % page_size for position in range(tail)]
            allocator.free(row)
    allocator.clear()
    assert snapshot(allocator)[-1] == before[-1]


# Ids.


@every_page_size
def test_padding_and_foreign_ids_have_no_window_to_free(page_size):
    """Padding, -1 and ids past the end are refused by name wherever windows are freed or moved, and nothing moves."""
    allocator = SWAAllocator(4 * page_size, 4 * page_size, page_size)
    good = pages_of(allocator, 4)[1]
    before = snapshot(allocator)
    for bad in (0, page_size - 1, -1, 5 * page_size, 2**62, -(2**63), 2**63 - 1):
        with pytest.raises(ForeignPage, match=rf"page {bad // page_size} "):
            allocator.free_swa(torch.cat([good, torch.tensor([bad])]))
        with pytest.raises(ForeignPage, match=rf"page {bad // page_size} "):
            allocator.free_window_pages(np.array([good[0] // page_size, bad // page_size]))
        first = bad // page_size * page_size
        with pytest.raises(ForeignPage, match=rf"page {bad // page_size} "):
            allocator.free_swa_segments([(good, 0), ([first], page_size)])
        for pair in ([good[0], first], [first, good[0]]):
            with pytest.raises(ForeignPage, match=rf"page {bad // page_size} "):
                allocator.move_window(*np.array(pair).reshape(2, 1))
    for bad in (-2, 5 * page_size, 2**63 - 1, -(2**63)):
        with pytest.raises(ForeignPage, match=f"slot {bad} "):
            allocator.window_slots([int(good[0]), bad])
    assert snapshot(allocator) == before
    assert allocator.window_slots([-1, 0, page_size - 1]).tolist() == [-1, 0, 0]


def test_window_slots_beyond_32_bits():
    """With 5,000 pages of 2^20 tokens on each side, the window pages of slots past 2^32 are where they should be."""
    page_size, num_pages = 2**20, 5000
    allocator = SWAAllocator(page_size * num_pages, page_size * num_pages, page_size, order="fifo")
    head = allocator.alloc_extend([0] * 3, [1] * 3, [-1] * 3)
    allocator.free(head)
    slots = allocator.alloc_extend([0] * num_pages, [1] * num_pages, [-1] * num_pages)
    assert allocator.window_slots(slots + 5).tolist() == (slots + 5).tolist()
    allocator.free_swa(slots[:-1])
    assert allocator.window_slots(slots[-2:]).tolist() == [0, int(slots[-1])]
    assert allocator.swa_available_size() == 4999 * page_size


# Moving windows.


@every_page_size
def test_a_window_moves_to_live_pages_without_one_only(page_size):
    """From a page with a window to a live one without; each other case is refused by its own name, and none moves."""
    allocator = SWAAllocator(8 * page_size, 8 * page_size, page_size)
    pages = pages_of(allocator, 6)
    giver, taker, other, bare, freed, _ = pages
    allocator.free_swa(torch.cat([taker, bare]))
    allocator.free(freed)
    before = snapshot(allocator)

    def refused(error, src, dst):
        with pytest.raises(error):
            allocator.move_window(torch.cat([giver, src]), torch.cat([taker, dst]))
        assert snapshot(allocator) == before

    refused(UseAfterFree, bare, bare)
    refused(UseAfterFree, freed, bare)
    refused(UseAfterFree, other, freed)
    refused(WindowTaken, other, pages[5])
    refused(WindowTaken, other, other)
    refused(MisalignedSegment, giver, bare)
    refused(MisalignedSegment, other, taker)
    refused(MisalignedSegment, taker, bare)
    refused(InvalidSize, other[:0], bare)
    if page_size > 1:
        refused(MisalignedSegment, other, bare.flip(0))
    held = windows_of(allocator, torch.stack([giver, other]))
    allocator.move_window(torch.cat([giver, other, giver]), torch.cat([taker, bare, taker]))
    assert windows_of(allocator, torch.stack([taker, bare, giver, other])) == [*held, 0, 0]
    allocator.free(torch.cat([giver, other]))
    assert windows_of(allocator, torch.stack([taker, bare])) == held
    allocator.audit()


# Freeing twice.


@grouped_or_not
@every_page_size
def test_a_page_freed_twice_is_refused_whatever_its_window(page_size, grouped):
    """Both sides, then the full side again: a double free, in a group as well; of the window side it is nothing."""
    allocator = SWAAllocator(8 * page_size, 8 * page_size, page_size)
    pages = pages_of(allocator, 4)
    allocator.free_swa(pages[1])
    if grouped:
        allocator.free_group_begin()
    allocator.free(pages[:2])
    before = snapshot(allocator)
    for free in FREES.values():
        with pytest.raises(DoubleFree):
            free(allocator, pages[:2].reshape(-1))
    for page in pages[:2]:
        with pytest.raises(DoubleFree):
            allocator.free_segments([(pages[2], 0), (page, page_size)])
        allocator.free_swa(page)
        allocator.free_swa_segment(page, start_pos=0)
    assert snapshot(allocator) == before
