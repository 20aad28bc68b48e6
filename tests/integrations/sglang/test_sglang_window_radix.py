"""`WindowRadixCache`, driven as SGLang's scheduler drives a tree, over our allocator with windows."""

import random
from array import array
from types import SimpleNamespace

import pytest
import torch
from radix_scripts import Table

from kvstead.errors import LayoutError, LockUnderflow
from kvstead.integrations.sglang import base_prefix_cache as types
from kvstead.integrations.sglang.allocator.paged import PagedTokenToKVPoolAllocator
from kvstead.integrations.sglang.allocator.swa import SWATokenToKVPoolAllocator
from kvstead.integrations.sglang.radix_cache import RadixKey
from kvstead.integrations.sglang.window_radix_cache import WindowRadixCache

WINDOW = 8
PAGE_SIZES = (1, 4)


class Storage:
    """A pool of tensors that only takes the mapping."""

    def register_mapping(self, mapping):
        """Keep nothing."""


class Engine:
    """A tree over an allocator and a table of rows, and what the scheduler does with them for one request."""

    def __init__(self, page_size, *, size=96, size_swa=96, disable=False):
        self.page_size = page_size
        self.allocator = SWATokenToKVPoolAllocator(
            size, size_swa, page_size, torch.bfloat16, "cpu", Storage(), need_sort=False
        )
        self.table = Table(8, 64)
        params = types.CacheInitParams(disable, self.table, self.allocator, page_size, sliding_window_size=WINDOW)
        self.cache = WindowRadixCache(params)
        self.free_rows = list(range(1, 9))

    def match(self, ids):
        """The match of a key."""
        return self.cache.match_prefix(types.MatchPrefixParams(key=RadixKey(array("q", ids))))

    def begin(self, ids):
        """A request with a row for all of `ids`; None when short."""
        found = self.match(ids[:-1])
        lock, done = self.cache.lock(found.last_device_node), found.device_prefix_len
        need = -(-len(ids) // self.page_size) * self.page_size - done
        self.make_room(need)
        new = self.allocator.alloc(need)
        if new is None:
            self.cache.unlock(lock)
            return None
        row = torch.cat([self.cache.path_device_indices(found.last_device_node), new])
        index = self.free_rows.pop()
        self.table.write((index, slice(0, row.numel())), row)
        kv = SimpleNamespace(req_pool_idx=index, cache_protected_len=done, length=row.numel(), dead=done)
        return SimpleNamespace(
            kv=kv,
            lock=lock,
            last_node=lock.node,
            origin_input_ids=ids,
            full_untruncated_fill_ids=ids,
            extra_key=None,
            cache_salt=None,
            priority=None,
        )

    def make_room(self, need):
        """Evict what is missing on each side."""
        short = need - self.allocator.full_available_size(), need - self.allocator.swa_available_size()
        if max(short) > 0:
            self.cache.evict_for_alloc(types.EvictParams(max(0, short[0]), max(0, short[1])))

    def slide(self, req, to):
        """Free the windows of a request up to a token, as far as they are its own."""
        low, to = max(req.kv.dead, req.kv.cache_protected_len), to - to % self.page_size
        if to > low:
            self.allocator.free_swa_segment(self.row(req)[low:to], start_pos=low)
            req.kv.dead = to

    def end(self, req):
        """Cache a request's tokens, free the rest of its row and unlock."""
        self.cache.checkpoint(req, up_to=len(req.origin_input_ids))
        start = req.kv.cache_protected_len
        self.allocator.free_segment(self.row(req)[start:], start_pos=start)
        self.cache.unlock(req.lock)
        self.free_rows.append(req.kv.req_pool_idx)

    def row(self, req):
        """All slots of a request."""
        return self.table.req_to_token[req.kv.req_pool_idx, : req.kv.length].to(torch.int64)

    def require_all_counted(self):
        """Free, cached and locked make up both pools, while no request is running."""
        cache, allocator = self.cache, self.allocator
        full = allocator.full_available_size() + cache.full_evictable_size() + cache.full_protected_size()
        window = allocator.swa_available_size() + cache.swa_evictable_size() + cache.swa_protected_size()
        assert (full, window) == (allocator.size_full, allocator.size_swa)
        cache.sanity_check()
        assert allocator.verify_byte_accounting() == []

    def require_mapping(self):
        """The tensor of window slots says what the core does."""
        slots = self.cache.all_values_flatten()
        found = self.allocator.translate_loc_from_full_to_swa(slots)
        assert found.tolist() == torch.as_tensor(self.allocator.core.window_slots(slots)).tolist()


@pytest.mark.parametrize("page_size", PAGE_SIZES)
@pytest.mark.parametrize("size_swa", [48, 96])
def test_random_requests_leave_every_slot_counted(page_size, size_swa):
    """Prefixes with and without windows are matched, revived and evicted; nothing is lost on either side."""
    rng = random.Random(page_size + size_swa)
    engine, running, found = Engine(page_size, size_swa=size_swa), [], 0
    for _ in range(300):
        ids = [rng.randrange(2) for _ in range(rng.randrange(1, 4))] * 12
        req = engine.begin(ids[: rng.randrange(8, 37)])
        if req is not None:
            found += req.kv.cache_protected_len
            running.append(req)
        if running and (req is None or len(running) > 1):
            req = running.pop(rng.randrange(len(running)))
            if rng.random() < 0.5:
                engine.cache.release_swa_prefix_lock(req)
                engine.cache.release_swa_prefix_lock(req)
            if rng.random() < 0.7:
                engine.slide(req, len(req.origin_input_ids) - WINDOW)
            engine.end(req)
            engine.require_mapping()
            engine.cache.sanity_check()
    for req in running:
        engine.end(req)
    engine.require_all_counted()
    assert found > 300
    assert (engine.cache.full_protected_size(), engine.cache.swa_protected_size()) == (0, 0)


@pytest.mark.parametrize("page_size", PAGE_SIZES)
def test_prefix_without_its_window_is_not_found_until_it_is_computed_again(page_size):
    """A second request hands its windows to the cached tokens, and a third one finds them."""
    engine, ids = Engine(page_size), list(range(24))
    engine.end(engine.begin(ids))
    engine.cache.evict(types.EvictParams(swa_num_tokens=96))
    assert (engine.cache.swa_evictable_size(), engine.cache.full_evictable_size()) == (0, 24)
    assert engine.match(ids).device_prefix_len == 0
    engine.end(engine.begin(ids))
    engine.require_mapping()
    engine.require_all_counted()
    assert engine.match(ids).device_prefix_len == 24


def test_lock_keeps_the_last_window_until_it_is_released():
    """The windows before can be evicted at once, the last one when the request's own has moved on."""
    engine, ids = Engine(4), list(range(24))
    engine.end(engine.begin(ids))
    lock = engine.cache.lock(engine.match(ids).last_device_node)
    assert (engine.cache.swa_protected_size(), engine.cache.swa_evictable_size()) == (WINDOW, 24 - WINDOW)
    engine.cache.release_swa(lock)
    engine.cache.release_swa(lock)
    engine.cache.release_swa(None)
    assert (engine.cache.swa_protected_size(), engine.cache.full_protected_size()) == (0, 24)
    engine.cache.unlock(lock)
    assert engine.cache.full_protected_size() == 0
    with pytest.raises(LockUnderflow):
        engine.cache.unlock(lock)
    root = engine.cache.lock(engine.cache.root_node)
    engine.cache.release_swa(root)
    engine.cache.unlock(root)
    engine.cache.unlock(None)


def test_joint_shortage_evicts_until_it_is_satisfied():
    """Nodes go first, one by one; windows alone when no more tokens are wanted; nothing when all fits."""
    engine = Engine(4)
    for first in range(3):
        engine.end(engine.begin([first] * 16))
    params, cache = types.EvictParams(num_tokens=96, swa_num_tokens=96), engine.cache
    assert cache.evict_for_alloc(params, allocation_reclaim_satisfied=lambda: True).num_tokens_evicted == 0
    done = cache.evict_for_alloc(params, allocation_reclaim_satisfied=lambda: cache.full_evictable_size() < 48)
    assert (done.num_tokens_evicted, done.swa_num_tokens_evicted) == (8, 8)
    only = types.EvictParams(swa_num_tokens=16)
    done = cache.evict_for_alloc(only, allocation_reclaim_satisfied=lambda: False)
    assert (done.num_tokens_evicted, done.swa_num_tokens_evicted) == (0, 16)
    cache.evict_for_alloc(params, allocation_reclaim_satisfied=lambda: False)
    assert (cache.full_evictable_size(), cache.swa_evictable_size()) == (0, 0)
    engine.require_all_counted()


def test_disabled_cache_finds_and_evicts_nothing():
    """With `disable` nothing is kept, and the rows are the caller's."""
    engine = Engine(4, disable=True)
    engine.end(engine.begin(list(range(16))))
    assert engine.match(range(16)).device_prefix_len == 0
    assert engine.cache.evict(types.EvictParams(8, 8)).num_tokens_evicted == 0
    assert not engine.cache.supports_prefix_sharing()
    assert engine.cache.supports_swa()
    engine.require_all_counted()


def test_log_line_says_what_both_sides_have():
    """Free and cached, tokens and windows."""
    engine = Engine(4)
    engine.end(engine.begin(list(range(16))))
    assert engine.cache.available_and_evictable_str() == (
        "96 tokens can be used: 80 free, 16 cached and not locked; 96 windows: 80 free, 16 cached and not locked\n"
    )


def test_allocator_without_windows_on_the_host_is_refused():
    """The tree looks windows up page by page."""
    allocator = PagedTokenToKVPoolAllocator(16, 4, torch.bfloat16, "cpu", None, need_sort=False)
    for stranger in (allocator, SimpleNamespace(page_size=4)):
        with pytest.raises(LayoutError, match=r"no pages with windows on the host.*\. Use"):
            WindowRadixCache(types.CacheInitParams(False, None, stranger, 4, sliding_window_size=WINDOW))


def test_events_are_refused():
    """Nothing says yet which blocks a reader of events may count on when a window is gone."""
    params = types.CacheInitParams(False, None, Engine(4).allocator, 4, sliding_window_size=WINDOW)
    params.enable_kv_cache_events = True
    with pytest.raises(NotImplementedError, match=r"KV events of a tree with windows.*\. Leave"):
        WindowRadixCache(params)
