from types import SimpleNamespace

import pytest
import torch

from kvstead.errors import DoubleFree, FreeGroupError, MisalignedSegment
from kvstead.integrations.sglang.allocator.base import BaseTokenToKVPoolAllocator


class Recorder(BaseTokenToKVPoolAllocator):
    """A third party's subclass of the base: no lists, a `clear` that does nothing, and its own `free`."""

    def __init__(self, page_size=4):
        """Sets nothing but what it counts."""
        super().__init__(32, page_size, torch.bfloat16, "cpu", "the pool", need_sort=False)
        self.freed = []

    def clear(self):
        """Nothing."""

    def alloc(self, need_size):
        """Nothing, for any number of slots."""
        assert need_size >= 0

    def free(self, free_index):
        """As SGLang's own subclasses do it."""
        if self.free_group is None:
            self.freed.append(free_index.tolist())
        else:
            self.free_group.append(self._copy_for_free_group(free_index))


def test_base_class_answers_for_a_bare_subclass():
    """Every default that callers ask for has an answer on a subclass without lists of its own."""
    allocator = Recorder()
    assert allocator.free_pages is None
    assert allocator.get_all_free_pages() is None
    assert allocator.available_size() == 0
    assert (allocator.size_full, allocator.get_kvcache()) == (32, "the pool")
    assert (allocator.verify_byte_accounting(), allocator.debug_print()) == ([], "")
    assert allocator.mamba_full_cache_donor() is None
    allocator.merge_and_sort_free()
    allocator.set_hicache_transfer_done_event("key", object())
    slots = torch.arange(8)
    assert allocator.translate_kv_indices_for_transfer(slots) is slots
    allocator.resize(SimpleNamespace(max_total_num_tokens=18))
    assert (allocator.size, allocator.num_pages) == (18, 4)
    with pytest.raises(NotImplementedError):
        allocator.alloc_extend()
    with pytest.raises(NotImplementedError):
        allocator.alloc_decode()
    with pytest.raises(NotImplementedError):
        allocator.get_cpu_copy(slots)
    with pytest.raises(NotImplementedError):
        allocator.load_cpu_copy(None, slots)


def test_stretches_reach_free_one_by_one():
    """Segments of either side are passed to `free`, without the empty ones."""
    allocator = Recorder()
    row = torch.arange(40, 60)
    allocator.free_segments([(row[:3], 0), (row[4:4], 4), (row[4:9], 4)])
    allocator.free_full_segments([(row[12:], 12)])
    assert allocator.freed == [row[:3].tolist(), row[4:9].tolist(), row[12:].tolist()]


def test_stretches_that_share_a_page_or_start_inside_one_are_refused():
    """A page would be freed twice, or together with the end of another stretch."""
    allocator = Recorder()
    row = torch.arange(40, 60)
    with pytest.raises(DoubleFree, match="position 4"):
        allocator.free_segments([(row[:5], 0), (row[4:8], 4)])
    with pytest.raises(MisalignedSegment, match="position 3"):
        allocator.free_segment(row[3:8], start_pos=3)
    with pytest.raises(MisalignedSegment, match="position 5"):
        allocator.free_full_segment(row[5:8], start_pos=5)


def test_group_frees_copies_in_one_call_even_after_a_nested_begin():
    """What a subclass put into the group is freed at its end, even if the caller's buffer was overwritten."""
    allocator = Recorder()
    row = torch.arange(4, 12)
    allocator.free_group_begin()
    allocator.free_segment(row[:4], start_pos=0)
    allocator.free_full(row[4:])
    with pytest.raises(FreeGroupError):
        allocator.free_group_begin()
    row.zero_()
    assert allocator.freed == []
    allocator.free_group_end()
    allocator.free_group_end()
    assert allocator.freed == [list(range(4, 12))]
    assert allocator.free_group is None


def test_lists_of_a_subclass_are_counted_and_merged():
    """Both lists count as available, and a merge leaves one, ascending."""
    allocator = Recorder()
    allocator.free_pages, allocator.release_pages = torch.tensor([5, 7]), torch.tensor([6, 1])
    assert allocator.available_size() == 16
    assert allocator.get_all_free_pages().tolist() == [5, 7, 6, 1]
    allocator.merge_and_sort_free()
    assert (allocator.free_pages.tolist(), allocator.release_pages.tolist()) == ([1, 5, 6, 7], [])


@pytest.mark.parametrize(
    ("prompt", "wanted", "capacity", "fits"), [(10, 100, 64, 47), (10, 5, 64, 5), (60, 5, 64, 0), (61, 5, 64, 0)]
)
def test_generation_is_cut_to_what_an_empty_pool_holds(prompt, wanted, capacity, fits):
    """The prompt takes whole pages, and a page and a token stay in reserve."""
    allocator = Recorder()
    limits = {"sliding_window_size": None, "chunk_size": None}
    assert allocator.max_new_tokens_for_memory(prompt, wanted, token_capacity=capacity, **limits) == fits
    assert allocator.request_slot_reserve(has_req_pool_slot=False, prefill_tokens=prompt) == 0


def test_each_side_of_a_preallocation_has_its_own_budget():
    """A side without a budget does not count."""
    allocator = Recorder()
    assert allocator.prealloc_fits(None, 8, 4, full_budget_tokens=8)
    assert allocator.prealloc_fits(None, 8, 4, full_budget_tokens=8, swa_budget_tokens=4)
    assert not allocator.prealloc_fits(None, 8, 5, full_budget_tokens=8, swa_budget_tokens=4)
    assert not allocator.prealloc_fits(None, 9, 4, full_budget_tokens=8, swa_budget_tokens=4)
    assert allocator.prealloc_ceiling_fits(10**9, 0) is None
    assert not allocator.prealloc_fits_assumes_reclaim()
    assert allocator.get_extend_allocation_demand(None, None, conservative_num_tokens=7, shard_size=1) == 7


def test_prefix_cache_without_sharing_is_not_asked_to_evict():
    """Without a cache, or with one that shares nothing, nothing can be evicted."""
    allocator = Recorder()
    aloof = SimpleNamespace(supports_prefix_sharing=lambda: False)
    assert not allocator.check_decode_capacity(num_tokens=1, tree_cache=None)
    assert not allocator.check_decode_capacity(num_tokens=1, tree_cache=aloof)
    assert allocator.check_decode_capacity(num_tokens=0, tree_cache=aloof)
