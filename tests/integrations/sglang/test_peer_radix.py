"""SGLang's radix cache and ours on the same scripts, each over an allocator of its own make."""

import random
from array import array
from collections import Counter
from itertools import product

import peer
import pytest
import torch
from radix_scripts import SIZE, CacheSide, run_script_of_whole_evictions, run_script_of_whole_nodes
from sglang.srt.disaggregation.kv_events import AllBlocksCleared, BlockRemoved, BlockStored
from sglang.srt.mem_cache import base_prefix_cache as types
from sglang.srt.mem_cache import radix_cache as theirs
from sglang.srt.mem_cache.cache_init_params import CacheInitParams

from kvstead.errors import AuditError, LockUnderflow, OpenGroup
from kvstead.integrations.sglang import engine_radix_cache as engine
from kvstead.integrations.sglang import radix_cache as ours
from kvstead.integrations.sglang.allocator.paged import PagedTokenToKVPoolAllocator

pytestmark = pytest.mark.sglang

PAGE_SIZES = (1, 4)
ORDERED = ("lru", "mru", "fifo", "filo", "priority")  # the others count hits, which the two count at different calls


def side(module, allocator_class, page_size, policy="lru"):
    """A cache over an allocator, with SGLang's own parameter types."""
    allocator = allocator_class(SIZE, page_size, torch.bfloat16, "cpu", None, need_sort=False)
    cache = module.RadixCache(CacheInitParams(False, None, allocator, page_size, eviction_policy=policy))
    return CacheSide(cache, allocator, types, module.RadixKey)


def pair(page_size, policy="lru"):
    """SGLang's and ours."""
    return (
        side(theirs, peer.PagedTokenToKVPoolAllocator, page_size, policy),
        side(ours, PagedTokenToKVPoolAllocator, page_size, policy),
    )


def insert(cache, ids, slots=None):
    params = types.InsertParams(key=theirs.RadixKey(array("q", ids)), value=slots)
    return cache.insert(params).last_device_node


def match(cache, ids):
    return cache.match_prefix(types.MatchPrefixParams(key=theirs.RadixKey(array("q", ids)))).device_prefix_len


def evict(cache, num_tokens):
    return cache.evict(types.EvictParams(num_tokens=num_tokens)).num_tokens_evicted


@pytest.mark.parametrize("policy", [*ORDERED, "lfu", "slru"])
@pytest.mark.parametrize("page_size", PAGE_SIZES)
def test_lengths_locks_and_sizes_are_sglangs(page_size, policy):
    """Matches, duplicates, lock changes and all sizes are the same when evictions take all they can."""
    for seed in range(10):
        run_script_of_whole_evictions(pair(page_size, policy), page_size, seed)


@pytest.mark.parametrize("policy", ORDERED)
@pytest.mark.parametrize("page_size", PAGE_SIZES)
def test_victims_are_sglangs_where_matches_end_between_nodes(page_size, policy):
    """The same nodes are evicted first by every policy of times and priorities, for any number of tokens."""
    for seed in range(10):
        run_script_of_whole_nodes(pair(page_size, policy), page_size, seed)


def test_trees_run_over_each_others_allocators():
    """Ours over SGLang's allocator, and SGLang's over ours, answer as each over its own."""
    for page_size in PAGE_SIZES:
        crossed = (
            side(ours, peer.PagedTokenToKVPoolAllocator, page_size),
            side(theirs, PagedTokenToKVPoolAllocator, page_size),
        )
        for seed in range(5):
            run_script_of_whole_evictions([*pair(page_size), *crossed], page_size, seed)
            crossed = crossed[::-1]


def test_results_are_of_sglangs_types():
    """Results are SGLang's own types, which its callers unpack."""
    _, mine = pair(4)
    node = insert(mine.cache, range(8), mine.allocator.alloc(8))
    key = theirs.RadixKey(array("q", range(8)))
    results = {
        types.MatchResult: mine.cache.match_prefix(types.MatchPrefixParams(key=key)),
        types.InsertResult: mine.cache.insert(types.InsertParams(key=key, value=mine.allocator.alloc(8))),
        types.EvictResult: mine.cache.evict(types.EvictParams(num_tokens=0)),
        types.IncLockRefResult: mine.cache.inc_lock_ref(node),
        types.DecLockRefResult: mine.cache.dec_lock_ref(node),
        types.TreeLock: mine.cache.lock(node),
    }
    for kind, result in results.items():
        assert type(result) is kind


