import random
from types import SimpleNamespace

import pytest
import torch

from drop_in import Storage
from kvstead.errors import DoubleFree, ForeignPage, FreeGroupError, InvalidSize, MisalignedSegment, WindowTaken
from kvstead.integrations.sglang.allocator import backends
from kvstead.integrations.sglang.allocator.npu import NPUPagedTokenToKVPoolAllocator
from kvstead.integrations.sglang.allocator.paged import PagedTokenToKVPoolAllocator
from kvstead.integrations.sglang.allocator.swa import (
    PureSWATokenToKVPoolAllocator,
    SWATokenToKVPoolAllocator,
    is_swa_req_ring,
)
from kvstead.integrations.sglang.allocator.token import TokenToKVPoolAllocator


def token(size=8, *, need_sort=False):
    return TokenToKVPoolAllocator(size, torch.bfloat16, "cpu", Storage(), need_sort)


def paged(size=32, page_size=4, *, need_sort=False, cls=PagedTokenToKVPoolAllocator):
    return cls(size, page_size, torch.bfloat16, "cpu", Storage(), need_sort)


def windowed(size=32, size_swa=32, page_size=4, *, need_sort=False):
    return SWATokenToKVPoolAllocator(size, size_swa, page_size, torch.bfloat16, "cpu", Storage(), need_sort)


def pure(size=8):
    return PureSWATokenToKVPoolAllocator(size, 1, torch.bfloat16, "cpu", Storage(), need_sort=False)


def ints(*values):
    return torch.tensor(values, dtype=torch.int64)


def grow(allocator, prefix_lens, seq_lens, last_locs, tail=None):
    prefix, seq, last = ints(*prefix_lens), ints(*seq_lens), ints(*last_locs)
    args = (prefix, prefix, seq, seq, last, int((seq - prefix).sum()))
    return allocator.alloc_extend(*args) if tail is None else allocator.alloc_extend_swa_tail(*args, tail)


def test_freed_slots_queue_behind_all_others():
    """`free_pages` ends with what was freed last, in the order given, and begins with what is handed out next."""
    allocator = token()
    allocator.alloc(4)
    allocator.free(ints(3, 1))
    allocator.free_page_ids(ints(4))
    assert allocator.free_pages.tolist() == [5, 6, 7, 8, 3, 1, 4]
    assert allocator.get_all_free_pages().tolist() == allocator.free_pages.tolist()
    assert allocator.alloc(5).tolist() == [5, 6, 7, 8, 3]
    assert (allocator.size, allocator.size_full, allocator.available_size()) == (8, 8, 2)


def test_freed_pages_are_reused_first():
    """`free_pages` begins with what was freed last; nothing waits to be sorted."""
    allocator = paged(34)
    allocator.alloc(16)
    allocator.free_segment(torch.arange(8, 15), start_pos=4)
    assert allocator.free_pages.tolist() == [2, 3, 5, 6, 7, 8]
    allocator.free_page_ids(ints(4, 1))
    assert allocator.free_pages.tolist() == [4, 1, 2, 3, 5, 6, 7, 8]
    assert allocator.release_pages.tolist() == []
    assert (allocator.size, allocator.num_pages, allocator.available_size()) == (34, 8, 32)


@pytest.mark.parametrize("make", [token, paged, windowed])
def test_sorting_hands_out_the_lowest_pages(make):
    """With `need_sort`, freed pages are sorted in at once; a merge has nothing to do."""
    allocator = make(need_sort=True)
    slots = grow(allocator, [0], [8], [-1])
    allocator.free(slots.flip(0))
    allocator.merge_and_sort_free()
    assert allocator.available_size() == allocator.size
    assert grow(allocator, [0], [8], [-1]).tolist() == slots.tolist()


def test_ascend_devices_get_int32():
    """Every call that hands out slots hands out int32, and int32 slots can be freed."""
    allocator = paged(cls=NPUPagedTokenToKVPoolAllocator)
    rows = grow(allocator, [0], [5], [-1])
    next_slot = allocator.alloc_decode(ints(6), ints(6), rows[-1:])
    assert {slots.dtype for slots in (rows, next_slot, allocator.alloc(4))} == {torch.int32}
    assert next_slot.tolist() == [9]
    allocator.free_segment(torch.cat((rows, next_slot)), start_pos=0)
    assert allocator.available_size() == 28
    assert grow(allocator, [0], [40], [-1]) is None


def test_page_named_twice_by_id_is_refused():
    """Pages can be freed by id, each once."""
    allocator = paged()
    allocator.alloc(8)
    with pytest.raises(DoubleFree, match="page 1 "):
        allocator.free_page_ids(ints(2, 1, 1))
    assert allocator.available_size() == 24


