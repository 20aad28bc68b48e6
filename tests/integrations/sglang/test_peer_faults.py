"""Calls on which SGLang fails silently: what it does, and what ours does instead."""

import peer
import pytest
import torch

from drop_in import DropIn, Storage
from kvstead.errors import (
    DoubleFree,
    ForeignPage,
    FreeGroupError,
    InvalidSize,
    MisalignedSegment,
    MisalignedSize,
    UseAfterFree,
    WindowTaken,
)
from kvstead.integrations.sglang.allocator import paged, swa, token

pytestmark = pytest.mark.sglang


CLASSES = {
    "Token": (peer.TokenToKVPoolAllocator, token.TokenToKVPoolAllocator),
    "Paged": (peer.PagedTokenToKVPoolAllocator, paged.PagedTokenToKVPoolAllocator),
    "SWA": (peer.SWATokenToKVPoolAllocator, swa.SWATokenToKVPoolAllocator),
    "PureSWA": (peer.PureSWATokenToKVPoolAllocator, swa.PureSWATokenToKVPoolAllocator),
}


def pair(name, *sizes, need_sort=False):
    """SGLang's class and ours of the same name, made alike."""
    return [DropIn(cls(*sizes, torch.bfloat16, "cpu", Storage(), need_sort)) for cls in CLASSES[name]]


def ints(*values):
    return torch.tensor(values, dtype=torch.int64)


def num_distinct(pages):
    return len(set(pages.tolist()))


def refused(error, allocator, call, *args, **kwargs):
    """Ours raises, and has as much available as before."""
    before = allocator.available_size(), allocator.core.parked_size()
    with pytest.raises(error):
        call(*args, **kwargs)
    assert (allocator.available_size(), allocator.core.parked_size()) == before
    allocator.audit()


# One pool.


@pytest.mark.parametrize("grouped", [False, True])
def test_slot_freed_twice_raises(grouped):
    """SGLang hands the slot out twice from then on; ours raises, inside a group and outside."""
    theirs, ours = pair("Token", 8)
    for allocator in (theirs, ours):
        allocator.alloc(4)
        if grouped:
            allocator.free_group_begin()
        allocator.free(ints(2))
    theirs.free(ints(2))
    refused(DoubleFree, ours, ours.free, ints(2))
    refused(DoubleFree, ours, ours.free, ints(3, 3))
    theirs.free_group_end()
    assert theirs.alloc(6).tolist() == [5, 6, 7, 8, 2, 2]


def test_padding_and_foreign_slots_cannot_be_freed():
    """SGLang adds slot 0, and one past the end, to its free list and hands them out; ours raises."""
    theirs, ours = pair("Token", 4)
    for allocator in (theirs, ours):
        allocator.alloc(4)
    theirs.free(ints(0, 99))
    assert theirs.alloc(2).tolist() == [0, 99]
    refused(ForeignPage, ours, ours.free, ints(0))
    refused(ForeignPage, ours, ours.free, ints(99))
    refused(ForeignPage, ours, ours.free, ints(-1))


def test_slots_that_were_not_handed_out_cannot_be_freed():
    """SGLang counts them as available, more than the pool has; ours raises."""
    theirs, ours = pair("Token", 4)
    theirs.free(ints(1, 2))
    assert theirs.available_size() == 6
    refused(DoubleFree, ours, ours.free, ints(1, 2))


@pytest.mark.parametrize(("name", "sizes"), [("Token", (8,)), ("Paged", (32, 4))])
def test_negative_number_of_slots_raises(name, sizes):
    """SGLang hands out or forgets all but a few of its free pages; ours raises."""
    theirs, ours = pair(name, *sizes)
    before = theirs.available_size()
    theirs.alloc(-3 * theirs.page_size)
    assert theirs.available_size() == 3 * theirs.page_size < before
    refused(InvalidSize, ours, ours.alloc, -3 * ours.page_size)


def test_number_of_slots_that_fills_no_page_raises():
    """SGLang gives fewer slots than were asked for; ours raises."""
    theirs, ours = pair("Paged", 32, 4)
    assert theirs.alloc(5).numel() == 4
    refused(MisalignedSize, ours, ours.alloc, 5)