def test_methods_of_sglangs_base_work_on_ours():
    """Mixed with SGLang's base, as the drop-in is, the cache has all that callers ask of a cache."""

    class Mixed(ours.RadixCache, types.BasePrefixCache):
        """Ours first."""

    allocator = PagedTokenToKVPoolAllocator(SIZE, 4, torch.bfloat16, "cpu", None, need_sort=False)
    cache = Mixed(CacheInitParams(False, None, allocator, 4))
    short, long = insert(cache, range(4), allocator.alloc(4)), insert(cache, [9] * 8, allocator.alloc(8))
    other = insert(cache, [*range(4), 7, 7, 7, 7], allocator.alloc(8))
    order = cache.dfs_weight_order([long, short, other, cache.root_node])
    assert sorted(order) == [0, 1, 2, 3]
    assert (order.index(1) - order.index(2)) in {-1, 1}
    assert cache.evict_for_alloc(types.EvictParams(num_tokens=1)).num_tokens_evicted == 8
    assert cache.root_node_handle() == cache.root_node
    assert (cache.take_events(), cache.supports_swa(), cache.full_evictable_size()) == ([], False, 0)


def apply(stored, events):
    """What a listener has after events, counted: blocks of adapters without names are named alike."""
    for event in events:
        if isinstance(event, AllBlocksCleared):
            stored.clear()
        elif isinstance(event, BlockRemoved):
            stored.subtract(event.block_hashes)
        else:
            assert isinstance(event, BlockStored)
            before, size = event.parent_block_hash, event.block_size
            assert before is None or stored[before] > 0, "a block follows one that is stored"
            assert len(event.token_ids) == size * len(event.block_hashes)
            stored.update(event.block_hashes)
        assert min(stored.values(), default=0) >= 0


@pytest.mark.parametrize("dynamo_format", [False, True])
@pytest.mark.parametrize("page_size", PAGE_SIZES)
def test_listeners_of_kv_events_see_the_same_blocks(page_size, dynamo_format):
    """Whatever is inserted, split, evicted and reset, in any namespace: the same blocks with the same hashes."""
    for seed in range(6):
        rng = random.Random(seed)
        sides, stored = [], [Counter(), Counter()]
        for module, cls in ((theirs, peer.PagedTokenToKVPoolAllocator), (engine, PagedTokenToKVPoolAllocator)):
            allocator = cls(SIZE, page_size, torch.bfloat16, "cpu", None, need_sort=False)
            settings = {"enable_kv_cache_events": True, "dynamo_kv_event_format": dynamo_format}
            cache = module.RadixCache(CacheInitParams(False, None, allocator, page_size, **settings))
            sides.append(CacheSide(cache, allocator, types, theirs.RadixKey))
        for _ in range(80):
            ids = [rng.randrange(2) for _ in range(rng.randrange(1, 8 * page_size))]
            namespace, verb = rng.choice([(None, None), ("lora", None), (None, "salt")]), rng.random()
            for each in sides:
                if verb < 0.7:
                    each.insert(ids, namespace, 0)
                elif verb < 0.95:
                    each.match(ids, namespace)
                elif verb < 0.98:
                    each.evict(10**6)
                else:
                    each.cache.reset()
                    each.allocator.clear()
            for blocks, each in zip(stored, sides, strict=True):
                apply(blocks, each.cache.take_events())
            assert +stored[0] == +stored[1]
        for each in sides:
            each.evict(10**6)
            apply(stored[sides.index(each)], each.cache.take_events())
        assert [+blocks for blocks in stored] == [Counter(), Counter()]


def ask_all(module, rng):
    """What two random keys of one class say of themselves and of each other."""
    ids, more = (array("q", [rng.randrange(3) for _ in range(rng.randrange(10))]) for _ in range(2))
    settings = {"is_bigram": rng.random() < 0.5, "extra_key": rng.choice((None, "a")), "cache_salt": "s"}
    key, other = module.RadixKey(ids, limit=rng.choice((None, 2, 20)), **settings), module.RadixKey(more, **settings)
    page_size, start, stop = rng.randrange(1, 4), rng.randrange(-9, 9), rng.randrange(-9, 9)
    return (
        (len(key), list(key), list(key.raw_token_ids())),
        (list(key[start:stop]), list(key.page_aligned(page_size))),
        (key.match(other, page_size), key.match_at(other, rng.randrange(len(other) + 1), page_size)),
        key.child_key(page_size) if len(key) >= page_size else None,
    )


