import random
from functools import partial

import pytest
import torch
from device_pair import DeviceWindowPair
from hypothesis import given, settings
from hypothesis import strategies as st

from kvstead.allocators import DeviceSWAAllocator, SWAAllocator
from kvstead.errors import AuditError, DoubleFree, ForeignPage, InvalidSize, MisalignedSegment, UseAfterFree


@pytest.mark.parametrize("page_size", [1, 3, 4, 16])
@pytest.mark.parametrize("order", ["lifo", "fifo"])
@settings(max_examples=6)
@given(
    st.integers(0, 2**32),
    st.integers(0, 14),
    st.integers(0, 14),
    st.sampled_from([torch.int64, torch.int32]),
    st.booleans(),
)
def test_same_ids_as_on_the_host(page_size, order, seed, num_full, num_windows, dtype, checked):
    """Whatever rows and their windows do, both sides and the mapping are the host's, and nothing is found wrong."""
    sizes = num_full * page_size, num_windows * page_size
    host = SWAAllocator(*sizes, page_size, order=order)
    device = DeviceSWAAllocator(*sizes, page_size, order=order, index_dtype=dtype, checked=checked)
    pair = DeviceWindowPair(host, device, random.Random(seed))
    pair.run(15)
    device.audit()
    pair.toggle_group()
    pair.compare_books()
    device.audit()


@pytest.mark.parametrize(("full", "window"), [(4, 5), (5, 4)])
@pytest.mark.parametrize("call", ["alloc", "alloc_extend", "alloc_decode", "alloc_extend_swa_tail"])
def test_both_sides_or_neither(full, window, call):
    """When one side is a page short nothing is taken from the other, and one page less fits."""
    device = DeviceSWAAllocator(full * 2, window * 2, 2)
    nothing = torch.full((5,), -1)
    calls = {
        "alloc": lambda pages: device.alloc(2 * pages),
        "alloc_extend": lambda pages: device.alloc_extend([0], [2 * pages - 1], nothing[:1]),
        "alloc_decode": lambda pages: device.alloc_decode([1] * pages, nothing[:pages]),
        "alloc_extend_swa_tail": lambda pages: device.alloc_extend_swa_tail([0], [2 * pages], nothing[:1], 2 * pages),
    }
    assert calls[call](5) is None
    assert (device.full_available_size(), device.swa_available_size()) == (2 * full, 2 * window)
    assert calls[call](4) is not None
    assert (device.full_available_size(), device.swa_available_size()) == (2 * full - 8, 2 * window - 8)
    device.audit()


def start():
    """Pages 1 to 6, of which 1 and 2 have lost their window pages; 7 and 8 are free."""
    device = DeviceSWAAllocator(16, 16, 2, checked=True)
    device.alloc(12)
    device.free_swa_segment([2, 3, 4, 5], start_pos=0)
    device.audit()
    return device


FAULTS = {
    "with a window page that is gone": (lambda d: d.free_segment([6, 7, 4, 5], start_pos=0), DoubleFree, "full page 2"),
    "a window page twice": (lambda d: d.free_swa_segment([2], start_pos=0), DoubleFree, "full page 1"),
    "without the window page": (lambda d: d.free_full_segment([2, 3, 6, 7], start_pos=0), AuditError, "full page 3"),
    "grown without a window page": (lambda d: d.alloc_decode([2], [2]), UseAfterFree, "slot 2, in a page whose window"),
    "a full page twice": (lambda d: (d.free([2]), d.free_full([3])), DoubleFree, "page 1 was freed"),
    "a foreign full page": (lambda d: d.free([18]), ForeignPage, "page 9"),
    "a foreign page's window": (lambda d: d.free_swa([8, 18]), ForeignPage, "page 9"),
    "the padding's window": (lambda d: d.free_swa([1]), ForeignPage, "page 0"),
}


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("grouped", [False, True])
def test_an_audit_tells_of_the_first_fault(fault, grouped):
    """A caller who is wrong about window pages hears of it at the next audit, with the page."""
    call, error, text = FAULTS[fault]
    device = start()
    if grouped:
        device.free_group_begin()
    call(device)
    device.free_swa_segment([4], start_pos=0)  # another fault, after the first
    with pytest.raises(error, match=text):
        device.audit()
    device.clear()
    device.audit()


