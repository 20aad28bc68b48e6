import random

import pytest
import torch
from device_hot_pair import DeviceHotPair
from hypothesis import given, settings
from hypothesis import strategies as st
from read_back_watch import DEVICES, NoReadBack, NoWait

from kvstead.allocators import DeviceHiSparseAllocator, HiSparseAllocator
from kvstead.errors import AuditError, DoubleFree, ForeignPage, InvalidSize, MisalignedSize, UseAfterFree


@pytest.mark.parametrize("page_size", [1, 3, 4, 16])
@pytest.mark.parametrize("order", ["lifo", "fifo"])
@settings(max_examples=5)
@given(
    st.integers(0, 2**32),
    st.integers(0, 10),
    st.integers(1, 3),
    st.sampled_from([torch.int64, torch.int32]),
    st.booleans(),
)
def test_same_ids_as_on_the_host(page_size, order, seed, num_pages, ratio, dtype, checked):
    """Whatever rows and buffers do, both sides, the mapping and every device slot are the host's."""
    host = HiSparseAllocator(num_pages * page_size, page_size, ratio=ratio, order=order)
    options = {"ratio": ratio, "order": order, "index_dtype": dtype, "checked": checked}
    device = DeviceHiSparseAllocator(num_pages * page_size, page_size, **options)
    DeviceHotPair(host, device, random.Random(seed)).run(12)
    device.audit()


@pytest.mark.parametrize("call", ["alloc", "alloc_extend"])
@pytest.mark.parametrize("cold", [0, 6])
def test_both_sides_or_neither(call, cold):
    """When one side is a page short nothing is taken from the other, and one page less fits."""
    device = DeviceHiSparseAllocator(8, 2)
    device.alloc_logical_only([0], [2 * cold], [-1])
    there = min(8 - cold, 4)
    calls = {
        "alloc": lambda pages: device.alloc(2 * pages),
        "alloc_extend": lambda pages: device.alloc_extend([0], [2 * pages - 1], [-1]),
    }
    before = device.logical_available_size(), device.device_available_size()
    assert calls[call](there + 1) is None
    assert (device.logical_available_size(), device.device_available_size()) == before
    assert calls[call](there) is not None
    assert device.available_size() == 0
    device.audit()


def test_a_buffer_that_does_not_fit_changes_nothing():
    """None when device pages are short, and the row keeps its device side."""
    device = DeviceHiSparseAllocator(8, 2)
    row = device.alloc_extend([0], [3], [-1])
    before = device.device_slots(row).tolist()
    assert device.alloc_device_buffer(row, 10) is None
    assert device.device_slots(row).tolist() == before
    assert device.alloc_device_buffer(row, 8).tolist() == [2, 3, 4, 5, 6, 7, 8, 9]
    assert device.device_slots(row).tolist() == [0, 0, 0]
    device.audit()


def start():
    """Logical pages 1 to 4 with device pages 1 to 4; 5 to 8 are free."""
    device = DeviceHiSparseAllocator(8, 2, checked=True)
    device.alloc(8)
    return device


FAULTS = {
    "a logical page twice": (lambda d: (d.free([2]), d.free_segment([2, 3], start_pos=0)), DoubleFree, "page 1 was"),
    "a device page twice": (
        lambda d: [d.free_hisparse_indices([4]) for _ in "ab"],
        DoubleFree,
        "page 2 was freed",
    ),
    "a foreign device page": (lambda d: d.free_hisparse_indices([20]), ForeignPage, "page 10 was freed"),
    "the padding of the device": (lambda d: d.free_hisparse_indices([1]), ForeignPage, "page 0 was freed"),
    "a foreign page's device side": (lambda d: d.free_hisparse([2, 18]), ForeignPage, "page 9 was freed"),
    "grown behind a cold token": (
        lambda d: (d.free_hisparse([8]), d.alloc_extend([1], [2], [8])),
        UseAfterFree,
        "slot 8, which has no device slot",
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_an_audit_tells_of_the_first_fault(fault):
    """What only the device can see raises at the next audit, by name and id."""
    call, error, text = FAULTS[fault]
    device = start()
    call(device)
    with pytest.raises(error, match=text):
        device.audit()
    device.clear()
    device.audit()


@pytest.mark.parametrize("corrupt", [lambda d: d.device_pages[1:2].fill_(3), lambda d: d._holders[2:3].fill_(4)])
def test_an_audit_finds_a_mapping_that_is_one_sided(corrupt):
    """A device page and the logical page that owns it name each other."""
    device = DeviceHiSparseAllocator(8, 2)
    device.alloc(8)
    corrupt(device)
    with pytest.raises(AuditError):
        device.audit()


def test_an_audit_finds_an_owner_that_is_free():
    """A free logical page has no device page."""
    device = DeviceHiSparseAllocator(8, 2)
    device.alloc(8)
    device._pool.leave(torch.tensor([2]))
    with pytest.raises(AuditError):
        device.audit()


def test_what_the_host_sees_is_refused():
    """Sizes, and more device pages than are held, raise at once."""
    device = start()
    with pytest.raises(InvalidSize):
        device.alloc_device_buffer([], -2)
    with pytest.raises(MisalignedSize):
        device.alloc_device_buffer([], 3)
    with pytest.raises(DoubleFree):
        device.free_hisparse_indices(range(2, 12))
    with pytest.raises(InvalidSize):
        DeviceHiSparseAllocator(8, 2, ratio=0)
    device.audit()


@pytest.mark.parametrize("slots", [[2, 3, 2], range(2, 20)])
def test_a_free_of_more_than_one_side_holds_leaves_the_other(slots):
    """Whichever side holds too few pages, the logical side, the device side and the mapping are as they were."""
    device = DeviceHiSparseAllocator(8, 2)
    device.alloc(2)
    device.alloc_logical_only([0], [4], [-1])
    before = device.free_pages().tolist(), device.device_free_pages().tolist(), device.device_pages.tolist()
    with pytest.raises(DoubleFree):
        device.free_segment(slots, start_pos=0)
    after = device.free_pages().tolist(), device.device_free_pages().tolist(), device.device_pages.tolist()
    assert after == before
    device.audit()


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("checked", [False, True])
def test_slots_for_tokens_need_nothing_from_the_device(device, checked):
    """Allocating, growing, decoding and looking up device slots wait for nothing."""
    allocator = DeviceHiSparseAllocator(64, 4, device=device, checked=checked)
    nothing = torch.full((2,), -1, device=device)
    with NoWait(device):
        rows = allocator.alloc_extend([0, 0], [6, 4], nothing)
        rows = allocator.alloc_extend([6, 4], [7, 9], rows[5::4])
        allocator.alloc_logical_only([8], [9], allocator.alloc_decode([8], rows[:1]))
        allocator.device_slots(allocator.alloc(8).reshape(2, 4))


@pytest.mark.parametrize("free", ["free", "free_hisparse", "free_hisparse_indices", "buffer"])
def test_frees_and_buffers_ask_the_device(free):
    """They have to know how many device pages there are."""
    allocator = DeviceHiSparseAllocator(64, 4, device="meta")
    slots = allocator.alloc(8)
    calls = {"buffer": lambda slots: allocator.alloc_device_buffer(slots, 4)}
    with pytest.raises((AssertionError, RuntimeError, NotImplementedError)), NoReadBack():
        calls.get(free, getattr(allocator, free, None))(slots)
