"""What the scenarios of windows have in common."""

import pytest
from allocator_pair import ORDERS

from kvstead.allocators import PureSWAAllocator, SWAAllocator

every_page_size = pytest.mark.parametrize("page_size", [1, 2, 4, 8])
every_order = pytest.mark.parametrize("order", ORDERS)
every_class = pytest.mark.parametrize(
    "make", [lambda size, page_size: SWAAllocator(size, size, page_size), PureSWAAllocator], ids=["swa", "pure_swa"]
)
grouped_or_not = pytest.mark.parametrize("grouped", [False, True], ids=["at once", "in a group"])


FREES = {
    "free": lambda allocator, row: allocator.free(row),
    "free_full": lambda allocator, row: allocator.free_full(row.flip(0)),
    "free_segment": lambda allocator, row: allocator.free_segment(row, start_pos=0),
    "free_full_segment": lambda allocator, row: allocator.free_full_segment(row, start_pos=0),
    "free_segments": lambda allocator, row: allocator.free_segments([(row, 0)]),
    "free_full_segments": lambda allocator, row: allocator.free_full_segments(
        [(row[: allocator.page_size], 0), (row[allocator.page_size :], allocator.page_size)]
    ),
    "both sides apart": lambda allocator, row: (allocator.free_swa(row), allocator.free_full(row)),
    "stretches apart": lambda allocator, row: (
        allocator.free_swa_segments([(row, 0)]),
        allocator.free_full_segment(row, start_pos=0),
    ),
}


def pages_of(allocator, num_pages):
    """Some new pages, as one row of slots each."""
    return allocator.alloc(num_pages * allocator.page_size).reshape(num_pages, allocator.page_size)


def windows_of(allocator, pages):
    """The window pages of some rows of slots, 0 for none."""
    return allocator.window_pages[pages[:, 0].numpy() // allocator.page_size].tolist()


def sizes(allocator):
    """What is free, in pages: on the full side and on the window side."""
    return (
        allocator.full_available_size() // allocator.page_size,
        allocator.swa_available_size() // allocator.page_size,
    )


def books(allocator):
    """What is where, whatever the order of the free lists."""
    return (
        allocator.page_states().tolist(),
        allocator.window_page_states().tolist(),
        allocator.window_pages.tolist(),
        sizes(allocator),
    )
