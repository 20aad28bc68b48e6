"""What SGLang's scheduler does every step must not wait for the device, through the drop-in classes either."""

import pytest
import torch
from read_back_watch import DEVICES, NoWait

from drop_in import Storage
from kvstead.integrations.sglang.allocator import backends
from kvstead.integrations.sglang.allocator.npu import NPUPagedTokenToKVPoolAllocator
from kvstead.integrations.sglang.allocator.paged import PagedTokenToKVPoolAllocator
from kvstead.integrations.sglang.allocator.swa import SWATokenToKVPoolAllocator
from kvstead.integrations.sglang.allocator.token import TokenToKVPoolAllocator


@pytest.fixture(autouse=True)
def on_device(monkeypatch):
    """Uses the allocators for accelerators on the CPU, too."""
    monkeypatch.setattr(backends, "is_resident", lambda _device: True)


def make(cls, device, *sizes, need_sort=False):
    return cls(*sizes, torch.bfloat16, device, Storage(), need_sort)


def step(allocator, device, index_dtype=torch.int64):
    """A batch starts, decodes, and is freed in one group."""
    prefix, seq = torch.tensor([0, 0]), torch.tensor([7, 9])
    unread, last = torch.zeros(2, device=device), torch.full((2,), -1, device=device)
    with NoWait(device):
        slots = allocator.alloc_extend(unread, prefix, unread, seq, last, 16)
        new = allocator.alloc_decode(unread, seq + 1, slots[6::9])
        allocator.free_group_begin()
        allocator.free_segment(slots[:7], start_pos=0)
        allocator.free_segments([(slots[7:], 0)] if allocator.page_size > 1 else [(slots[7:], 0), (new, 9)])
        allocator.free_group_end()
        more = allocator.alloc(4 * allocator.page_size)
        allocator.free_segment(more, start_pos=0)
    assert {slots.dtype, new.dtype, more.dtype} == {index_dtype}


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("need_sort", [False, True])
def test_one_pool_never_waits_for_the_device(device, need_sort):
    """Growing, decoding, freeing and groups of tokens and of pages read nothing back, sorted or not, on Ascend too."""
    step(make(TokenToKVPoolAllocator, device, 64, need_sort=need_sort), device)
    step(make(PagedTokenToKVPoolAllocator, device, 64, 4, need_sort=need_sort), device)
    step(make(NPUPagedTokenToKVPoolAllocator, device, 64, 4, need_sort=need_sort), device, torch.int32)


@pytest.mark.parametrize("device", DEVICES)
def test_page_ids_are_freed_without_waiting(device):
    """Whole pages by id, one page and several."""
    allocator = make(PagedTokenToKVPoolAllocator, device, 64, 4)
    allocator.alloc(32)
    page_ids = torch.arange(1, 4, device=device)
    with NoWait(device):
        allocator.free_page_ids(page_ids)
    assert allocator.available_size() == 44


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("page_size", [1, 4])
def test_two_sides_never_wait_for_the_device(device, page_size):
    """The same holds with windows, which move on, are linked, unlinked and translated."""
    allocator = make(SWATokenToKVPoolAllocator, device, 64, 64, page_size)
    step(allocator, device)
    allocator.clear()
    row = allocator.alloc(8 * page_size)
    half = 4 * page_size
    with NoWait(device):
        allocator.free_group_begin()
        allocator.free_swa_segment(row[:half], start_pos=0)
        allocator.free_full_segment(row[:half], start_pos=0)
        allocator.free_group_end()
        windows = allocator.translate_loc_from_full_to_swa(row[half:])
        allocator.clear_full_to_swa_mapping(row[half:])
        allocator.set_full_to_swa_mapping(row[half:], windows)
        slots, window_slots = (
            side.alloc(half) for side in (allocator.full_attn_allocator, allocator.swa_attn_allocator)
        )
        allocator.set_full_to_swa_mapping(slots, window_slots)
        allocator.free_segments([(row[half:], half)])
        allocator.clear()
    assert allocator.available_size() == 64
