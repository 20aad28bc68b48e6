"""An audit finds damage on either side and in what joins them."""

import pytest
from allocator_pair import ORDERS, PAGE_SIZES

from kvstead.allocators import SWAAllocator
from kvstead.errors import AuditError


def forget_a_peer(allocator):
    allocator.window_pages[1] = 0


def share_a_peer(allocator):
    allocator.window_pages[3] = allocator.window_pages[1]


def swap_in_a_free_peer(allocator):
    allocator.window_pages[1] = 6


def map_a_page_that_is_not_live(allocator):
    allocator.window_pages[[1, 5]] = allocator.window_pages[[5, 1]]


def map_padding(allocator):
    allocator.window_pages[[0, 1]] = allocator.window_pages[[1, 0]]


def lose_the_last_entry(allocator):
    allocator.window_pages[-1] = 0


def flip_a_window_state(allocator):
    allocator.window_page_states()[1] = 2


def drift_a_window_count(allocator):
    allocator.pools["window"].table.num_free -= 1


def forget_the_windows_of_a_group(allocator):
    allocator.free_group = [
        release for release in allocator.free_group if release.pool is not allocator.pools["window"]
    ]


def take_a_window_release_for_a_full_one(allocator):
    allocator.free_group = [release._replace(pool=allocator._pool) for release in allocator.free_group]


@pytest.mark.parametrize(
    "damage",
    [
        forget_a_peer,
        share_a_peer,
        swap_in_a_free_peer,
        map_a_page_that_is_not_live,
        map_padding,
        lose_the_last_entry,
        flip_a_window_state,
        drift_a_window_count,
        forget_the_windows_of_a_group,
        take_a_window_release_for_a_full_one,
    ],
)
@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("page_size", PAGE_SIZES)
def test_damaged_sides_do_not_pass_an_audit(page_size, order, damage):
    """Pages with and without windows, free and parked pass an audit; one change by hand on either side does not."""
    allocator = SWAAllocator(8 * page_size, 6 * page_size, page_size, order=order)
    pages = allocator.alloc(5 * page_size).reshape(5, page_size)
    allocator.free_swa(pages[2])
    allocator.free(pages[4])
    allocator.free_group_begin()
    allocator.free(pages[3])
    allocator.free_swa(pages[1])
    allocator.audit()
    damage(allocator)
    with pytest.raises(AuditError, match=r"\. "):
        allocator.audit()
