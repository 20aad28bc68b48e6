from types import SimpleNamespace

import pytest
import torch
from replayer import read_scripts, replay

from drop_in import DropIn, Storage
from kvstead.errors import DoubleFree, FreeGroupError, InvalidSize, LayoutError, MisalignedSize, UseAfterFree
from kvstead.integrations.sglang.allocator import backends
from kvstead.integrations.sglang.allocator.hisparse import (
    DeepSeekV4HiSparseTokenToKVPoolAllocator,
    HiSparseTokenToKVPoolAllocator,
)
from kvstead.integrations.sglang.allocator.swa import SWATokenToKVPoolAllocator
from paths import SHARED, needs_shared


class DevicePool:
    """Stands for a pool with a device side."""

    dtype, device = torch.bfloat16, "cpu"

    def __init__(self, size=0, page_size=1):
        self.size, self.page_size = size, page_size

    def register_mapping(self, mapping):
        """Where each entry's device side is."""
        self.mapping = mapping


class WindowStorage(Storage):
    """Two sides, and a compressed pool."""

    def __init__(self, full, size, page_size):
        self.c4_kv_pool = DevicePool(size, page_size)
        self.c4_logical_size = full // 4


def hot_allocator(size=24, page_size=4, ratio=2, *, need_sort=False):
    return HiSparseTokenToKVPoolAllocator(
        size, page_size, torch.bfloat16, "cpu", DevicePool(), need_sort, host_to_device_ratio=ratio
    )


