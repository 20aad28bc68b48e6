import random

import numpy as np
import pytest
import torch
from device_pair import DevicePair
from hypothesis import given, settings
from hypothesis import strategies as st

from kvstead.allocators import (
    DeviceHiSparseAllocator,
    DevicePagedAllocator,
    DeviceSWAAllocator,
    DeviceTokenAllocator,
    PagedAllocator,
    TokenAllocator,
)
from kvstead.errors import DoubleFree, FreeGroupError, InvalidSize, MisalignedSegment, MisalignedSize

PAGE_SIZES = (1, 3, 4, 16, 64)
DTYPES = (torch.int64, torch.int32)
SEEDS = st.integers(0, 2**32)


@pytest.mark.parametrize("page_size", PAGE_SIZES)
@pytest.mark.parametrize("order", ["lifo", "fifo"])
@settings(max_examples=8)
@given(SEEDS, st.integers(0, 14), st.sampled_from(DTYPES), st.booleans())
def test_same_ids_as_on_the_host(page_size, order, seed, num_pages, dtype, checked):
    """Whatever rows do, every answer, count and free list is that of the host's class, and nothing is found wrong."""
    rnd = random.Random(seed)
    size = num_pages * page_size + rnd.randrange(page_size)
    host = PagedAllocator(size, page_size, order=order)
    device = DevicePagedAllocator(size, page_size, order=order, index_dtype=dtype, checked=checked)
    pair = DevicePair(host, device, rnd)
    pair.run(30)
    device.audit()
    pair.toggle_group()
    pair.compare_books()
    device.audit()


@settings(max_examples=15)
@given(SEEDS, st.integers(0, 20))
def test_tokens_queue_as_on_the_host(seed, size):
    """Slots one by one come back first freed, first reused, as the host's do."""
    DevicePair(TokenAllocator(size), DeviceTokenAllocator(size), random.Random(seed)).run(30)