@pytest.mark.parametrize("make", [token, paged, windowed, pure])
def test_group_is_none_or_a_list_and_owns_what_it_holds(make):
    """Frees wait in one group, even if the caller's buffer is overwritten; clear drops it; a second begin raises."""
    allocator = make()
    slots = allocator.alloc(4)
    assert allocator.free_group is None
    allocator.free_group_begin()
    assert allocator.free_group == []
    allocator.free(slots)
    slots.zero_()
    with pytest.raises(FreeGroupError):
        allocator.free_group_begin()
    assert len(allocator.free_group) >= 1
    before = allocator.available_size()
    allocator.free_group_end()
    allocator.free_group_end()
    assert (allocator.available_size(), allocator.free_group) == (before + 4, None)
    slots = allocator.alloc(4)
    allocator.free_group_begin()
    allocator.free(slots)
    allocator.clear()
    allocator.free_group_end()
    assert (allocator.available_size(), allocator.free_group) == (allocator.size, None)


def test_resize_frees_all_slots_and_counts_the_new_size():
    """Slots that were handed out are forgotten, and the new size counts everywhere."""
    allocator = paged()
    allocator.alloc(8)
    allocator.free_group_begin()
    allocator.resize(SimpleNamespace(max_total_num_tokens=18))
    assert (allocator.size, allocator.num_pages, allocator.available_size()) == (18, 4, 16)
    assert allocator.free_pages.tolist() == [1, 2, 3, 4]
    assert allocator.free_group is None


def test_both_sides_are_resized_and_the_mapping_stays():
    """The tensor that kernels read is the same one, empty again, and cannot grow."""
    allocator = windowed()
    allocator.alloc(8)
    mapping = allocator.full_to_swa_index_mapping
    allocator.resize(SimpleNamespace(full_max_total_num_tokens=24, swa_max_total_num_tokens=16))
    assert allocator.full_to_swa_index_mapping is mapping
    assert mapping.tolist() == [0] * 36 + [-1]
    assert (allocator.size, allocator.size_full, allocator.size_swa) == (16, 24, 16)
    assert (allocator.full_attn_allocator.num_pages, allocator.swa_attn_allocator.num_pages) == (6, 4)
    assert (allocator.full_available_size(), allocator.swa_available_size()) == (24, 16)
    with pytest.raises(InvalidSize, match="36"):
        allocator.resize(SimpleNamespace(full_max_total_num_tokens=36, swa_max_total_num_tokens=16))
    assert allocator.size_full == 24


def test_mapping_follows_every_call_in_place():
    """The registered tensor says where windows are, through growth, a tail, frees of either side and a clear."""
    allocator = windowed()
    mapping = allocator.get_kvcache().full_to_swa_index_mapping
    row = grow(allocator, [0], [6], [-1])
    head = grow(allocator, [0], [6], [-1], tail=2)
    assert mapping[row].tolist() == [4, 5, 6, 7, 8, 9]
    assert mapping[head].tolist() == [0, 0, 0, 0, 12, 13]
    assert allocator.translate_loc_from_full_to_swa(ints(-1, *row[:2])).tolist() == [-1, 4, 5]
    allocator.free_swa(row[1:2])
    assert mapping[row].tolist() == [0, 0, 0, 0, 8, 9]
    allocator.free_full_segments([(row[:4], 0), (row[4:], 4)])
    allocator.free_segment(head, start_pos=0)
    assert mapping.tolist() == [0] * 36 + [-1]
    allocator.alloc(32)
    assert mapping.count_nonzero() == 33
    allocator.clear()
    assert mapping.tolist() == [0] * 36 + [-1]


def test_refused_free_does_not_change_the_mapping():
    """Nothing is erased for slots that could not be freed."""
    allocator = windowed()
    slots = allocator.alloc(8)
    mapping = allocator.full_to_swa_index_mapping.clone()
    with pytest.raises(ForeignPage):
        allocator.free(torch.cat((slots, ints(0))))
    with pytest.raises(MisalignedSegment):
        allocator.free_swa_segment(slots[1:], start_pos=1)
    with pytest.raises(DoubleFree):
        allocator.free_segments([(slots, 0), (slots[4:], 4)])
    assert torch.equal(allocator.full_to_swa_index_mapping, mapping)