def deepseek(full=64, window=64, size=16, page_size=8):
    storage = WindowStorage(full, size, page_size // 4)
    logical = SWATokenToKVPoolAllocator(full, window, page_size, torch.bfloat16, "cpu", storage, need_sort=False)
    return DeepSeekV4HiSparseTokenToKVPoolAllocator(logical)


def ints(*values):
    return torch.tensor(values, dtype=torch.int64)


def grow(allocator, prefix_lens, seq_lens, last_locs, how="alloc_extend", *more):
    prefix, seq, last = ints(*prefix_lens), ints(*seq_lens), ints(*last_locs)
    return getattr(allocator, how)(prefix, prefix, seq, seq, last, int((seq - prefix).sum()), *more)


class HotDropIn(DropIn):
    """The calls of a kvstead allocator with a device side."""

    def alloc_logical_only(self, prefix_lens, seq_lens, last_locs):
        """Lengths go twice, and their sum with them."""
        return grow(self.inner, prefix_lens, seq_lens, last_locs, "alloc_logical_only")

    def device_slots(self, slots):
        """The device side of slots, as the pool finds it."""
        found = self.inner.full_to_hisparse_device_index_mapping[torch.as_tensor(slots, dtype=torch.int64)]
        assert torch.equal(found, self.inner.core.device_slots(slots))
        return found

    def logical_available_size(self):
        """The logical side's."""
        return self.inner.logical_attn_allocator.available_size()

    def device_available_size(self):
        """The hot side's."""
        return self.inner.hisparse_attn_allocator.available_size()


@pytest.fixture(params=["host", "device"])
def kept_on(request, monkeypatch):
    """The free lists on the host, or where they are on an accelerator."""
    monkeypatch.setattr(backends, "is_resident", lambda _device: request.param == "device")


@needs_shared
@pytest.mark.usefixtures("kept_on")
@pytest.mark.parametrize("need_sort", [False, True])
def test_recorded_answers_are_given_through_the_drop_in(need_sort):
    """Every recorded script has the recorded answers, under page renaming, and the tensor agrees with the allocator."""
    scripts = list(read_scripts(SHARED / "conformance" / "hisparse.jsonl"))
    assert len(scripts) == 34
    for script in scripts[need_sort::2]:
        replay(script, HotDropIn(hot_allocator(script.size, script.page_size, need_sort=need_sort)))


@pytest.mark.usefixtures("kept_on")
def test_sizes_are_those_of_the_logical_side():
    """`size` counts logical slots, as rows do; the views of both sides have their own sizes."""
    allocator = hot_allocator(24, 4, 3)
    assert (allocator.size, allocator.size_full, allocator.available_size()) == (72, 72, 24)
    logical, device = allocator.logical_attn_allocator, allocator.hisparse_attn_allocator
    assert (logical.size, logical.num_pages, logical.available_size()) == (72, 18, 72)
    assert (device.size, device.num_pages, device.available_size()) == (24, 6, 24)
    assert allocator.compress_ratio == 1
    assert allocator.free_pages is None
    assert logical.free_pages.tolist() == list(range(1, 19))
    assert device.free_pages.tolist() == list(range(1, 7))
    for view in (logical, device):
        with pytest.raises(NotImplementedError, match=r"\. "):
            view.clear()
    with pytest.raises(NotImplementedError, match=r"\. "):
        allocator.resize(SimpleNamespace(max_total_num_tokens=8))


@pytest.mark.usefixtures("kept_on")
def test_one_side_can_be_used_alone():
    """Scratch and buffers come from the hot side, rows without device slots from the logical one."""
    allocator = hot_allocator()
    logical, device = allocator.logical_attn_allocator, allocator.hisparse_attn_allocator
    scratch = device.alloc(8)
    assert (allocator.available_size(), device.available_size()) == (16, 16)
    rows = [logical.alloc(4), grow(logical, [0], [4], [-1])]
    last = rows[1][-1:]
    rows.append(logical.alloc_decode(ints(5), ints(5), last))
    assert logical.available_size() == 36
    assert not allocator.full_to_hisparse_device_index_mapping[torch.cat(rows)].any()
    logical.free_group_begin()
    logical.free(torch.cat(rows))
    device.free(scratch)
    assert logical.free_group is None
    logical.free_group_end()
    assert (logical.available_size(), device.available_size()) == (48, 24)


def test_writes_of_the_coordinator_do_not_change_what_is_freed():
    """A mapping that points at a buffer, or no longer at anything, never makes a free take what is not the row's."""
    allocator = hot_allocator()
    mapping = allocator.full_to_hisparse_device_index_mapping
    assert mapping is allocator.get_kvcache().mapping
    row = grow(allocator, [0], [6], [-1])
    buffer = allocator.alloc_device_buffer(row.int(), 8)
    assert not mapping[row].any()
    token = allocator.alloc_decode(ints(7), ints(7), row[-1:])
    mapping[token] = buffer[7:]  # the newest token lies in the buffer
    other = grow(allocator, [0], [8], [-1])
    allocator.free(torch.cat([row, token]))  # with the buffer's slot still in the mapping
    assert mapping[token] == 0
    assert allocator.hisparse_attn_allocator.available_size() == 8
    allocator.free_hisparse_indices(torch.cat([ints(0, 1, 3), buffer]))
    assert allocator.hisparse_attn_allocator.available_size() == 16
    with pytest.raises(DoubleFree):
        allocator.free_hisparse_indices(buffer)
    allocator.free_hisparse(other)
    assert not mapping[other].any()
    allocator.clear()
    assert mapping[:-1].sum() == 0
    assert mapping[-1] == -1
    assert allocator.get_last_loc_hisparse_device(ints(-1, 4)).tolist() == [-1, 0]
    allocator.core.audit()


@pytest.mark.usefixtures("kept_on")
def test_frees_in_a_group_take_effect_at_once():
    """Between begin and end each free has cleared its mapping when it returns."""
    allocator = hot_allocator()
    rows = [grow(allocator, [0], [8], [-1]) for _ in range(2)]
    allocator.free_group_begin()
    assert allocator.free_group is None
    allocator.free_segments([(rows[0][:4], 0), (rows[0][4:], 4)])
    allocator.free_segment(rows[1], start_pos=0)
    assert allocator.available_size() == 24
    assert not allocator.full_to_hisparse_device_index_mapping[torch.cat(rows)].any()
    allocator.free_group_end()
    assert allocator.verify_byte_accounting() == []


def test_row_without_device_slots_does_not_grow_into_the_padding():
    """Where SGLang's class hands out slots 1 and 2, ours raises."""
    allocator = hot_allocator()
    row = grow(allocator, [0], [5], [-1], "alloc_logical_only")
    with pytest.raises(UseAfterFree, match=r"alloc_logical_only"):
        grow(allocator, [5], [7], row[-1:])
    assert allocator.available_size() == 24


def test_requests_reserve_their_buffers():
    """The tokens of a prompt count towards the buffer, scratch is charged once, and only whole pages count."""
    allocator = hot_allocator()
    assert allocator.request_slot_reserve(has_req_pool_slot=False) == 0
    allocator.configure_spec_scratch(8, device_buffer_size=12)
    assert allocator.request_slot_reserve(has_req_pool_slot=False) == 20
    assert allocator.request_slot_reserve(has_req_pool_slot=True, prefill_tokens=5) == 4
    for sizes in ((3, 0), (-4, 0), (4, 5)):
        with pytest.raises(MisalignedSize, match=r"\. "):
            allocator.configure_spec_scratch(sizes[0], device_buffer_size=sizes[1])
    allocator.configure_spec_scratch(0, device_buffer_size=12)
    assert allocator.request_slot_reserve(has_req_pool_slot=False) == 0


def test_blocks_lie_where_the_mapping_says():
    """In pages of eight tokens each whole block of four has a device slot, and nothing else has."""
    allocator = deepseek()
    row = grow(allocator, [0], [22], [-1])
    assert row.numel() == 22
    ends = row[(row + 1) % 4 == 0]
    mapping = allocator.full_to_hisparse_device_index_mapping
    assert torch.equal(mapping[ends // 4], allocator.core.device_slots(ends))
    assert (mapping > 0).sum() == 5
    assert torch.equal(allocator.translate_loc_from_full_to_swa(row), allocator.core.window_slots(row))
    assert allocator.get_last_loc_compressed(ints(-1, 3, 4, 7)).tolist() == [-1, 0, 0, 1]
    assert (allocator.full_available_size(), allocator.swa_available_size(), allocator.size_swa) == (40, 40, 64)
    token = allocator.alloc_decode(ints(23), ints(23), row[-1:])
    assert allocator.translate_swa_indices_for_transfer(token) > 0
    allocator.free_swa_segment(row[:8], start_pos=0)
    assert not allocator.full_to_swa_index_mapping[row[:8]].any()
    assert "hisparse-available" in allocator.debug_print()
    with pytest.raises(NotImplementedError):
        allocator.alloc(8)


def test_device_pages_of_a_finished_request_wait_in_the_group():
    """`free` alone frees compressed pages, and they wait as all others do."""
    allocator = deepseek()
    rows = [grow(allocator, [0], [16], [-1]) for _ in range(2)]
    allocator.free_group_begin()
    with pytest.raises(FreeGroupError):
        allocator.free_group_begin()
    allocator.free_swa(rows[1])
    allocator.free(rows[0])
    allocator.free_full(rows[1])
    assert allocator.hisparse_attn_allocator.available_size() == 8
    assert not allocator.full_to_hisparse_device_index_mapping[:-1].any()
    assert not allocator.full_to_swa_index_mapping[:-1].any()
    allocator.free_group_end()
    assert (allocator.full_available_size(), allocator.swa_available_size()) == (64, 64)
    assert allocator.hisparse_attn_allocator.available_size() == 16
    assert allocator.swa_capacity_and_available(full_capacity=1, swa_capacity=2) == ((1, 64), (2, 64))
    allocator.clear()
    assert allocator.verify_byte_accounting() == []


def test_the_newest_block_begins_the_last_page_of_a_buffer():
    """For a row with more blocks than its buffer, the newest lies in the reserved place, and its page stays."""
    allocator = deepseek()
    row = grow(allocator, [0], [60], [-1])
    entries = row[(row + 1) % 4 == 0] // 4
    hot = allocator.full_to_hisparse_device_index_mapping[entries].tolist()
    buffer = allocator.alloc_device_buffer(entries, 6).tolist()
    assert buffer == [*hot[:4], hot[-1], hot[5]]
    assert allocator.hisparse_attn_allocator.available_size() == 16 - 8
    assert not allocator.full_to_hisparse_device_index_mapping[entries].any()
    allocator.free_hisparse_indices(ints(*buffer))
    assert allocator.hisparse_attn_allocator.available_size() == 16
    short = grow(allocator, [60], [64], [int(row[-1])], "alloc_logical_only")
    assert allocator.alloc_device_buffer(short[(short + 1) % 4 == 0] // 4, 4).numel() == 4


def test_rows_can_have_windows_without_device_slots():
    """Rows and tails without device slots have window slots; freed entries lose only the device slots."""
    allocator = deepseek()
    row = grow(allocator, [0], [16], [-1], "alloc_logical_only")
    assert (allocator.full_to_swa_index_mapping[row] > 0).all()
    tail = grow(allocator, [0], [16], [-1], "alloc_extend_swa_tail", 8)
    assert (allocator.translate_loc_from_full_to_swa(tail) > 0).tolist() == [False] * 8 + [True] * 8
    assert not allocator.full_to_hisparse_device_index_mapping[:-1].any()
    hot = grow(allocator, [0], [16], [-1])
    allocator.free_compressed(hot[3::4] // 4)
    assert allocator.hisparse_attn_allocator.available_size() == 16
    assert allocator.full_available_size() == 16
    assert allocator.reclaim_for_prealloc(None, 0, 0) is None


def test_compressed_pool_of_another_page_size_is_refused():
    """With four tokens a slot, a page of eight tokens is a page of two slots."""
    storage = WindowStorage(64, 16, 4)
    logical = SWATokenToKVPoolAllocator(64, 64, 8, torch.bfloat16, "cpu", storage, need_sort=False)
    with pytest.raises(LayoutError, match=r"\. "):
        DeepSeekV4HiSparseTokenToKVPoolAllocator(logical)
    with pytest.raises(InvalidSize):
        hot_allocator(ratio=0)