def test_slots_handed_out_have_storage_of_their_own():
    """SGLang returns a view of its list of the whole pool; ours is as large as it says."""
    theirs, ours = (allocator.alloc(1).untyped_storage().nbytes() for allocator in pair("Token", 4096))
    assert (theirs, ours) == (8 * 4096, 8)


@pytest.mark.parametrize("grouped", [False, True])
def test_page_freed_by_two_of_its_slots_in_two_calls_raises(grouped):
    """SGLang lists the page twice or, in a group, hides the fault; ours raises in both."""
    theirs, ours = pair("Paged", 32, 4)
    for allocator in (theirs, ours):
        allocator.alloc(32)
        if grouped:
            allocator.free_group_begin()
        allocator.free(ints(4))
    theirs.free(ints(5))
    refused(DoubleFree, ours, ours.free, ints(5))
    theirs.free_group_end()
    assert theirs.free_pages.tolist() == ([1] if grouped else [1, 1])


def test_page_freed_as_slots_and_as_a_stretch_in_one_group_raises():
    """SGLang keeps the two lists apart and lists the page twice; ours raises at the second call."""
    theirs, ours = pair("Paged", 32, 4)
    for allocator in (theirs, ours):
        slots = allocator.alloc(32)
        allocator.free_group_begin()
        allocator.free(slots[:4])
    theirs.free_segment(slots[:4], start_pos=0)
    refused(DoubleFree, ours, ours.free_segment, slots[:4], start_pos=0)
    theirs.free_group_end()
    assert theirs.free_pages.tolist() == [1, 1]


def test_stretch_that_does_not_start_where_it_says_raises():
    """SGLang looks at every page_size-th slot and misses a page; ours raises."""
    theirs, ours = pair("Paged", 32, 4)
    slots = theirs.alloc(32)
    assert torch.equal(ours.alloc(32), slots)
    theirs.free_segment(slots[2:10], start_pos=0)
    assert sorted(theirs.free_pages.tolist()) == [1, 2]
    refused(MisalignedSegment, ours, ours.free_segment, slots[2:10], start_pos=0)


def test_page_id_named_twice_raises():
    """SGLang lists it twice; ours raises."""
    theirs, ours = pair("Paged", 32, 4)
    for allocator in (theirs, ours):
        allocator.alloc(32)
    theirs.free_page_ids(ints(3, 3))
    assert theirs.free_pages.tolist() == [3, 3]
    refused(DoubleFree, ours, ours.free_page_ids, ints(3, 3))


def test_buffer_of_page_ids_can_be_used_again():
    """SGLang, when it sorts, keeps the caller's tensor and reads it later; ours keeps nothing of it."""
    theirs, ours = pair("Paged", 32, 4, need_sort=True)
    for allocator in (theirs, ours):
        allocator.alloc(32)
        buffer = ints(2, 5)
        allocator.free_page_ids(buffer)
        buffer.fill_(7)
    assert theirs.get_all_free_pages().tolist() == [7, 7]
    assert ours.get_all_free_pages().tolist() == [2, 5]


def test_number_of_new_pages_follows_from_the_lengths():
    """SGLang believes a wrong number and hands a page out twice; ours does not read it."""
    allocators = pair("Paged", 32, 4)
    seen = []
    for allocator in allocators:
        prefix, seq, last = ints(0), ints(8), ints(-1)
        args = (prefix, prefix, seq, seq, last, 8)
        first = allocator.inner.alloc_extend(*args, num_new_pages=1)
        second = allocator.inner.alloc_extend(*args, num_new_pages=1)
        seen.append(num_distinct(torch.cat((first, second))))
    assert seen == [12, 16]


def test_number_of_new_tokens_follows_from_the_lengths():
    """SGLang returns as many slots as it is told; ours as many as the lengths say."""
    numbers = []
    for allocator in pair("Paged", 32, 4):
        prefix, seq = ints(0), ints(8)
        numbers.append(allocator.inner.alloc_extend(prefix, prefix, seq, seq, ints(-1), 4).numel())
    assert numbers == [4, 8]


