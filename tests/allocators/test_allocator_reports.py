"""Faults that users of other allocators met, as scenarios, at every page size."""

import numpy as np
import pytest
import torch
from allocator_pair import ORDERS, PAGE_SIZES, snapshot
from hypothesis import given
from hypothesis import strategies as st

from kvstead.allocators import PagedAllocator, TokenAllocator
from kvstead.errors import DoubleFree, ForeignPage, FreeGroupError, UseAfterFree

every_page_size = pytest.mark.parametrize("page_size", PAGE_SIZES)
every_order = pytest.mark.parametrize("order", ORDERS)


def pages_of(allocator, num_pages):
    """Some new pages, as one row of slots each."""
    return allocator.alloc(num_pages * allocator.page_size).reshape(num_pages, allocator.page_size)


# Ending a group.


@every_order
@every_page_size
def test_a_second_end_frees_nothing_again(page_size, order):
    """Ending a group twice gives its pages back once."""
    allocator = PagedAllocator(8 * page_size, page_size, order=order)
    pages = pages_of(allocator, 4)
    allocator.free_group_begin()
    allocator.free(pages[:2])
    allocator.free_group_end()
    assert allocator.available_size() == 6 * page_size
    before = snapshot(allocator)
    allocator.free_group_end()
    assert snapshot(allocator) == before
    allocator.audit()


@every_order
@every_page_size
def test_a_nested_begin_loses_no_parked_page(page_size, order):
    """A second begin is an error that leaves the group as it was; its frees and later ones come back at the end."""
    allocator = PagedAllocator(8 * page_size, page_size, order=order)
    pages = pages_of(allocator, 4)
    allocator.free_group_begin()
    allocator.free(pages[0])
    with pytest.raises(FreeGroupError, match="1 releases"):
        allocator.free_group_begin()
    assert allocator.parked_size() == page_size
    allocator.free(pages[1])
    allocator.free_group_end()
    allocator.free_group_end()
    assert allocator.available_size() == 6 * page_size
    allocator.audit()


@every_page_size
def test_an_exception_inside_a_group_closes_it(page_size):
    """What was freed before the exception is free once, and the next free takes effect at once."""
    allocator = PagedAllocator(8 * page_size, page_size)
    pages = pages_of(allocator, 4)

    def fail():
        with allocator.defer_frees():
            allocator.free(pages[0])
            message = "in the middle of a step"
            raise RuntimeError(message)

    with pytest.raises(RuntimeError, match="in the middle"):
        fail()
    assert allocator.free_group is None
    assert allocator.available_size() == 5 * page_size
    allocator.free(pages[1])
    assert allocator.available_size() == 6 * page_size


@every_page_size
def test_a_refused_free_inside_a_group_keeps_what_was_parked(page_size):
    """A double free is seen at the call, not at the end, and the group still gives back what it holds."""
    allocator = PagedAllocator(8 * page_size, page_size)
    pages = pages_of(allocator, 4)
    with allocator.defer_frees():
        allocator.free(pages[0])
        with pytest.raises(DoubleFree):
            allocator.free_segment(pages[:2].reshape(-1), start_pos=0)
        assert allocator.parked_size() == page_size
    assert allocator.page_states().tolist() == [3, 0, 1, 1, 1, 0, 0, 0, 0]


@every_page_size
def test_an_empty_group_changes_nothing(page_size):
    """Begin and end with nothing between change nothing."""
    allocator = PagedAllocator(8 * page_size, page_size)
    allocator.alloc(4 * page_size)
    before = snapshot(allocator)
    with allocator.defer_frees():
        allocator.free(torch.empty(0, dtype=torch.int64))
    assert snapshot(allocator) == before


@every_page_size
def test_clear_drops_an_open_group(page_size):
    """After clear all is free once, and the end that follows adds nothing."""
    allocator = PagedAllocator(8 * page_size, page_size)
    pages = pages_of(allocator, 4)
    with allocator.defer_frees():
        allocator.free(pages[0])
        allocator.clear()
        assert allocator.available_size() == allocator.size
    assert (allocator.available_size(), allocator.parked_size()) == (allocator.size, 0)
    allocator.audit()


def test_a_double_free_is_one_grouped_or_not():
    """Freeing a page and then a slot of it again fails both inside a group and outside, with the page and its owner."""
    for grouped in (False, True):
        allocator = PagedAllocator(32, 4)
        allocator.alloc(8, owner=41)
        if grouped:
            allocator.free_group_begin()
        allocator.free([4])
        with pytest.raises(DoubleFree, match=r"page 1 \(last owner 41\)"):
            allocator.free([8, 7])
        allocator.free_group_end()
        assert allocator.available_size() == 28


# A short pool.