def test_window_frees_of_a_group_are_counted_call_by_call():
    """`swa_free_group` holds one entry a call, and the window side gets them when the group ends."""
    allocator = windowed()
    slots = allocator.alloc(12)
    assert allocator.swa_free_group == []
    allocator.free_group_begin()
    for start in (0, 4, 8):
        allocator.free_swa(slots[start : start + 4])
    assert (len(allocator.swa_free_group), allocator.swa_available_size()) == (3, 20)
    allocator.free_group_end()
    assert (allocator.swa_free_group, allocator.swa_available_size(), allocator.full_available_size()) == ([], 32, 20)


def test_pages_of_both_sides_can_be_linked():
    """A transfer takes pages of each side alone and links them; an aborted one frees them."""
    allocator = windowed()
    full, window = allocator.full_attn_allocator, allocator.swa_attn_allocator
    slots, window_slots = full.alloc(12), window.alloc(8)
    assert (full.available_size(), window.available_size()) == (20, 24)
    allocator.set_full_to_swa_mapping(slots[4:], window_slots)
    assert allocator.translate_swa_indices_for_transfer(slots).tolist() == [0] * 4 + window_slots.tolist()
    with pytest.raises(WindowTaken):
        window.free(window_slots)
    allocator.clear_full_to_swa_mapping(slots[4:8])
    window.free_segment(window_slots[:4], start_pos=0)
    assert (full.available_size(), window.available_size()) == (20, 28)
    full.free_segment(slots[:4], start_pos=0)
    full.free(slots[4:])
    assert (full.available_size(), window.available_size()) == (32, 32)
    assert full.free_pages.tolist() == [2, 3, 1, 4, 5, 6, 7, 8]
    assert sorted(window.get_all_free_pages().tolist()) == list(range(1, 9))
    assert allocator.verify_byte_accounting() == []


def test_windows_of_a_duplicate_move_to_the_row_that_stays():
    """A mapping can be cleared on one row and set on another, as a prefix tree does when it keeps the older row."""
    allocator = windowed()
    kept, incoming = allocator.alloc(8), allocator.alloc(8)
    allocator.free_swa(kept)
    windows = allocator.translate_swa_indices_for_transfer(incoming)
    allocator.clear_full_to_swa_mapping(incoming)
    allocator.set_full_to_swa_mapping(kept, windows)
    allocator.free_full_segment(incoming, start_pos=0)
    assert allocator.translate_loc_from_full_to_swa(kept).tolist() == windows.tolist()
    assert (allocator.full_available_size(), allocator.swa_available_size()) == (24, 24)
    allocator.free(kept)
    assert (allocator.full_available_size(), allocator.swa_available_size()) == (32, 32)


def test_sides_share_the_group_and_cannot_be_cleared_alone():
    """A side's group is its owner's; clearing one side alone raises."""
    allocator = windowed()
    slots = allocator.alloc(4)
    side = allocator.full_attn_allocator
    side.free_group_begin()
    side.free(slots)
    assert allocator.free_group
    assert side.free_group == allocator.free_group
    side.free_group_end()
    assert allocator.full_available_size() == 32
    with pytest.raises(NotImplementedError, match="Call clear"):
        allocator.swa_attn_allocator.clear()


def test_new_pages_are_available_when_both_sides_have_them():
    """Pages are available when each side has so many."""
    allocator = windowed(32, 16)
    assert (allocator.size, allocator.size_full, allocator.size_swa) == (16, 32, 16)
    assert allocator.new_pages_available(8, 4)
    assert not allocator.new_pages_available(8, 5)
    assert not allocator.new_pages_available(9, 4)
    grow(allocator, [0], [16], [-1], tail=4)
    assert (allocator._conserve_full_available_size(), allocator._conserve_swa_available_size()) == (16, 12)
    assert allocator.swa_capacity_and_available(full_capacity=1, swa_capacity=2) == ((1, 16), (2, 12))
    assert allocator.debug_print() == "#full-available-size: 16, #swa-available-size: 12, "
    assert allocator.free_pages is None
    assert allocator.get_all_free_pages() is None


