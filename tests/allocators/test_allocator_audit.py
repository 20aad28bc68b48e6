"""An audit finds every kind of damage to the books, wherever it is done."""

import numpy as np
import pytest
from allocator_pair import ORDERS, PAGE_SIZES

from kvstead.allocators import PagedAllocator
from kvstead.errors import AuditError, DoubleFree


def flip_state(allocator):
    allocator.page_states()[4] = 2


def give_away_padding(allocator):
    allocator.page_states()[0] = 0


def drift_count(allocator):
    allocator._free_list.table.num_free -= 1


def free_behind_the_list(allocator):
    table = allocator._free_list.table
    table.state[1] = 0
    table.num_free += 1
    table.num_live -= 1


def list_twice(allocator):
    queue = allocator._free_list._queue
    if allocator._free_list.order == "lowest":
        queue._words[0] |= np.uint64(1 << 2)
    else:
        queue._ring[queue._head] = queue._ring[(queue._head + 1) % queue._ring.size]


def forget_group(allocator):
    allocator.free_group = None


@pytest.mark.parametrize(
    "damage", [flip_state, give_away_padding, drift_count, free_behind_the_list, list_twice, forget_group]
)
@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("page_size", PAGE_SIZES)
def test_damaged_books_do_not_pass_an_audit(page_size, order, damage):
    """Pages live, freed and parked pass an audit; one state, count, list entry or group changed by hand does not."""
    allocator = PagedAllocator(8 * page_size, page_size, order=order)
    pages = allocator.alloc(8 * page_size).reshape(8, page_size)
    allocator.free(pages[4:])
    allocator.free_group_begin()
    allocator.free(pages[2])
    allocator.audit()
    damage(allocator)
    with pytest.raises(AuditError):
        allocator.audit()


def test_a_stale_summary_of_the_bitmap_does_not_pass_an_audit():
    """In a pool of several bitmap levels, a summary bit that says the wrong thing is found."""
    allocator = PagedAllocator(64 * 80, 1, order="lowest")
    allocator.alloc(64 * 70)
    allocator.audit()
    queue = allocator._free_list._queue
    queue._words[queue._starts[1]] |= np.uint64(1)
    with pytest.raises(AuditError, match="summary level"):
        allocator.audit()


@pytest.mark.parametrize("page_size", PAGE_SIZES)
def test_refused_frees_use_up_no_memory(page_size):
    """However often a free is refused inside a group, what is kept for parked pages stays as small as they are."""
    allocator = PagedAllocator(8 * page_size, page_size)
    slots = allocator.alloc(8 * page_size)
    with allocator.defer_frees():
        allocator.free(slots[:page_size])
        for _ in range(100):
            with pytest.raises(DoubleFree):
                allocator.free(slots)
            with pytest.raises(DoubleFree):
                allocator.free_segment(slots, start_pos=0)
        allocator.free(slots[page_size:])
        assert allocator._free_list._lot.size <= 64
    assert sorted(allocator._free_list.contents().tolist()) == list(range(1, 9))