@settings(max_examples=30)
@given(SEEDS, st.integers(1, 20))
def test_sorted_is_ascending_until_it_runs_short(seed, num_pages):
    """Pages come in ascending order; what is freed waits until too few are left, then all are sorted."""
    device = DevicePagedAllocator(2 * num_pages, 2, order="sorted")
    front, behind, held = list(range(1, num_pages + 1)), [], []
    rnd = random.Random(seed)
    for _ in range(30):
        wanted = rnd.randint(0, 3)
        got = device.alloc(2 * wanted)
        assert (got is None) == (wanted > len(front + behind))
        if wanted > len(front):
            front, behind = sorted(front + behind), []
        if got is not None:
            assert (got[::2] // 2).tolist() == front[:wanted]
            front, held = front[wanted:], held + front[:wanted]
        rnd.shuffle(held)
        freed, held = held[:2], held[2:]
        device.free(torch.tensor([2 * page for page in freed], dtype=torch.int64))
        behind += freed
        assert device.free_pages().tolist() == front + behind
    device.audit()


def test_an_order_that_a_device_does_not_keep_is_refused():
    """`lowest` needs a bitmap on the host; the error names what stands in for it."""
    with pytest.raises(InvalidSize, match="sorted"):
        DevicePagedAllocator(8, 1, order="lowest")


@pytest.mark.parametrize("page_size", PAGE_SIZES)
def test_growth_inside_and_across_pages(page_size):
    """Rows that stay in their page, fill it, cross it or are shorter get consecutive offsets, as the host's."""
    host, device = PagedAllocator(64 * page_size, page_size), DevicePagedAllocator(64 * page_size, page_size)
    lengths = torch.arange(1, 3 * page_size + 2)[: 40 // (1 + 2 // page_size)]
    lengths = lengths[torch.linspace(0, lengths.numel() - 1, 9).long()]
    nothing = torch.zeros_like(lengths)
    begun = device.alloc_extend(nothing, lengths, nothing - 1)
    assert begun.tolist() == host.alloc_extend(nothing, lengths, nothing - 1).tolist()
    last = begun[lengths.cumsum(0) - 1]
    by = torch.arange(lengths.numel()) % (page_size + 1)
    grown = device.alloc_extend(lengths, lengths + by, last)
    assert grown.tolist() == host.alloc_extend(lengths, lengths + by, last).tolist()
    position = torch.cat([torch.arange(a, a + b) for a, b in zip(lengths.tolist(), by.tolist(), strict=True)])
    assert torch.equal(grown % page_size, position % page_size)


@pytest.mark.parametrize("dtype", DTYPES)
def test_an_extend_that_fits_in_a_page_gets_no_other(dtype):
    """Fill an old page, stay below a page, cross two: ten, eleven and twelve come next, and these are the slots."""
    device = DevicePagedAllocator(4 * 20, 4, index_dtype=dtype)
    device.alloc(4 * 9)
    got = device.alloc_extend([5, 0, 3], [7, 3, 9], torch.tensor([8, -1, 22], dtype=dtype))
    assert got.tolist() == [9, 10, 40, 41, 42, 23, 44, 45, 46, 47, 48]
    assert got.dtype == dtype


@pytest.mark.parametrize("page_size", PAGE_SIZES)
@pytest.mark.parametrize("call", ["alloc", "alloc_extend", "alloc_decode"])
def test_room_is_exact(page_size, call):
    """All pages can be had in one call, one more than all is None, and then everything is as it was."""
    device = DevicePagedAllocator(5 * page_size, page_size)
    nothing = torch.zeros(6, dtype=torch.int64)
    calls = {
        "alloc": lambda pages: device.alloc(pages * page_size),
        "alloc_extend": lambda pages: device.alloc_extend([0, 0], [1, 1 + (pages - 2) * page_size], nothing[:2] - 1),
        "alloc_decode": lambda pages: device.alloc_decode([1] * pages, nothing[:pages] - 1),
    }
    before = device.free_pages()
    assert calls[call](6) is None
    assert torch.equal(device.free_pages(), before)
    assert calls[call](5) is not None
    assert device.available_size() == 0


def test_the_ring_is_read_and_written_across_its_end():
    """A list whose head stands at its last place still hands out and takes back pages in order."""
    device = DeviceTokenAllocator(5)
    device.free(device.alloc(4))
    assert device.alloc(3).tolist() == [5, 1, 2]
    device.free_segment(torch.tensor([2, 1, 5]), start_pos=7)
    assert device.alloc(5).tolist() == [3, 4, 2, 1, 5]


FORMS = {
    "int32": lambda slots: torch.tensor(slots, dtype=torch.int32),
    "uint8": lambda slots: torch.tensor(slots, dtype=torch.uint8),
    "a slice with gaps": lambda slots: torch.tensor(slots).repeat_interleave(2)[::2],
    "two dimensions": lambda slots: torch.tensor(slots).reshape(2, -1),
    "an array": np.array,
    "a list": list,
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("grouped", [False, True])
def test_slots_of_any_make(form, dtype, grouped):
    """Integers of any type and shape are the same slots, repeated ones too; what comes out has one type."""
    device = DevicePagedAllocator(8, 2, index_dtype=dtype)
    assert device.alloc(8).dtype == dtype
    if grouped:
        device.free_group_begin()
    device.free(FORMS[form]([5, 4, 7, 5]))
    device.free_segment(FORMS[form]([2, 3, 8, 9]), start_pos=2)
    device.free_group_end()
    assert device.free_pages().tolist() == [1, 4, 2, 3]


@pytest.mark.parametrize("nothing", [[], torch.empty(0), torch.empty(0, dtype=torch.int32)])
def test_freeing_nothing_does_nothing(nothing):
    """No slots are no free, whatever their type, also inside a group."""
    device = DevicePagedAllocator(8, 2)
    with device.defer_frees():
        device.free(nothing)
        device.free_segment(nothing, start_pos=0)
        device.free_segments([(nothing, 0)])
        assert device.free_group == []
    assert device.available_size() == 8


@pytest.mark.parametrize("slots", [[1.5], torch.ones(2), torch.ones(2, dtype=torch.bool), torch.ones(1) * 1j])
def test_slots_that_are_no_integers_are_refused(slots):
    """Fractions, truth values and the like are no slots."""
    device = DevicePagedAllocator(8, 2)
    with pytest.raises(TypeError, match="integer"):
        device.free(slots)


def books(device):
    return device.free_pages().tolist(), device.parked_size(), device.live_size()


MISUSE = {
    "negative size": (lambda device: device.alloc(-2), InvalidSize),
    "half a page": (lambda device: device.alloc(3), MisalignedSize),
    "a row that shrinks": (lambda device: device.alloc_extend([0, 3], [1, 2], [-1, 5]), InvalidSize),
    "a row below nothing": (lambda device: device.alloc_extend([-1], [1], [-1]), InvalidSize),
    "a decode to nothing": (lambda device: device.alloc_decode([2, 0], [4, -1]), InvalidSize),
    "too few last slots": (lambda device: device.alloc_extend([0, 0], [1, 1], [-1]), InvalidSize),
    "too few prefixes": (lambda device: device.alloc_extend([0], [1, 1], [-1, -1]), InvalidSize),
    "too many last slots": (lambda device: device.alloc_decode([1], [-1, -1]), InvalidSize),
    "lengths on a device": (
        lambda device: device.alloc_decode(torch.ones(1, dtype=torch.int64, device="meta"), [-1]),
        TypeError,
    ),
    "prefixes on a device": (
        lambda device: device.alloc_extend(torch.ones(1, dtype=torch.int64, device="meta"), [1], [-1]),
        TypeError,
    ),
    "a start inside a page": (lambda device: device.free_segment([3], start_pos=1), MisalignedSegment),
    "a start below nothing": (lambda device: device.free_segment([2], start_pos=-2), MisalignedSegment),
    "a bad second start": (lambda device: device.free_segments([([4], 2), ([2], 1)]), MisalignedSegment),
    "a second segment of no integers": (lambda device: device.free_segments([([4], 0), ([2.0], 2)]), TypeError),
    "more in the second segment than are held": (
        lambda device: device.free_segments([(range(2, 6), 0), (range(2, 6), 4)]),
        DoubleFree,
    ),
    "more pages than are held": (lambda device: device.free(range(2, 10)), DoubleFree),
    "more pages than slots": (lambda device: device.free([2, 4], num_pages=3), InvalidSize),
    "fewer pages than none": (lambda device: device.free([2, 4], num_pages=-1), InvalidSize),
    "more segments than are held": (lambda device: device.free_segment(range(2, 10), start_pos=0), DoubleFree),
}


@pytest.mark.parametrize("misuse", MISUSE)
@pytest.mark.parametrize("grouped", [False, True])
def test_what_the_host_sees_is_refused_and_changes_nothing(misuse, grouped):
    """Misuse that shows in counts and lengths raises at once, with the way out, and changes nothing."""
    call, error = MISUSE[misuse]
    device = DevicePagedAllocator(12, 2)
    device.alloc(6)
    if grouped:
        device.free_group_begin()
    before = books(device)
    with pytest.raises(error, match=r"\. [A-Z]"):
        call(device)
    assert books(device) == before
    assert device.free_group == ([] if grouped else None)
    device.audit()


@pytest.mark.parametrize("num_pages", [0, 2, 4])
def test_single_slots_are_as_many_pages(num_pages):
    """At page size 1 a number of pages that is not that of the slots is refused, and nothing is freed."""
    device = DevicePagedAllocator(8, 1)
    slots = device.alloc(6)[:3]
    with pytest.raises(InvalidSize):
        device.free(slots, num_pages=num_pages)
    assert device.available_size() == 2
    device.free(slots, num_pages=3)
    assert device.available_size() == 5


def test_groups_do_not_nest_and_end_on_errors():
    """Beginning twice raises and keeps what is parked; an exception in the block gives it back."""
    device = DevicePagedAllocator(4, 1)
    slots = device.alloc(4)

    def fail_inside():
        with device.defer_frees():
            device.free(slots[:1])
            with pytest.raises(FreeGroupError):
                device.free_group_begin()
            assert (device.parked_size(), device.available_size()) == (1, 0)
            raise ArithmeticError

    with pytest.raises(ArithmeticError):
        fail_inside()
    assert (device.free_group, device.parked_size(), device.available_size()) == (None, 0, 1)
    device.free_group_end()
    assert device.available_size() == 1


@pytest.mark.parametrize(
    ("size", "page_size", "dtype"),
    [
        (-1, 1, torch.int64),
        (4, 0, torch.int64),
        (2**31 - 2, 2, torch.int32),
        (4, 1, torch.int16),
        (4, 1, torch.float64),
    ],
)
def test_pools_that_cannot_be(size, page_size, dtype):
    """Negative sizes, empty pages and slots that the index type cannot number are refused."""
    with pytest.raises(InvalidSize):
        DevicePagedAllocator(size, page_size, index_dtype=dtype)


def test_lengths_that_overflow_are_more_than_there_is():
    """Lengths near the end of int64 are short, not counted round to nothing."""
    device = DevicePagedAllocator(8, 2)
    top = 2**63 - 1
    assert device.alloc_extend([0] * 4, [2**62] * 4, [-1] * 4) is None
    assert device.alloc_extend([0] * 4, [top] * 4, [-1] * 4) is None
    assert device.available_size() == 8


@pytest.mark.parametrize("make", [DevicePagedAllocator, DeviceSWAAllocator, DeviceHiSparseAllocator])
def test_the_default_device_of_the_process_is_nobodys(make):
    """Where new tensors of the process go by default changes neither ids nor where they lie."""
    answers = []
    for default in ("cpu", "meta"):
        with torch.device(default):
            device = make(*([64, 64, 4] if make is DeviceSWAAllocator else [64, 4]), checked=True)
            rows = device.alloc_extend([0, 0], [6, 9], [-1, -1])
            more = device.alloc_decode([7, 10], rows[5::9])
            device.free(rows[:6])
            device.free_segment(rows[6:], start_pos=0)
            assert device.alloc(64) is not None
            device.audit()
        answers.append((rows.tolist(), more.tolist(), device.free_pages().tolist()))
    assert answers[0] == answers[1]


def test_a_cleared_pool_is_as_new():
    """An open group is dropped, every page is free in ascending order, and a later end does nothing."""
    device = DevicePagedAllocator(8, 2, checked=True)
    device.alloc(8)
    device.free_group_begin()
    device.free([2, 4])
    device.free_segment([2], start_pos=0)
    device.clear()
    device.free_group_end()
    assert books(device) == ([1, 2, 3, 4], 0, 0)
    device.audit()
