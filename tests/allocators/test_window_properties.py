"""What holds for two sides, whatever their page size and order."""

import numpy as np
import pytest
from allocator_pair import ORDERS, PAGE_SIZES, snapshot
from hypothesis import given
from hypothesis import strategies as st

from kvstead.allocators import SWAAllocator
from kvstead.errors import UseAfterFree
from kvstead.kernels.host import FREE, LIVE

page_sizes = st.sampled_from(PAGE_SIZES)
orders = st.sampled_from(ORDERS)

FULL_FREES = {
    "free": lambda allocator, page: allocator.free(page[-1:]),
    "free_full": lambda allocator, page: allocator.free_full(page.flip(0)),
    "free_segment": lambda allocator, page: allocator.free_segment(page[:1], start_pos=0),
    "free_full_segment": lambda allocator, page: allocator.free_full_segment(page, start_pos=page.numel()),
    "free_segments": lambda allocator, page: allocator.free_segments([(page[:0], 0), (page, 0)]),
    "free_full_segments": lambda allocator, page: allocator.free_full_segments([(page, 0)]),
}
WINDOW_FREES = {
    "free_swa": lambda allocator, page: allocator.free_swa(page[:1]),
    "free_swa_segment": lambda allocator, page: allocator.free_swa_segment(page, start_pos=page.numel()),
    "free_swa_segments": lambda allocator, page: allocator.free_swa_segments([(page, 0), (page[:1], 0)]),
    "free_window_pages": lambda allocator, page: allocator.free_window_pages(page.numpy() // page.numel()),
}


@given(page_sizes, orders, st.integers(1, 8), st.data())
def test_frees_of_either_side_mean_the_same_in_any_order_form_and_group(page_size, order, num_pages, data):
    """Who lost his page and who his window follows from the calls alone, not from their order, form or grouping."""
    num_windows = data.draw(st.integers(0, num_pages))
    allocator = SWAAllocator((num_pages + 1) * page_size, (num_windows + 1) * page_size, page_size, order=order)
    row = allocator.alloc_extend_swa_tail([0], [num_pages * page_size], [-1], num_windows * page_size)
    pages = row.reshape(num_pages, page_size)
    ids = pages[:, 0].numpy() // page_size
    linked_pages = allocator.window_pages[ids]
    at = st.integers(0, num_pages - 1)
    freed, bared = data.draw(st.sets(at)), data.draw(st.lists(at, max_size=8))
    calls = [(FULL_FREES[data.draw(st.sampled_from(sorted(FULL_FREES)))], which) for which in freed]
    calls += [(WINDOW_FREES[data.draw(st.sampled_from(sorted(WINDOW_FREES)))], which) for which in bared]
    calls = data.draw(st.permutations(calls))
    begin, end = data.draw(st.integers(0, 8)), data.draw(st.integers(0, 16))
    for step, (free, which) in enumerate(calls):
        if step == begin:
            allocator.free_group_begin()
        given_page = pages[which].clone()
        free(allocator, given_page)
        given_page.fill_(-5)
        if step == end:
            allocator.free_group_end()
    allocator.free_group_end()
    allocator.audit()
    live = [which not in freed for which in range(num_pages)]
    mapped = [
        linked_page > 0 and alive and which not in bared
        for which, (linked_page, alive) in enumerate(zip(linked_pages, live, strict=True))
    ]
    assert (allocator.page_states()[ids] == LIVE).tolist() == live
    assert allocator.window_pages[ids].tolist() == np.where(mapped, linked_pages, 0).tolist()
    states = allocator.window_page_states()
    assert states[linked_pages[mapped]].tolist() == [LIVE] * sum(mapped)
    assert (states[1:] == FREE).sum() == allocator.num_window_pages - sum(mapped)
    assert allocator.full_available_size() == (1 + len(freed)) * page_size


@st.composite
def started_rows(draw):
    """Rows of any lengths and the number of pages that they hold: (page size, lengths, pages)."""
    page_size = draw(page_sizes)
    lengths = draw(st.lists(st.integers(0, 2 * page_size), min_size=1, max_size=5))
    return page_size, lengths, sum(-(-length // page_size) for length in lengths)


def start(allocator, lengths):
    """The last slot of each row, once they are there; -1 for empty ones."""
    slots = allocator.alloc_extend([0] * len(lengths), lengths, [-1] * len(lengths))
    ends = np.cumsum(lengths)
    return [int(slots[end - 1]) if length else -1 for end, length in zip(ends, lengths, strict=True)]


@given(started_rows(), orders, st.data())
def test_rows_grow_where_both_sides_have_their_pages(started, order, data):
    """Extend and decode take the pages they open on both sides, or, with one too few on either, nothing."""
    page_size, prefix, held = started
    seq = [length + data.draw(st.integers(0, 2 * page_size)) for length in prefix]
    needed = sum(-(-length // page_size) for length in seq) - held
    spare = [max(0, needed + data.draw(st.integers(-2, 2))) for _ in range(2)]
    sizes = [(held + pages) * page_size for pages in spare]
    allocator = SWAAllocator(*sizes, page_size, order=order)
    last = start(allocator, prefix)
    before = snapshot(allocator)
    slots = allocator.alloc_extend(prefix, seq, last)
    if needed > min(spare):
        assert slots is None
        assert snapshot(allocator) == before
        return
    positions = [p for a, b in zip(prefix, seq, strict=True) for p in range(a, b)]
    windows = allocator.window_slots(slots)
    assert (windows > 0).all()
    assert len(set(windows.tolist())) == len(positions)
    assert (windows % page_size).tolist() == (slots % page_size).tolist() == [p % page_size for p in positions]
    assert allocator.full_available_size() == (spare[0] - needed) * page_size
    assert allocator.swa_available_size() == (spare[1] - needed) * page_size
    allocator.audit()


@given(started_rows(), orders, st.integers(0, 3), st.data())
def test_decode_of_table_rows_is_decode_is_extend_by_one(started, order, spare, data):
    """All three give the same slots and state, None together, and the same error where a row has lost its window."""
    page_size, lengths, held = started
    twins = [SWAAllocator((held + 5) * page_size, (held + spare) * page_size, page_size, order=order) for _ in range(3)]
    lasts, _, _ = (start(allocator, lengths) for allocator in twins)
    bare = data.draw(st.sampled_from([None, *(last for last in lasts if last >= 0)]))
    for allocator in twins:
        allocator.free_swa([] if bare is None else [bare])
    num_rows = len(lengths)
    table = np.full((num_rows + 1, 2 * page_size + 1), -1, dtype=np.int64)
    ends = np.array([0, *lengths])
    table[np.arange(1, num_rows + 1), np.maximum(ends[1:] - 1, 0)] = lasts
    tags = np.arange(num_rows, dtype=np.int32)
    calls = [
        lambda: twins[0].alloc_extend(lengths, ends[1:] + 1, lasts, tags),
        lambda: twins[1].alloc_decode(ends[1:] + 1, lasts, tags),
        lambda: twins[2].alloc_decode_rows(table, ends, np.arange(1, num_rows + 1), tags),
    ]
    before = snapshot(twins[0])
    if bare is not None and lengths[lasts.index(bare)] % page_size:
        for call, allocator in zip(calls, twins, strict=True):
            with pytest.raises(UseAfterFree, match=f"row {lasts.index(bare)} would grow behind slot {bare}, in page"):
                call()
            assert snapshot(allocator) == before
        assert ends.tolist() == [0, *lengths]
        return
    answers = [call() for call in calls]
    assert len({None if slots is None else tuple(slots.tolist()) for slots in answers}) == 1
    assert snapshot(twins[0]) == snapshot(twins[1]) == snapshot(twins[2])
    assert (snapshot(twins[0]) == before) == (answers[0] is None or not any(n % page_size == 0 for n in lengths))
