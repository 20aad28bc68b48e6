"""Faults that users of other allocators met with windows, as scenarios, at every page size."""

from itertools import product

import pytest
from allocator_pair import snapshot
from window_scenes import FREES, books, every_order, every_page_size, grouped_or_not, pages_of, sizes, windows_of

from kvstead.allocators import SWAAllocator
from kvstead.kernels.host import FREE, LIVE

# Frees inside a group mean what they meant when they were called.


@every_order
@every_page_size
def test_a_window_freed_in_a_group_is_the_one_that_it_was_at_the_call(page_size, order):
    """A page whose window is freed, and which gets another one before the group ends, keeps that; the first is free."""
    allocator = SWAAllocator(16 * page_size, 16 * page_size, page_size, order=order)
    first = pages_of(allocator, 1)
    (old,) = windows_of(allocator, first)
    with allocator.defer_frees():
        given = first[0].clone()
        allocator.free_swa(given)
        given.fill_(page_size)
        second = pages_of(allocator, 1)
        (new,) = windows_of(allocator, second)
        assert new != old
        allocator.move_window(second[0], first[0])
        given = second[0].clone()
        allocator.free_full(given)
        given.copy_(first[0])
        assert allocator.parked_size() == allocator.swa_parked_size() == page_size
    assert windows_of(allocator, first) == [new]
    assert sizes(allocator) == (15, 15)
    assert allocator.window_page_states()[[old, new]].tolist() == [FREE, LIVE]
    allocator.audit()


@every_page_size
@pytest.mark.parametrize("into", ["the same pages", "each other's"])
def test_remapping_in_a_group_redirects_no_earlier_free(page_size, into):
    """Pages whose windows are freed get others inside the group: at its end those come back that were freed."""
    allocator = SWAAllocator(8 * page_size, 8 * page_size, page_size)
    held, lent = pages_of(allocator, 2), pages_of(allocator, 2)
    gone, kept = windows_of(allocator, held), windows_of(allocator, lent)
    with allocator.defer_frees():
        allocator.free_swa_segment(held.reshape(-1), start_pos=0)
        target = held if into == "the same pages" else held.flip(0)
        allocator.move_window(lent.reshape(-1), target.reshape(-1))
        allocator.free_segment(lent.reshape(-1), start_pos=0)
        assert windows_of(allocator, target) == kept
        assert sizes(allocator) == (4, 4)
    assert windows_of(allocator, target) == kept
    assert sizes(allocator) == (6, 6)
    assert allocator.window_page_states()[gone].tolist() == [FREE, FREE]
    allocator.free(held)
    assert sizes(allocator) == (8, 8)
    allocator.audit()


# Parts of pages.


@grouped_or_not
@every_order
@every_page_size
def test_a_page_freed_in_two_parts_gives_its_window_back_once(page_size, order, grouped):
    """However a page's slots are split over two frees of the window, one window page comes back and no entry stays."""
    for cut in range(1, page_size + 1):
        allocator = SWAAllocator(4 * page_size, 4 * page_size, page_size, order=order)
        page = pages_of(allocator, 2)[0]
        if grouped:
            allocator.free_group_begin()
        allocator.free_swa(page[:cut])
        before = snapshot(allocator)
        assert allocator.window_slots(page).tolist() == [0] * page_size
        allocator.free_swa(page[cut:])
        allocator.free_swa(page)
        allocator.free_window_pages(page.numpy() // page_size)
        assert snapshot(allocator) == before
        allocator.free_group_end()
        assert sizes(allocator) == (2, 3)
        assert sorted(allocator.pools["window"].contents().tolist()) == sorted(
            {1, 2, 3, 4} - set(allocator.window_pages[1:-1])
        )
        allocator.audit()


# Pages of which some have lost their windows.


@grouped_or_not
@every_page_size
def test_no_way_of_freeing_lets_padding_in_for_pages_without_a_window(page_size, grouped):
    """Whichever of four pages have lost their windows, every free gives back the same: pages, windows, no more."""
    for mask in product([False, True], repeat=4):
        outcomes = []
        for free in FREES.values():
            allocator = SWAAllocator(8 * page_size, 6 * page_size, page_size)
            kept = pages_of(allocator, 2)
            node = pages_of(allocator, 4)
            allocator.free_swa(node[list(mask)])
            assert sizes(allocator) == (2, sum(mask))
            if grouped:
                allocator.free_group_begin()
            free(allocator, node.reshape(-1))
            allocator.free_group_end()
            assert sizes(allocator) == (6, 4)
            assert 0 not in allocator.pools["window"].contents()
            assert 0 not in windows_of(allocator, kept)
            allocator.audit()
            outcomes.append(books(allocator))
        assert outcomes == outcomes[:1] * len(FREES)


# Pages that were somebody else's.


@grouped_or_not
@every_order
@every_page_size
@pytest.mark.parametrize("way", [*FREES, "clear"])
def test_recycled_pages_keep_no_window_of_their_last_owner(page_size, order, way, grouped):
    """A row freed in any way leaves no entry: a next one with windows at its end alone has them there alone."""
    allocator = SWAAllocator(12 * page_size, 12 * page_size, page_size, order=order)
    row = allocator.alloc(12 * page_size)
    if grouped:
        allocator.free_group_begin()
    if way == "clear":
        allocator.clear()
    else:
        FREES[way](allocator, row)
    allocator.free_group_end()
    assert not allocator.window_pages[:-1].any()
    row = allocator.alloc_extend_swa_tail([0], [6 * page_size], [-1], 2 * page_size)
    windows = allocator.window_slots(row).reshape(6, page_size)
    assert not windows[:4].any()
    assert windows[4:].all()
    assert sizes(allocator) == (6, 10)
    allocator.free(row)
    assert sizes(allocator) == (12, 12)
    allocator.audit()


# Resuming near capacity.


@every_order
@pytest.mark.parametrize("page_size", [2, 4, 8])
def test_two_retracted_requests_resume_where_both_just_fit(page_size, order):
    """Three pages each, two of them with windows: six and four pages take both, one window page less only one."""
    seq, tail = 2 * page_size + 1, page_size + 1
    for num_windows, expected in ((4, 2), (3, 1), (2, 1), (1, 0)):
        allocator = SWAAllocator(6 * page_size, num_windows * page_size, page_size, order=order)
        resumed = []
        for _ in range(2):
            before = snapshot(allocator)
            row = allocator.alloc_extend_swa_tail([0], [seq], [-1], tail)
            if row is None:
                assert snapshot(allocator) == before
            else:
                resumed.append(row)
            assert sizes(allocator) == (6 - 3 * len(resumed), num_windows - 2 * len(resumed))
        assert len(resumed) == expected
        for row in resumed:
            allocator.free_segment(row, start_pos=0)
        assert sizes(allocator) == (6, num_windows)
        allocator.audit()