def test_a_row_whose_windows_are_gone_grows_by_a_tail():
    """The head of the new tokens may lie in a page without a window page, as on the host, and no audit minds."""
    rows = []
    for make in (SWAAllocator, partial(DeviceSWAAllocator, checked=True)):
        allocator = make(64, 32, 4)
        row = allocator.alloc_extend([0], [6], [-1])
        allocator.free_swa(row)
        rows.append(allocator.alloc_extend_swa_tail([6], [16], row[-1:], 8).tolist())
        allocator.audit()
    assert rows[0] == rows[1]


@pytest.mark.parametrize("fault", ["without the window page", "with a window page that is gone"])
def test_an_audit_without_checks_finds_what_the_lists_show(fault):
    """A window page left behind, or padding among the window pages, shows in the mapping and the lists."""
    device = DeviceSWAAllocator(16, 16, 2)
    device.alloc(12)
    device.free_swa([2, 4])
    FAULTS[fault][0](device)
    with pytest.raises(AuditError):
        device.audit()


MISUSE = {
    "two rows with a tail": (lambda d: d.alloc_extend_swa_tail([0, 0], [2, 2], [-1, -1], 2), InvalidSize),
    "a tail too long": (lambda d: d.alloc_extend_swa_tail([0], [2], [-1], 4), InvalidSize),
    "a tail from inside a page": (lambda d: d.alloc_extend_swa_tail([0], [3], [-1], 2), MisalignedSegment),
    "windows from inside a page": (lambda d: d.free_swa_segment([3], start_pos=1), MisalignedSegment),
    "full pages from inside one": (lambda d: d.free_full_segments([([], 0), ([3], 1)]), MisalignedSegment),
    "windows, one after another": (lambda d: d.free_swa_segments([([6], 0), ([3], 1)]), MisalignedSegment),
    "more windows than there are, one after another": (
        lambda d: d.free_segments([([4], 0), (range(6, 13), 2)]),
        DoubleFree,
    ),
    "more full pages in the second": (
        lambda d: d.free_full_segments([([2], 0), (range(4, 16), 2)]),
        DoubleFree,
    ),
    "more windows in the second": (
        lambda d: d.free_swa_segments([([4], 0), (range(6, 13), 2)]),
        DoubleFree,
    ),
    "more windows than there are": (lambda d: d.free_segment(range(2, 11), start_pos=0), DoubleFree),
    "more pages than there are": (lambda d: d.free(range(2, 16)), DoubleFree),
}


@pytest.mark.parametrize("misuse", MISUSE)
def test_what_the_host_sees_is_refused_and_changes_nothing(misuse):
    """Misuse that shows in counts and positions raises at once, and both sides are as they were."""
    device = start()
    before = device.free_pages().tolist(), device.window_free_pages().tolist(), device.window_pages.tolist()
    call, error = MISUSE[misuse]
    with pytest.raises(error, match=r"\. [A-Z]"):
        call(device)
    after = device.free_pages().tolist(), device.window_free_pages().tolist(), device.window_pages.tolist()
    assert after == before
    device.audit()


def test_a_negative_window_side_is_refused():
    """Sizes start at 0."""
    with pytest.raises(InvalidSize):
        DeviceSWAAllocator(4, -1, 1)


def test_a_window_side_beyond_the_numbers_of_its_slots_is_refused():
    """Window slots are numbered in the type of the full slots, so there are no more of them than it counts."""
    with pytest.raises(InvalidSize, match="numbered"):
        DeviceSWAAllocator(4, 2**31, 1, device="meta", index_dtype=torch.int32)