def test_pure_windows_are_one_pool_and_map_to_themselves():
    """Both sides are one object, the window slot of a slot is always the slot, and a full side does not exist."""
    allocator = pure()
    mapping = allocator.full_to_swa_index_mapping
    identity = [*range(9), -1]
    assert allocator.full_attn_allocator is allocator.swa_attn_allocator
    assert allocator.full_attn_allocator.free_pages.tolist() == list(range(1, 9))
    slots = allocator.full_attn_allocator.alloc(4)
    assert allocator.translate_loc_from_full_to_swa(slots) is slots
    allocator.free_group_begin()
    allocator.free_swa(slots[:2])
    assert len(allocator.swa_free_group) == 1
    allocator.free_group_end()
    allocator.free_full(slots)
    allocator.free_full_segment(slots, start_pos=0)
    assert (allocator.available_size(), allocator.full_available_size(), allocator.swa_available_size()) == (6, 6, 6)
    with pytest.raises(DoubleFree):
        allocator.free(slots)
    allocator.free_segment(slots[2:], start_pos=2)
    assert mapping.tolist() == identity
    allocator.clear()
    allocator.resize(SimpleNamespace(full_max_total_num_tokens=0, swa_max_total_num_tokens=4))
    assert mapping.tolist() == identity
    assert (allocator.available_size(), allocator.size, allocator.size_full, allocator.size_swa) == (4, 4, 4, 4)
    with pytest.raises(InvalidSize):
        allocator.resize(SimpleNamespace(full_max_total_num_tokens=0, swa_max_total_num_tokens=9))
    assert (allocator.available_size(), allocator.size) == (4, 4)
    with pytest.raises(NotImplementedError):
        allocator.set_full_to_swa_mapping(slots, slots)
    with pytest.raises(NotImplementedError):
        allocator.clear_full_to_swa_mapping(slots)


def test_copies_to_the_host_are_made_by_the_pool():
    """Both directions go to the pool, with the indices of states and rows."""

    class Pool(Storage):
        """Notes what it is asked."""

        def get_cpu_copy(self, indices, **others):
            """To the host."""
            return "copy", indices, others

        def load_cpu_copy(self, copy, indices, **others):
            """Back."""
            return "load", copy, indices, others

    allocator = TokenToKVPoolAllocator(8, torch.bfloat16, "cpu", Pool(), need_sort=False)
    others = {"mamba_indices": 1, "req_pool_index": 2}
    assert allocator.get_cpu_copy([3], 1, 2) == ("copy", [3], others)
    assert allocator.load_cpu_copy("it", [3], **others) == ("load", "it", [3], others)


def test_faults_that_an_audit_finds_are_reported_in_words():
    """The error of an audit is returned as text."""
    allocator = paged()
    assert allocator.verify_byte_accounting() == []
    allocator.core.page_states()[3] = 1
    assert "page states" in allocator.verify_byte_accounting()[0]


@pytest.mark.parametrize("page_size", [1, 4])
def test_mapping_that_somebody_else_wrote_is_reported(page_size):
    """Whatever the calls so far: no fault, until an entry is written that no call made; the last one counts too."""
    allocator = windowed(page_size=page_size)
    rng = random.Random(page_size)
    rows = []
    for _ in range(60):
        if rng.random() < 1 / 2 and (row := grow(allocator, [0], [rng.randrange(1, 9)], [-1])) is not None:
            rows.append(row)
        elif rows:
            row = rows.pop(rng.randrange(len(rows)))
            if rng.random() < 1 / 2:
                allocator.free_swa(row)
            allocator.free(row)
        assert allocator.verify_byte_accounting() == []
    slots = grow(allocator, [0], [3], [-1])
    mapping = allocator.full_to_swa_index_mapping
    kept = mapping.clone()
    for slot, value in ((int(slots[1]), 7 * page_size + 3), (32 + page_size, 5)):
        mapping[slot] = value
        (fault,) = allocator.verify_byte_accounting()
        assert f"the mapping has {value} for slot {slot}, which is not where" in fault
        mapping.copy_(kept)
    assert allocator.verify_byte_accounting() == []


def test_debug_mode_comes_from_the_environment(monkeypatch):
    """The attribute can be read and set."""
    assert not paged().debug_mode
    monkeypatch.setenv("SGLANG_DEBUG_MEMORY_POOL", "1")
    assert paged().debug_mode


def ringed(num_rows, ring_size=6, page_size=4):
    storage = Storage()
    storage.swa_req_ring_size = ring_size
    rows = SimpleNamespace(available_size=lambda: num_rows[0])
    args = (32, 8, page_size, torch.bfloat16, "cpu", storage, False)
    return SWATokenToKVPoolAllocator(*args, req_to_token_pool=rows)


