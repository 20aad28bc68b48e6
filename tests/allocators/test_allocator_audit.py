"""An audit finds every kind of damage to states, counts, lists and links."""

import numpy as np
import pytest
from allocator_pair import ORDERS, PAGE_SIZES

from kvstead.allocators import PagedAllocator
from kvstead.errors import AuditError


def flip_state(allocator):
    allocator.page_states()[4] = 2


def give_away_padding(allocator):
    allocator.page_states()[0] = 0


def drift_count(allocator):
    allocator._pool.table.num_free -= 1


def free_behind_the_list(allocator):
    table = allocator._pool.table
    table.state[1] = 0
    table.num_free += 1
    table.num_live -= 1


def list_twice(allocator):
    pool = allocator._pool
    if pool.order == "lowest":
        pool._bitmap._words[0] |= np.uint64(1 << 2)
    else:
        pool._ring[pool._head] = pool._ring[(pool._head + 1) % pool._ring.size]


def forget_group(allocator):
    allocator.free_group = None


@pytest.mark.parametrize(
    "damage", [flip_state, give_away_padding, drift_count, free_behind_the_list, list_twice, forget_group]
)
@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("page_size", PAGE_SIZES)
def test_damaged_states_counts_and_lists_do_not_pass_an_audit(page_size, order, damage):
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
    bitmap = allocator._pool._bitmap
    bitmap._words[bitmap._starts[1]] |= np.uint64(1)
    with pytest.raises(AuditError, match="summary level"):
        allocator.audit()