@pytest.mark.parametrize("last", [0, 3, 7])
def test_row_that_grows_behind_the_wrong_slot_raises(last):
    """SGLang continues from any slot, into padding too; ours raises."""
    theirs, ours = pair("Paged", 32, 4)
    assert theirs.alloc_extend([2], [4], [last]).tolist() == [last + 1, last + 2]
    refused(MisalignedSegment, ours, ours.alloc_extend, [2], [4], [last])


def test_row_that_grows_in_a_freed_page_raises():
    """SGLang writes where another row may be by then; ours raises."""
    theirs, ours = pair("Paged", 32, 4)
    for allocator in (theirs, ours):
        allocator.free(allocator.alloc_extend([0], [2], [-1]))
    assert theirs.alloc_decode([3], [5]).tolist() == [6]
    assert 6 in theirs.alloc(4).tolist()
    refused(UseAfterFree, ours, ours.alloc_decode, [3], [5])


def test_rows_that_shrink_raise():
    """SGLang treats it as growth and loses free pages; ours raises."""
    theirs, ours = pair("Paged", 32, 4)
    theirs.alloc(8)
    prefix, seq = ints(16), ints(4)
    theirs.inner.alloc_extend(prefix, prefix, seq, seq, ints(7), 0)
    assert theirs.available_size() == 12
    refused(InvalidSize, ours, ours.alloc_extend, [16], [4], [7])


def test_decoding_with_pages_of_one_token():
    """SGLang takes no page and gives the neighbour's slot, again and again; ours gives each row a slot of its own."""
    theirs, ours = pair("Paged", 8, 1)
    for allocator in (theirs, ours):
        allocator.alloc(2)
    rows = [[2, 2], [1, 2]]
    assert [theirs.alloc_decode(*rows).tolist() for _ in range(2)] == [[2, 3], [2, 3]]
    assert (theirs.available_size(), theirs.alloc(1).tolist()) == (6, [3])
    assert [ours.alloc_decode(*rows).tolist() for _ in range(2)] == [[3, 4], [5, 6]]
    assert ours.available_size() == 2


def test_group_in_a_group_raises():
    """Both refuse it and keep the first group; SGLang by an assertion, which -O removes."""
    theirs, ours = pair("Token", 8)
    for allocator, error in ((theirs, AssertionError), (ours, FreeGroupError)):
        allocator.alloc(4)
        allocator.free_group_begin()
        allocator.free(ints(1, 2))
        with pytest.raises(error):
            allocator.free_group_begin()
        allocator.free_group_end()
        assert allocator.available_size() == 6


# Two sides.


def windowed(size=32, size_swa=32, page_size=4):
    return pair("SWA", size, size_swa, page_size)


def sides(allocator):
    """Available slots of the full side and of the window side."""
    return allocator.full_available_size(), allocator.swa_available_size()


def test_decode_with_one_side_short_changes_nothing():
    """SGLang returns None and has lost a page of the other side; ours is as it was."""
    theirs, ours = windowed(32, 4)
    for allocator in (theirs, ours):
        row = allocator.alloc_extend([0], [4], [-1]).tolist()
        assert sides(allocator) == (28, 0)
        assert allocator.alloc_decode([5], row[-1:]) is None
    assert sides(theirs) == (24, 0)
    assert sides(ours) == (28, 0)


@pytest.mark.parametrize("grouped", [False, True])
def test_free_after_the_window_frees_the_full_side(grouped):
    """SGLang at page size 1 puts slot 0 on the window list and hands it out; ours frees what is left."""
    theirs, ours = pair("SWA", 8, 8, 1)
    for allocator in (theirs, ours):
        row = allocator.alloc(4)
        if grouped:
            allocator.free_group_begin()
        allocator.free_swa(row[:1])
        allocator.free(row[:1])
        allocator.free_group_end()
    assert 0 in theirs.swa_attn_allocator.free_pages
    assert sides(theirs) == (5, 6)
    assert sides(ours) == (5, 5)
    ours.audit()