def test_keys_are_sglangs():
    """Lengths, slices, common prefixes and child keys of random keys are the same on both classes."""
    for seed in range(500):
        assert ask_all(theirs, random.Random(seed)) == ask_all(ours, random.Random(seed))


def test_scheduler_finds_prefixes_within_a_batch():
    """Without memory and without values, matches of queued requests are as long as on SGLang's."""
    rng = random.Random(7)
    trees = [module.RadixCache.create_simulated() for module in (theirs, ours)]
    for _ in range(2):
        for tree in trees:
            tree.reset()
        for _ in range(200):
            ids = [rng.randrange(2) for _ in range(rng.randrange(1, 12))]
            assert len({match(tree, ids) for tree in trees}) == 1
            for tree in trees:
                insert(tree, ids, torch.empty(len(ids), dtype=torch.bool))
        assert trees[0].total_size() == trees[1].total_size()


# Where SGLang does otherwise.


def test_match_inside_a_node_uses_what_matched_alone():
    """SGLang counts the rest of the node as used too; ours only what matched."""
    gone = []
    for module in (theirs, ours):
        tree = module.RadixCache.create_simulated()
        insert(tree, [1, 1, 1, 1])
        insert(tree, [2, 2])
        assert match(tree, [1, 1]) == 2
        tree.token_to_kv_pool_allocator = Sink()
        evict(tree, 1)
        gone.append([ids for ids in ([1, 1, 1, 1], [2, 2]) if match(tree, ids) < len(ids)])
    assert gone == [[[2, 2]], [[1, 1, 1, 1]]]


class Sink:
    """Takes what is freed."""

    def free_segment(self, *_, **__):
        """And forgets it."""


def test_unlock_without_a_lock_raises():
    """SGLang counts to -1, and the next holder loses its node to an eviction; ours raises, and the lock stays."""
    them, mine = pair(1)
    for side_ in (them, mine):
        node = insert(side_.cache, range(4), side_.allocator.alloc(4))
        if side_ is mine:
            with pytest.raises(LockUnderflow):
                side_.cache.dec_lock_ref(node)
        else:
            side_.cache.dec_lock_ref(node)
        side_.cache.inc_lock_ref(node)
    assert (evict(them.cache, 4), evict(mine.cache, 4)) == (4, 0)


def test_slots_under_two_keys_raise():
    """SGLang caches them twice and frees them twice; ours raises at the second insertion."""
    them, mine = pair(1)
    for side_ in (them, mine):
        row = side_.allocator.alloc(4)
        insert(side_.cache, range(4), row)
        if side_ is mine:
            with pytest.raises(AuditError):
                insert(side_.cache, range(50, 54), row)
        else:
            insert(side_.cache, range(50, 54), row)
        evict(side_.cache, SIZE)
    assert them.allocator.available_size() == SIZE + 4
    assert mine.allocator.available_size() == SIZE


def test_eviction_inside_a_group_raises():
    """SGLang counts tokens that are not available yet; ours raises and evicts nothing."""
    them, mine = pair(1)
    for side_ in (them, mine):
        insert(side_.cache, range(8), side_.allocator.alloc(8))
        side_.allocator.alloc(SIZE - 8)
        side_.allocator.free_group_begin()
    assert (evict(them.cache, 8), them.allocator.available_size()) == (8, 0)
    with pytest.raises(OpenGroup):
        evict(mine.cache, 8)
    assert mine.cache.evictable_size() == 8


def test_hits_are_counted_by_matches():
    """SGLang counts a hit for an insertion; ours for a match, so nodes that never matched are evicted first."""
    for (module, expected), policy in product(((theirs, False), (ours, True)), ("lfu", "slru")):
        tree = module.RadixCache(CacheInitParams(False, None, None, 1, eviction_policy=policy))
        insert(tree, [1, 1])
        for _ in range(3):
            match(tree, [1, 1])
        insert(tree, [2, 2])
        tree.token_to_kv_pool_allocator = Sink()
        evict(tree, 1)
        assert (match(tree, [1, 1]) == 2) is expected
