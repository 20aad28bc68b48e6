"""Groups and `clear` of allocators with a window side, and of those that are nothing else."""

import pytest
from allocator_pair import snapshot
from window_scenes import every_class, every_page_size, pages_of, sizes

from kvstead.allocators import SWAAllocator
from kvstead.errors import FreeGroupError


@every_class
@every_page_size
def test_a_second_end_frees_no_window_again(make, page_size):
    """Ending a group twice, or one that was never begun, gives back once what was parked on both sides."""
    allocator = make(8 * page_size, page_size)
    pages = pages_of(allocator, 4)
    allocator.free_group_end()
    allocator.free_group_begin()
    allocator.free_swa(pages[0])
    allocator.free(pages[1])
    allocator.free_segment(pages[2], start_pos=0)
    assert sizes(allocator) == (4, 4)
    allocator.free_group_end()
    after = snapshot(allocator)
    assert allocator.swa_available_size() == 7 * page_size
    allocator.free_group_end()
    assert snapshot(allocator) == after
    allocator.audit()


@every_class
@every_page_size
def test_a_nested_begin_loses_no_parked_window(make, page_size):
    """A second begin is an error that leaves both sides' parked pages where they are."""
    allocator = make(8 * page_size, page_size)
    pages = pages_of(allocator, 4)
    allocator.free_group_begin()
    allocator.free_swa(pages[0])
    before = snapshot(allocator)
    with pytest.raises(FreeGroupError, match="1 releases"):
        allocator.free_group_begin()
    assert snapshot(allocator) == before
    allocator.free(pages[1])
    allocator.free_group_end()
    assert allocator.swa_available_size() == 6 * page_size
    allocator.audit()


@every_class
@every_page_size
def test_an_exception_in_a_group_gives_both_sides_back(make, page_size):
    """What was freed before the exception is free once, and the next free takes effect at once."""
    allocator = make(8 * page_size, page_size)
    pages = pages_of(allocator, 4)

    def fail():
        with allocator.defer_frees():
            allocator.free_swa(pages[0])
            allocator.free(pages[1])
            message = "in the middle of a step"
            raise RuntimeError(message)

    with pytest.raises(RuntimeError, match="in the middle"):
        fail()
    assert allocator.swa_available_size() == 6 * page_size
    allocator.free(pages[2])
    assert allocator.swa_available_size() == 7 * page_size


@every_class
@every_page_size
def test_clear_drops_what_both_sides_have_parked(make, page_size):
    """After clear all is free once, nothing is mapped, and the end that follows adds nothing."""
    allocator = make(8 * page_size, page_size)
    pages = pages_of(allocator, 4)
    with allocator.defer_frees():
        allocator.free_swa(pages[0])
        allocator.free(pages[1])
        allocator.clear()
        assert sizes(allocator) == (8, 8)
    assert sizes(allocator) == (8, 8)
    assert allocator.parked_size() == 0
    allocator.audit()


@every_page_size
def test_clear_keeps_the_mapping_in_its_place(page_size):
    """Whoever was given the mapping once sees it zeroed, and -1 still leads to -1."""
    allocator = SWAAllocator(8 * page_size, 4 * page_size, page_size)
    mapping = allocator.window_pages
    address = mapping.ctypes.data
    allocator.alloc(4 * page_size)
    assert mapping.any()
    allocator.clear()
    assert allocator.window_pages is mapping
    assert mapping.ctypes.data == address
    assert mapping.tolist() == [0] * 9 + [-1]
    assert allocator.window_slots([-1]).tolist() == [-1]