def test_free_full_frees_a_living_window():
    """SGLang loses the window page, for good once the slot is used again; ours frees it too."""
    theirs, ours = windowed()
    for allocator in (theirs, ours):
        allocator.free_full(allocator.alloc_extend([0], [4], [-1]))
        allocator.free(allocator.alloc_extend([0], [4], [-1]))
    assert sides(theirs) == (32, 28)
    assert sides(ours) == (32, 32)


def test_mapping_cannot_be_set_over_a_living_window():
    """SGLang forgets the window page that was linked; ours raises."""
    theirs, ours = windowed()
    for allocator in (theirs, ours):
        row = allocator.alloc_extend([0], [4], [-1])
        window_slots = allocator.swa_attn_allocator.alloc(4)
        if allocator is ours:
            refused(WindowTaken, ours, ours.set_full_to_swa_mapping, row, window_slots)
            allocator.swa_attn_allocator.free(window_slots)
        else:
            allocator.set_full_to_swa_mapping(row, window_slots)
        allocator.free(row)
    assert sides(theirs) == (32, 28)
    assert sides(ours) == (32, 32)


def test_window_of_a_row_cannot_be_freed_on_its_side():
    """SGLang gives it to another row at once; ours raises."""
    theirs, ours = windowed()
    for allocator in (theirs, ours):
        row = allocator.alloc_extend([0], [4], [-1])
        window_slots = allocator.window_slots(row)
        if allocator is ours:
            refused(WindowTaken, ours, ours.swa_attn_allocator.free, window_slots)
        else:
            allocator.swa_attn_allocator.free(window_slots)
    other = theirs.alloc_extend([0], [4], [-1])
    assert theirs.window_slots(other).tolist() == theirs.window_slots(row).tolist() == [4, 5, 6, 7]


def test_tail_that_starts_inside_a_page_raises():
    """SGLang gives two full pages one window page, and frees it with the first of them; ours raises."""
    theirs, ours = windowed()
    row = theirs.alloc_extend_swa_tail([0], [10], [-1], 3)
    assert theirs.window_slots(row).tolist() == [0] * 7 + [4, 5, 6]
    theirs.free_swa(row[4:8])
    assert 1 in theirs.swa_attn_allocator.free_pages
    assert theirs.window_slots(row[8:]).tolist() == [5, 6]
    refused(MisalignedSegment, ours, ours.alloc_extend_swa_tail, [0], [10], [-1], 3)


def test_row_that_grows_in_a_page_without_a_window_raises():
    """SGLang puts the new tokens into the padding of the window side; ours raises."""
    theirs, ours = windowed()
    for allocator in (theirs, ours):
        row = allocator.alloc_extend([0], [6], [-1])
        allocator.free_swa(row[4:])
    assert theirs.window_slots(theirs.alloc_extend([6], [8], row[-1:].tolist())).tolist() == [1, 2]
    refused(UseAfterFree, ours, ours.alloc_extend, [6], [8], row[-1:].tolist())


@pytest.mark.parametrize("grouped", [False, True])
def test_free_and_free_full_of_the_same_slots_raise(grouped):
    """SGLang frees the full page twice; ours raises at the second call."""
    theirs, ours = windowed()
    for allocator in (theirs, ours):
        row = allocator.alloc_extend([0], [8], [-1])
        if grouped:
            allocator.free_group_begin()
        allocator.free(row[:4])
    theirs.free_full_segment(row[:4], start_pos=0)
    refused(DoubleFree, ours, ours.free_full_segment, row[:4], start_pos=0)
    theirs.free_group_end()
    assert theirs.full_attn_allocator.free_pages.tolist().count(1) == 2


# Windows alone.


def test_free_and_free_swa_of_the_same_slots_raise_with_windows_alone():
    """SGLang, with windows alone, lists the slots twice; ours raises at the second call."""
    theirs, ours = pair("PureSWA", 8, 1)
    for allocator in (theirs, ours):
        row = allocator.alloc(4)
        allocator.free_swa(row[:2])
    theirs.free(row[:2])
    assert theirs.swa_attn_allocator.free_pages.tolist() == [5, 6, 7, 8, 1, 2, 1, 2]
    refused(DoubleFree, ours, ours.free, row[:2])