@pytest.mark.parametrize("page_size", [1, 4])
def test_windows_in_rings_take_no_pages(page_size):
    """Available windows follow from available requests, calls about windows do nothing, and full pages are as usual."""
    num_rows = [3]
    allocator = ringed(num_rows, page_size=page_size)
    ring = -(-6 // page_size) * page_size
    assert is_swa_req_ring(allocator)
    assert (allocator.swa_ring_cost_tokens, allocator.size_swa, allocator.size) == (ring, 3 * ring, min(32, 3 * ring))
    row = grow(allocator, [0], [10], [-1])
    head = grow(allocator, [0], [10], [-1], tail=3)
    num_rows[0] = 1
    room = 32 - 2 * -(-10 // page_size) * page_size
    assert (allocator.full_available_size(), allocator.swa_available_size()) == (room, ring)
    assert allocator.available_size() == room
    assert allocator.new_pages_available(room // page_size, 99)
    allocator.free_group_begin()
    allocator.free_swa(row)
    allocator.free_swa_segment(head, start_pos=0)
    assert (allocator.swa_free_group, allocator.free_group) == ([], [])
    allocator.free_full(row)
    allocator.free_full_segments([(head, 0)])
    allocator.free_group_end()
    assert allocator.full_available_size() == 32
    assert allocator.full_to_swa_index_mapping.tolist() == [0] * (32 + page_size) + [-1]
    assert allocator.swa_attn_allocator.alloc(page_size) is None
    assert allocator.swa_attn_allocator.free_pages.tolist() == []
    assert allocator.full_attn_allocator.alloc(page_size).numel() == page_size
    allocator.resize(SimpleNamespace(full_max_total_num_tokens=16, swa_max_total_num_tokens=16))
    assert (allocator.size_full, allocator.size_swa, allocator.full_available_size()) == (16, 3 * ring, 16)


def test_rings_without_a_table_of_requests_are_refused():
    """The number of available windows would be unknown."""
    storage = Storage()
    storage.swa_req_ring_size = 6
    with pytest.raises(InvalidSize, match="req_to_token_pool"):
        SWATokenToKVPoolAllocator(32, 8, 4, torch.bfloat16, "cpu", storage, need_sort=False)


def test_only_allocators_with_rings_are_reported_as_such():
    """Neither an allocator without windows nor one whose windows take pages keeps them in rings."""
    assert not is_swa_req_ring(token())
    assert not is_swa_req_ring(windowed())
    assert windowed().swa_ring_cost_tokens == 0


@pytest.fixture
def on_device(monkeypatch):
    """Uses the allocators for accelerators on the CPU."""
    monkeypatch.setattr(backends, "is_resident", lambda _device: True)


@pytest.mark.usefixtures("on_device")
def test_pages_of_both_sides_can_be_linked_on_the_device():
    """Pages of each side alone are linked, unlinked and freed; the mapping follows, and no page is lost."""
    allocator = windowed()
    full, window = allocator.full_attn_allocator, allocator.swa_attn_allocator
    row = grow(allocator, [0], [6], [-1])
    slots, window_slots = full.alloc(8), window.alloc(8)
    allocator.set_full_to_swa_mapping(slots, window_slots)
    assert allocator.translate_loc_from_full_to_swa(slots).tolist() == window_slots.tolist()
    allocator.free_group_begin()
    allocator.free_swa_segment(row[:4], start_pos=0)
    allocator.clear_full_to_swa_mapping(slots[4:])
    window.free(window_slots[4:])
    assert len(allocator.swa_free_group) == 2
    allocator.free_group_end()
    assert (full.available_size(), window.available_size()) == (16, 24)
    assert allocator.verify_byte_accounting() == []
    full.free_segment(slots[4:], start_pos=4)
    allocator.free_segments([(slots[:4], 0)])
    allocator.free_full_segment(row[:4], start_pos=0)
    allocator.free(row[4:])
    assert sorted(full.free_pages.tolist()) == sorted(window.free_pages.tolist()) == list(range(1, 9))
    assert allocator.full_to_swa_index_mapping.tolist() == [0] * 36 + [-1]


@pytest.mark.usefixtures("on_device")
@pytest.mark.parametrize("make", [token, paged, windowed])
def test_debug_mode_has_the_device_note_faults(make, monkeypatch):
    """With the switch the audit names a page that was freed twice; without, it reports counts that do not add up."""
    for asked in ("0", "1"):
        monkeypatch.setenv("SGLANG_DEBUG_MEMORY_POOL", asked)
        allocator = make()
        slots = allocator.alloc(8)
        for _ in range(2):
            allocator.free_segment(slots[:4], start_pos=0)
        (complaint,) = allocator.verify_byte_accounting()
        assert ("page 1 was freed" in complaint) == (asked == "1")


def test_composite_can_resize_its_pools_by_assignment():
    """A new size and number of pages take effect at the next clear; a clear alone keeps both."""
    allocator = paged()
    core = allocator.core
    allocator.clear()
    assert allocator.core is core
    allocator.alloc(8)
    allocator.size = 18
    allocator.num_pages = 4
    allocator.clear()
    assert (allocator.num_pages, allocator.available_size()) == (4, 16)
    assert allocator.alloc(4).tolist() == [4, 5, 6, 7]