@every_order
@pytest.mark.parametrize("page_size", [size for size in PAGE_SIZES if size > 2])
def test_a_short_pool_is_noticed_before_any_index_is_computed(page_size, order):
    """Eight pages, two of them free: three needed is None with the list as it was, two fit, none needed always fits."""
    allocator = PagedAllocator(8 * page_size, page_size, order=order)
    pages = pages_of(allocator, 6)
    before = snapshot(allocator)
    assert allocator.alloc_extend([0, 0], [2 * page_size, page_size], [-1, -1]) is None
    lasts = [int(pages[row, -1]) for row in (1, 3, 5)]
    lengths = [2 * page_size, 2 * page_size, 3 * page_size]
    assert allocator.alloc_decode([length + 1 for length in lengths], lasts) is None
    assert allocator.alloc(3 * page_size) is None
    assert snapshot(allocator) == before
    assert allocator.alloc_extend([0, 0], [page_size, page_size], [-1, -1]).numel() == 2 * page_size
    assert allocator.available_size() == 0
    last = int(pages[5, 0])
    assert allocator.alloc_extend([page_size + 1], [page_size + 3], [last]).tolist() == [last + 1, last + 2]


@every_page_size
def test_parked_pages_count_for_nothing_until_the_group_ends(page_size):
    """A page free and a page parked are one page to take; after the end they are two."""
    allocator = PagedAllocator(4 * page_size, page_size)
    pages = pages_of(allocator, 3)
    with allocator.defer_frees():
        allocator.free(pages[0])
        assert allocator.available_size() == page_size
        assert allocator.alloc(2 * page_size) is None
    assert allocator.available_size() == 2 * page_size
    assert allocator.alloc(2 * page_size) is not None


# Extending inside a page.


@every_order
def test_an_extension_inside_one_page_or_shorter_than_one_is_right(order):
    """A row that stays in its old page, one shorter than a page and one of three parts: 11 slots, exactly these."""
    allocator = PagedAllocator(12 * 4, 4, order=order)
    pages = pages_of(allocator, 12)
    allocator.free(pages[9:12])
    slots = allocator.alloc_extend([5, 0, 3], [7, 3, 9], [8, -1, 22])
    assert slots.tolist() == [9, 10, 40, 41, 42, 23, 44, 45, 46, 47, 48]


@every_page_size
def test_every_short_extension_is_right(page_size):
    """Each prefix and length up to two pages: slots follow the row, and lie where their positions say."""
    for prefix in range(2 * page_size + 1):
        for seq in range(prefix, 2 * page_size + 2):
            allocator = PagedAllocator(4 * page_size, page_size)
            row = allocator.alloc_extend([0], [prefix], [-1]).tolist()
            row += allocator.alloc_extend([prefix], [seq], row[-1:] or [-1]).tolist()
            assert row == list(range(page_size, page_size + seq))


# Slots reserved ahead.


