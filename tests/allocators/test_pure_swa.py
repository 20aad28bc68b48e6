"""One pool that is its own window."""

from itertools import product

import pytest
import torch
from allocator_pair import snapshot
from window_scenes import every_page_size, pages_of, sizes

from kvstead.allocators import PureSWAAllocator
from kvstead.errors import DoubleFree, ForeignPage


@every_page_size
def test_a_row_whose_window_was_freed_is_refused_as_a_whole_by_a_pool_of_windows(page_size):
    """There is one side: `free_swa` is `free`, the second of the two is a double free, and `free_full` is nothing."""
    calls = [PureSWAAllocator.free, PureSWAAllocator.free_swa]
    for first, second in product(calls, repeat=2):
        allocator = PureSWAAllocator(8 * page_size, page_size)
        pages = pages_of(allocator, 4)
        first(allocator, pages[0])
        assert sizes(allocator) == (5, 5)
        before = snapshot(allocator)
        with pytest.raises(DoubleFree):
            second(allocator, pages[:2])
        allocator.free_full(pages)
        allocator.free_full_segment(pages.reshape(-1), start_pos=0)
        allocator.free_full_segments([(pages[0], 0), (pages[1], page_size)])
        assert snapshot(allocator) == before
        allocator.free_swa_segment(pages[1:3].reshape(-1), start_pos=page_size)
        allocator.free_swa_segments([(pages[3], 0)])
        assert sizes(allocator) == (8, 8)
        allocator.audit()


@every_page_size
def test_slots_of_a_pool_of_windows_are_their_own_window_slots(page_size):
    """Identity on the pool, on padding and on -1, in any shape and as a new tensor; ids outside are refused."""
    allocator = PureSWAAllocator(4 * page_size, page_size)
    everything = torch.arange(-1, 5 * page_size).reshape(1, -1, 1)
    found = allocator.window_slots(everything)
    assert torch.equal(found, everything)
    assert found.dtype == torch.int64
    assert found.data_ptr() != everything.data_ptr()
    for bad in (-2, 5 * page_size, 2**63 - 1, -(2**63)):
        with pytest.raises(ForeignPage, match=f"slot {bad} "):
            allocator.window_slots([page_size, bad])
