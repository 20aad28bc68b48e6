"""Long lives of the device-resident allocators beside the host's."""

import random

import pytest
import torch
from device_hot_pair import DeviceHotPair
from device_pair import DevicePair, DeviceWindowPair
from hypothesis import given, settings
from hypothesis import strategies as st

from kvstead.allocators import (
    DeviceHiSparseAllocator,
    DevicePagedAllocator,
    DeviceSWAAllocator,
    HiSparseAllocator,
    PagedAllocator,
    SWAAllocator,
)

CLASSES = {
    "paged": (PagedAllocator, DevicePagedAllocator, DevicePair),
    "windows": (SWAAllocator, DeviceSWAAllocator, DeviceWindowPair),
    "hisparse": (HiSparseAllocator, DeviceHiSparseAllocator, DeviceHotPair),
}


@pytest.mark.soak
@pytest.mark.parametrize("name", CLASSES)
@settings(max_examples=200)
@given(
    st.integers(0, 2**32),
    st.integers(0, 30),
    st.sampled_from([1, 2, 3, 4, 16, 64]),
    st.sampled_from(["lifo", "fifo"]),
    st.sampled_from([torch.int32, torch.int64]),
    st.booleans(),
)
def test_same_ids_for_long(name, seed, num_pages, page_size, order, dtype, checked):
    """After any legal life every id, count and list is the host's, and no check has found anything."""
    host, device, pair = CLASSES[name]
    sizes = [num_pages * page_size] * (1 + (name == "windows"))
    resident = device(*sizes, page_size, order=order, index_dtype=dtype, checked=checked)
    pair(host(*sizes, page_size, order=order), resident, random.Random(seed)).run(60)
    resident.audit()
