"""The paths that must not wait for a device, each watched; and the watcher, which must see everything that would."""

import pytest
import torch
from read_back_watch import DEVICES, NoReadBack, NoWait, ReadBack, SmallResults

from kvstead.allocators import DevicePagedAllocator, DeviceSWAAllocator, DeviceTokenAllocator

CAUGHT_ON_THE_CPU = {
    "item": lambda x: x[:1].item(),
    "int": lambda x: int(x[:1]),
    "truth of a tensor": lambda x: bool(x[:1]),
    "nonzero": lambda x: x.nonzero(),
    "where without values": lambda x: torch.where(x > 1),
    "unique": lambda x: x.unique(),
    "unique without order": lambda x: torch.unique(x, sorted=False),
    "a run of equals": torch.unique_consecutive,
    "a mask read": lambda x: x[x > 1],
    "a mask written": lambda x: x.__setitem__(x > 1, x[:1]),
    "masked_select": lambda x: x.masked_select(x > 1),
    "equal": lambda x: torch.equal(x, x),
    "repeats of unknown sum": lambda x: x.repeat_interleave(x),
    "bincount": lambda x: x.bincount(),
    "an index without a dimension": lambda x: x[x[0]],
}


@pytest.mark.parametrize("call", CAUGHT_ON_THE_CPU)
def test_the_watcher_sees_it(call):
    """Each way to learn data or a shape from the device fails under the watcher, though it works without."""
    values = torch.arange(4)
    CAUGHT_ON_THE_CPU[call](values.clone())
    with pytest.raises(ReadBack), NoReadBack():
        CAUGHT_ON_THE_CPU[call](values)


CAUGHT_WITHOUT_DATA = {
    "cpu": lambda x: x.cpu(),
    "to the host": lambda x: x.to("cpu", non_blocking=True),
    "copy to the host": lambda x: torch.empty(4, dtype=torch.int64).copy_(x),
    "numpy": lambda x: x.numpy(),
    "a sum of both": lambda x: x + torch.arange(4),
    "a copy that waits": lambda x: torch.arange(4).to(x.device),
    "a copy in place that waits": lambda x: x.copy_(torch.arange(4)),
    "tolist": lambda x: x.tolist(),
    **CAUGHT_ON_THE_CPU,
}


@pytest.mark.parametrize("call", CAUGHT_WITHOUT_DATA)
def test_a_device_without_data_sees_it(call):
    """The same, and every copy that leaves the device or waits, fails where there is no data."""
    values = torch.arange(4, device="meta")
    with pytest.raises((ReadBack, RuntimeError, NotImplementedError, TypeError)), NoReadBack():
        CAUGHT_WITHOUT_DATA[call](values)


def test_the_watcher_lets_the_rest_pass():
    """Arithmetic, gathers, scatters, sorts, prefix sums and copies to the device under way are no read-back."""
    with NoReadBack():
        values = torch.arange(4).to("meta", non_blocking=True)
        values.index_fill_(0, values, 7).index_copy_(0, values, values + 1)
        values.copy_(torch.arange(4), non_blocking=True)
        values[values], values[1:].cumsum(0), values.sort(), values.scatter_reduce_(0, values, values, "amin")
        values.repeat_interleave(values, output_size=9)


def subjects(device):
    """Every class and every order, unchecked and checked."""
    for checked, index_dtype in ((False, torch.int32), (True, torch.int64)):
        options = {"device": device, "index_dtype": index_dtype, "checked": checked}
        yield DeviceTokenAllocator(64, **options)
        yield DevicePagedAllocator(64, 4, order="sorted", **options)
        yield DeviceSWAAllocator(64, 64, 4, order="lifo", **options)


def step(allocator):
    """A step of an engine: rows begin, grow, decode, and end in every way that needs no number from the device."""
    nothing = torch.full((2,), -1, device=allocator.device)
    rows = allocator.alloc_extend([0, 0], [6, 4], nothing)
    grown = allocator.alloc_extend(torch.tensor([6, 4]), torch.tensor([7, 9]), rows[5::4])
    next_slots = allocator.alloc_decode([8, 10], grown[::5])
    whole = allocator.alloc(8)
    assert allocator.alloc(1 << 20) is None
    assert rows.device.type == whole.device.type == next_slots.device.type == allocator.device.type
    for grouped in (False, True):
        if grouped:
            allocator.free_group_begin()
        allocator.free_segment(whole[4:], start_pos=4)
        allocator.free_segments([(whole[:4], 0), (rows[6:], 0)])
        allocator.free(rows[:6], num_pages=-(-6 // allocator.page_size))
        allocator.free_group_end()
        rows, whole = allocator.alloc_extend([0, 0], [6, 4], nothing), allocator.alloc(8)
    allocator.clear()


@pytest.mark.parametrize("device", DEVICES)
def test_a_step_reads_nothing_back(device):
    """Allocating, growing, freeing by segment or with a known number of pages, and groups wait for nothing."""
    for allocator in subjects(device):
        with NoWait(device):
            step(allocator)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("checked", [False, True])
def test_windows_that_move_on_read_nothing_back(device, checked):
    """Tails, window frees and full-only frees by segment, and looking up window slots wait for nothing."""
    allocator = DeviceSWAAllocator(64, 64, 4, device=device, checked=checked)
    last = torch.full((1,), -1, device=device)
    with NoWait(device):
        row = allocator.alloc_extend_swa_tail([0], [14], last, 6)
        for free in (allocator.free_swa_segments, allocator.free_full_segments):
            with allocator.defer_frees():
                free([(row[8:12], 8)])
        allocator.free_full_segment(row[:8], start_pos=0)
        allocator.free_swa_segment(row[12:], start_pos=12)
        allocator.window_slots(row.reshape(2, -1))


@pytest.mark.parametrize("checked", [False, True])
@pytest.mark.parametrize("order", ["lifo", "fifo"])
def test_a_step_costs_what_it_touches(order, checked):
    """No operator of a step makes a tensor as long as the pool; nor do frees of slots in any order."""
    paged = DevicePagedAllocator(1 << 19, 4, order=order, checked=checked)
    windows = DeviceSWAAllocator(1 << 19, 1 << 18, 4, order=order, checked=checked)
    with SmallResults(100):
        for allocator in (paged, windows):
            step(allocator)
            allocator.free(allocator.alloc(16))
    with pytest.raises(AssertionError, match="made 131072 elements"), SmallResults(100):
        paged.free_pages()


def test_an_unknown_number_of_pages_is_read():
    """Freeing slots in any order waits once, for that number; at page size 1 it does not."""
    paged, token = DevicePagedAllocator(16, 4), DeviceTokenAllocator(16)
    slots = paged.alloc(8)
    with NoReadBack():
        token.free(token.alloc(8))
    with pytest.raises(ReadBack, match="_local_scalar_dense"), NoReadBack():
        paged.free(slots)
    windows = DeviceSWAAllocator(16, 16, 4, device="meta")
    slots = windows.alloc(8)
    for free in (windows.free, windows.free_full, windows.free_swa):
        with pytest.raises((NotImplementedError, RuntimeError, ReadBack)), NoReadBack():
            free(slots)


def test_an_audit_is_allowed_to_wait():
    """The one call that asks the device whether all was well."""
    with pytest.raises(ReadBack), NoReadBack():
        DevicePagedAllocator(16, 4, checked=True).audit()