@pytest.mark.parametrize(("committed", "returned"), [(101, 1), (126, 2)])
def test_reserved_slots_that_were_not_used_come_back(committed, returned):
    """Twenty slots reserved ahead are recorded; at the end all pages behind the cached ones come back."""
    allocator = PagedAllocator(16 * 64, 64)
    row = allocator.alloc_extend([0], [100 if committed == 101 else 126], [-1])
    row = torch.cat([row, allocator.alloc_extend([row.numel()], [row.numel() + 20], [row[-1]])])
    cached = committed // 64 * 64
    assert allocator.available_size() == (16 - 1 - returned) * 64
    allocator.free_segment(row[cached:], start_pos=cached)
    assert allocator.available_size() == 15 * 64
    assert sorted(set((row[:cached] // 64).tolist())) == np.flatnonzero(allocator.page_states() == 1).tolist()


@every_page_size
@given(st.data())
def test_reserving_ahead_loses_no_page_over_many_requests(page_size, data):
    """Reserve up to k, accept some, finish: each time everything is back, and no reserved page is taken twice."""
    allocator = PagedAllocator(20 * page_size, page_size)
    for _ in range(10):
        row, committed = [], 0
        for reserve, accepted in data.draw(st.lists(st.tuples(st.integers(1, 6), st.integers(0, 6)), max_size=3)):
            more = max(0, committed + reserve - len(row))
            row += allocator.alloc_extend([len(row)], [len(row) + more], row[-1:] or [-1]).tolist()
            committed += min(reserve, accepted)
            num_pages = -(-len(row) // page_size)
            assert allocator.available_size() == (20 - num_pages) * page_size
            assert len(set(row)) == len(row)
        kept = committed // page_size * page_size
        allocator.free_segment(row[kept:], start_pos=kept)
        assert allocator.available_size() == 20 * page_size - kept
        allocator.free_segment(row[:kept], start_pos=0)
        assert allocator.available_size() == allocator.size
        allocator.audit()


# Ids.


@every_order
def test_slots_beyond_32_bits_come_and_go(order):
    """Pages of 2^20 tokens, 5,000 of them: slots past 2^32 are handed out, grown behind and freed as what they are."""
    page_size, num_pages = 2**20, 5000
    allocator = PagedAllocator(page_size * num_pages, page_size, order=order)
    assert allocator.available_size() == 5_242_880_000
    ones = [1] * num_pages
    slots = allocator.alloc_extend([0] * num_pages, ones, [-1] * num_pages, list(range(num_pages)))
    assert slots.tolist() == [page * 2**20 for page in range(1, num_pages + 1)]
    assert allocator.alloc_decode([2] * num_pages, slots).tolist() == [page * 2**20 + 1 for page in range(1, 5001)]
    allocator.free(slots[3728:])
    assert allocator.available_size() == (num_pages - 3728) * page_size
    assert np.flatnonzero(allocator.page_states() == 0).tolist() == list(range(3729, 5001))


@every_page_size
@pytest.mark.parametrize("count", [1, 2, 3])
def test_ids_at_the_ends_of_64_bits_are_foreign(page_size, count):
    """No arithmetic on absurd slots wraps around into the pool."""
    allocator = PagedAllocator(8 * page_size, page_size)
    table = allocator._pool.table
    table.state = np.concatenate([table.state, [1] * 8]).astype(np.uint8)[:9]  # what lies behind the states looks live
    allocator.alloc(8 * page_size)
    before = snapshot(allocator)
    for first in (2**63 - count, -(2**63), 2**62, 2**32, 2**31, (10 - count) * page_size):
        slots = np.arange(count, dtype=np.int64) * (page_size if first < 2**20 else 1) + first
        with pytest.raises(ForeignPage):
            allocator.free(slots)
    assert snapshot(allocator) == before


@every_page_size
def test_lengths_at_the_end_of_64_bits_find_no_room(page_size):
    """However many rows of absurd length, their sum does not wrap around into something small."""
    allocator = PagedAllocator(8 * page_size, page_size)
    before = snapshot(allocator)
    for num_rows in (1, 2, 3, 4, 8):
        for seq in (2**63 - 1, 2**62, 2**61, 2**32):
            assert allocator.alloc_extend([0] * num_rows, [seq] * num_rows, [-1] * num_rows) is None
    assert snapshot(allocator) == before


@every_order
@pytest.mark.parametrize("cls", [TokenAllocator, lambda size, order: PagedAllocator(size, 1, order=order)])
def test_the_null_block_and_repeated_ids_are_named(cls, order):
    """A list with padding in it is refused for the padding, one with an id twice for that id; nothing moves."""
    allocator = cls(16, order=order)
    allocator.alloc(16)
    before = snapshot(allocator)
    with pytest.raises(ForeignPage, match="page 0 is the padding page"):
        allocator.free([0, 0, 7, 8, 8])
    with pytest.raises(DoubleFree, match=r"page 8 .* named twice"):
        allocator.free([7, 8, 8])
    assert snapshot(allocator) == before
    allocator.free([7, 8])
    with pytest.raises(DoubleFree, match=r"page 7 .* is already free"):
        allocator.free([6, 7])
    assert np.flatnonzero(allocator.page_states() == 0).tolist() == [7, 8]


@pytest.mark.parametrize("page_size", [size for size in PAGE_SIZES if size > 1])
def test_slots_of_one_page_are_one_page(page_size):
    """In larger pages, repeated and neighbouring slots stand for their page once, in any order; padding is refused."""
    allocator = PagedAllocator(8 * page_size, page_size)
    allocator.alloc(8 * page_size)
    before = snapshot(allocator)
    seven, eight = 7 * page_size, 8 * page_size
    for padding in range(page_size):
        with pytest.raises(ForeignPage, match="page 0 is the padding page"):
            allocator.free([seven, eight, padding])
    assert snapshot(allocator) == before
    allocator.free([eight, seven, eight + 1, seven, eight])
    assert allocator._pool.contents().tolist() == [8, 7]


@every_page_size
def test_a_decode_goes_on_to_the_next_slot_each_time(page_size):
    """A row that decodes token by token gets a new slot every time, at page size 1 as well."""
    allocator = PagedAllocator(4 * page_size, page_size)
    row = []
    for length in range(1, 4 * page_size + 1):
        row += allocator.alloc_decode([length], row[-1:] or [-1]).tolist()
    assert row == list(range(page_size, 5 * page_size))
    assert allocator.alloc_decode([len(row) + 1], row[-1:]) is None


@pytest.mark.parametrize("page_size", [size for size in PAGE_SIZES if size > 1])
def test_a_row_does_not_grow_in_a_page_that_is_gone(page_size):
    """Growing behind a freed or parked page, into padding, or two rows into one page is refused, and nothing moves."""
    allocator = PagedAllocator(8 * page_size, page_size)
    pages = pages_of(allocator, 4)
    allocator.free(pages[0])
    allocator.free_group_begin()
    allocator.free(pages[1])
    before = snapshot(allocator)
    for gone in (pages[0], pages[1], pages[0] + 6 * page_size):
        with pytest.raises(UseAfterFree, match="nobody holds it any more"):
            allocator.alloc_decode([2], gone[:1])
    for foreign in (0, 9 * page_size, -page_size):
        with pytest.raises(ForeignPage):
            allocator.alloc_extend([1], [2], [foreign])
    with pytest.raises(UseAfterFree, match="another row of this batch grows in it too"):
        allocator.alloc_decode([2, 2], [pages[2, 0], pages[2, 0]])
    assert snapshot(allocator) == before
