import random
from array import array
from itertools import pairwise
from types import SimpleNamespace

import pytest
import torch
from radix_scripts import NAMESPACES, SIZE, CacheSide, ModelSide, Params, Table, run_script

from kvstead.allocators import PagedAllocator
from kvstead.errors import AuditError, InvalidSize, LayoutError, LockUnderflow, OpenGroup, UseAfterFree
from kvstead.integrations.sglang import base_prefix_cache as types
from kvstead.integrations.sglang.allocator import backends
from kvstead.integrations.sglang.allocator.paged import PagedTokenToKVPoolAllocator
from kvstead.integrations.sglang.radix_cache import RadixCache, RadixKey, TreeNode
from kvstead.prefix import POLICIES

PAGE_SIZES = (1, 4)


class Adapter:
    """An allocator of ours as SGLang holds it: it only passes on."""

    def __init__(self, page_size, size=SIZE):
        self.core = PagedAllocator(size, page_size)
        self.device = "cpu"

    def __getattr__(self, name):
        return getattr(self.core, name)


class Stranger:
    """An allocator that is not ours, of SGLang's least surface, which counts what it gets back."""

    device = "cpu"
    free_group = None

    def __init__(self, page_size, size=SIZE):
        self.page_size = page_size
        self.size_full = size
        self._pages = list(range(size // page_size, 0, -1))

    def available_size(self):
        """Slots."""
        return len(self._pages) * self.page_size

    def alloc(self, need_size):
        """Whole pages."""
        pages = [self._pages.pop() for _ in range(need_size // self.page_size)] if need_size <= len(self) else None
        return None if pages is None else self._slots(pages)

    def free_segment(self, free_index, *, start_pos):
        """Whole pages, as torch tensors only."""
        assert isinstance(free_index, torch.Tensor)
        assert start_pos % self.page_size == 0
        self._pages += (free_index[:: self.page_size] // self.page_size).tolist()

    def __len__(self):
        return self.available_size()

    def _slots(self, pages):
        offsets = torch.arange(self.page_size)
        return (torch.tensor(pages, dtype=torch.int64)[:, None] * self.page_size + offsets).reshape(-1)


def cache_over(allocator, policy="lru", **params):
    return RadixCache(Params(allocator, allocator.page_size, policy, **params))


def side_over(allocator, policy="lru"):
    return CacheSide(cache_over(allocator, policy), allocator, types, RadixKey)


def match(cache, ids, **space):
    return cache.match_prefix(types.MatchPrefixParams(key=RadixKey(array("q", ids), **space)))


def insert(cache, ids, slots=None, **space):
    return cache.insert(types.InsertParams(key=RadixKey(array("q", ids), **space), value=slots))


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("page_size", PAGE_SIZES)
def test_cache_answers_as_the_model(page_size, policy):
    """Lengths, lock changes, evictions and sizes of random scripts are those of a model of dictionaries."""
    for seed in range(4):
        run_script([side_over(Adapter(page_size), policy), ModelSide(page_size, policy)], page_size, seed)


@pytest.mark.parametrize("page_size", PAGE_SIZES)
def test_cache_runs_over_an_allocator_that_is_not_ours(page_size):
    """Over such an allocator a cache answers as over one of ours, and passes it torch tensors."""
    for seed in range(4):
        run_script([side_over(Adapter(page_size)), side_over(Stranger(page_size))], page_size, seed)


@pytest.mark.parametrize("is_resident", [False, True], ids=["host", "device"])
@pytest.mark.parametrize("page_size", PAGE_SIZES)
def test_cache_runs_over_the_drop_in_allocator(page_size, is_resident, monkeypatch):
    """Over the drop-in allocator, on the host or on the device, a cache answers as over the core alone."""
    monkeypatch.setattr(backends, "is_resident", lambda _device: is_resident)
    for seed in range(3):
        drop_in = PagedTokenToKVPoolAllocator(SIZE, page_size, torch.bfloat16, "cpu", None, need_sort=False)
        run_script([side_over(Adapter(page_size)), side_over(drop_in)], page_size, seed)


def units(key):
    """A key in the slowest words."""
    tokens = list(key.token_ids)[: key.limit]
    return list(pairwise(tokens)) if key.is_bigram else tokens


def some_key(rng):
    ids = array("q", [rng.randrange(3) for _ in range(rng.randrange(9))])
    return RadixKey(ids, is_bigram=rng.random() < 0.5, limit=rng.choice((None, 0, 3, 20)))


def test_keys_count_slice_and_compare_units():
    """Length, iteration, slices, whole pages and common prefixes of random keys are those of a list of their units."""
    rng = random.Random(1)
    for _ in range(600):
        key, page_size = some_key(rng), rng.randrange(1, 4)
        want = units(key)
        assert (len(key), list(key), list(key.raw_token_ids())) == (len(want), want, list(key.token_ids)[: key.limit])
        start, stop = rng.randrange(-9, 9), rng.randrange(-9, 9)
        assert list(key[start:stop]) == want[start:stop]
        assert list(key.page_aligned(page_size)) == want[: len(want) // page_size * page_size]
        other = some_key(rng)
        if other.is_bigram == key.is_bigram:
            offset = rng.randrange(len(other) + 1)
            theirs = units(other)[offset:]
            common = next((i for i, pair in enumerate(zip(want, theirs, strict=False)) if pair[0] != pair[1]), None)
            common = min(len(want), len(theirs)) if common is None else common
            assert key.match_at(other, offset, page_size) == common // page_size * page_size
            assert (key.child_key() == other.child_key()) == (want[0] == units(other)[0]) if want and theirs else True


def test_keys_refuse_steps_and_indices_outside():
    """Steps, units and pages outside a key, and keys that cannot be compared, raise SGLang's own error types."""
    key = RadixKey(array("q", [1, 2, 3]), "adapter", cache_salt="tenant")
    assert (list(key[1]), list(key[-1])) == ([2], [3])
    for wrong in (lambda: key[3], lambda: key.child_key(4), lambda: key.match_at(key, 4)):
        with pytest.raises(IndexError, match="key of 3 units"):
            wrong()
    with pytest.raises(ValueError, match="step 2"):
        key[::2]
    others = {
        "extra_key": RadixKey(array("q", [1]), cache_salt="tenant"),
        "cache_salt": RadixKey(array("q", [1]), "adapter"),
        "is_bigram": RadixKey(array("q", [1]), "adapter", is_bigram=True, cache_salt="tenant"),
    }
    for field, other in others.items():
        with pytest.raises(ValueError, match=field):
            key.match(other)


def test_keys_of_different_namespaces_have_different_child_keys():
    """Adapter and salt are part of the key of the first page; an empty one counts as none."""
    keys = [RadixKey(array("q", [1, 2]), extra, cache_salt=salt) for extra, salt in NAMESPACES]
    assert len({key.child_key(2) for key in keys}) == len(keys)
    assert RadixKey(array("q", [1, 2]), "", cache_salt="").child_key(2) == keys[0].child_key(2) == (1, 2)
    assert "cache_salt='tenant'" in repr(keys[3])


def test_key_turns_into_pairs_with_its_values():
    """A key that counts pairs has one unit fewer, and so have its values; a second call changes nothing."""
    key, values = RadixKey(array("q", [1, 2, 3])), torch.arange(3)
    assert key.maybe_to_bigram_view(is_eagle=False, value=values) == (key, values)
    _, values = key.maybe_to_bigram_view(is_eagle=True, value=values)
    assert (len(key), key.is_bigram, values.tolist()) == (2, True, [0, 1])
    assert key.maybe_to_bigram_view(is_eagle=True)[1] is None


def test_nodes_show_the_tree():
    """A view shows the tokens of a node in their namespace, slots, neighbours and locks, and compares by node."""
    allocator = Adapter(4)
    cache = cache_over(allocator)
    row = allocator.alloc(12)
    space = {"extra_key": "adapter", "cache_salt": "tenant"}
    end = insert(cache, range(12), row, **space).last_device_node
    upper = match(cache, range(8), **space).last_device_node
    assert (upper.parent, end.parent, cache.root_node.parent) == (cache.root_node, upper, None)
    assert (list(end.key), end.key.extra_key, end.key.cache_salt) == ([8, 9, 10, 11], "adapter", "tenant")
    assert torch.equal(torch.cat([upper.value, end.value]), row)
    assert cache.root_node.children == {upper.key.child_key(4): upper}
    assert upper.children == {end.key.child_key(4): end}
    assert len({upper, end, match(cache, range(8), **space).last_device_node, cache.root_node}) == 3
    assert len({upper.id, end.id, cache.root_node.id}) == 3
    assert (end == end.core, repr(end)) == (False, repr(end.core))
    cache.inc_lock_ref(end)
    assert (end.lock_ref, upper.lock_ref, cache.root_node.lock_ref) == (1, 1, 1)
    assert upper.hit_count == 2
    assert upper.last_access_time > end.last_access_time >= end.creation_time
    assert (end.hash_value, end.event_hash_value, end.host_value, end.backuped, end.host_ref_counter) == (
        (None,) * 3 + (False, 0)
    )
    cache.dec_lock_ref(end)
    cache.evict(types.EvictParams(num_tokens=12))
    assert (end.evicted, end.value, end.parent) == (True, None, None)
    assert not cache.root_node.evicted
    assert isinstance(cache.root_node, TreeNode)


def test_priority_of_a_node_is_the_highest_on_it():
    """A later insertion of higher priority raises the whole path."""
    cache = RadixCache.create_simulated()
    insert(cache, [1, 2, 3])
    node = cache.insert(types.InsertParams(key=RadixKey(array("q", [1, 2])), priority=5)).last_device_node
    assert (node.priority, match(cache, [1, 2, 3]).last_device_node.priority) == (5, 0)


def test_tree_without_memory_ignores_values_and_never_runs_out():
    """Keys over no allocator are cached with any values, pages are used again, and tokens may repeat."""
    for page_size in PAGE_SIZES:
        cache = RadixCache.create_simulated(page_size=page_size)
        for round_ in range(3):
            for start in range(20):
                ids = [start] * 4 * page_size
                value = torch.empty(len(ids), dtype=torch.bool) if round_ else None
                assert insert(cache, ids, value).prefix_len == 0
                assert match(cache, [*ids, 99]).device_prefix_len == len(ids)
            assert cache.all_values_flatten().max() < 81 * page_size + page_size
            assert cache.evict(types.EvictParams(num_tokens=10**6)).num_tokens_evicted == 80 * page_size
        cache.sanity_check()
        cache.reset()
        assert cache.total_size() == 0


def test_tree_without_memory_keeps_no_pages_for_cached_tokens():
    """New pages for tokens that were cached before can be used again at once."""
    cache = RadixCache.create_simulated(page_size=2)
    for _ in range(50):
        insert(cache, [1, 2, 3, 4, 5])
    insert(cache, [1, 2, 7, 8])
    assert cache.total_size() == 6
    assert cache.all_values_flatten().max() < 10


def test_own_types_are_used_where_sglang_is_not_loaded(monkeypatch):
    """Results are SGLang's own types exactly in a process that has its module."""
    cache = RadixCache.create_simulated()
    monkeypatch.delitem(types.sys.modules, "sglang.srt.mem_cache.base_prefix_cache", raising=False)
    assert isinstance(insert(cache, [1]), types.InsertResult)
    assert isinstance(match(cache, [1]), types.MatchResult)
    theirs = SimpleNamespace(MatchResult=dict)
    monkeypatch.setitem(types.sys.modules, "sglang.srt.mem_cache.base_prefix_cache", theirs)
    assert match(cache, [1])["device_prefix_len"] == 1


def test_disabled_cache_keeps_nothing():
    """A disabled cache finds, inserts, locks and evicts nothing, and accepts any policy."""
    allocator = Adapter(4)
    cache = cache_over(allocator, "no such policy", disable=True)
    row = allocator.alloc(8)
    assert insert(cache, range(8), row).prefix_len == 0
    found = match(cache, range(8))
    assert (found.device_prefix_len, found.last_device_node) == (0, cache.root_node)
    assert (cache.inc_lock_ref(found.last_device_node).delta, cache.dec_lock_ref(cache.root_node).delta) == (0, 0)
    assert cache.evict(types.EvictParams(num_tokens=8)).num_tokens_evicted == 0
    assert (cache.total_size(), cache.supports_prefix_sharing()) == (0, False)
    cache.touch_prefix(RadixKey(array("q", range(8))))
    request = a_request(list(range(8)), row=1)
    cache.checkpoint(request, up_to=8)
    assert request.kv.cache_protected_len == 0


def test_unsupported_settings_are_refused_in_the_constructor():
    """Token pairs, KV events, policy settings, unknown policies and other page sizes are refused by name."""
    for name in ("is_eagle", "enable_kv_cache_events", "eviction_policy_config"):
        with pytest.raises(NotImplementedError):
            cache_over(Adapter(1), **{name: {"threshold": 3}})
    with pytest.raises(NotImplementedError, match="KV events"):
        RadixCache.create_simulated(enable_kv_cache_events=True)
    with pytest.raises(InvalidSize, match="tlru"):
        cache_over(Adapter(1), "tlru")
    with pytest.raises(LayoutError, match="page size 2"):
        RadixCache(Params(Adapter(4), 2))
    with pytest.raises(NotImplementedError, match="token pairs"):
        match(RadixCache.create_simulated(), [1, 2], is_bigram=True)


def test_lock_underflow_is_raised():
    """One unlock too many, which SGLang counts as a lock of -1, raises and changes nothing."""
    cache = RadixCache.create_simulated()
    node = insert(cache, [1, 2, 3]).last_device_node
    with pytest.raises(LockUnderflow):
        cache.dec_lock_ref(node)
    cache.inc_lock_ref(node)
    assert cache.evict(types.EvictParams(num_tokens=3)).num_tokens_evicted == 0
    assert (cache.evictable_size_, cache.protected_size_) == (0, 3)


def test_unlock_takes_what_lock_returns():
    """`unlock` takes back what `lock` returns, and does nothing for None."""
    cache = RadixCache.create_simulated()
    lock = cache.lock(insert(cache, [1, 2, 3]).last_device_node)
    assert cache.protected_size() == 3
    cache.unlock(lock)
    cache.unlock(None)
    assert cache.protected_size() == 0


def test_evicted_node_cannot_be_locked():
    """A match that was not locked before an eviction raises; its slots are not handed out."""
    cache = RadixCache.create_simulated()
    node = insert(cache, [1, 2, 3]).last_device_node
    cache.evict(types.EvictParams(num_tokens=1))
    for late in (cache.inc_lock_ref, cache.path_device_indices):
        with pytest.raises(UseAfterFree):
            late(node)


def test_slot_that_the_tree_owns_cannot_be_inserted_again():
    """Slots inserted under a second key, which SGLang would free twice, raise and change nothing."""
    allocator = Adapter(4)
    cache = cache_over(allocator)
    row = allocator.alloc(8)
    insert(cache, range(8), row)
    with pytest.raises(AuditError):
        insert(cache, range(50, 58), row)
    assert match(cache, range(50, 58)).device_prefix_len == 0


def test_eviction_inside_a_group_is_refused():
    """Where SGLang counts tokens that are not available before the group ends, ours raises."""
    allocator = Adapter(4)
    cache = cache_over(allocator)
    insert(cache, range(8), allocator.alloc(8))
    with allocator.defer_frees(), pytest.raises(OpenGroup):
        cache.evict(types.EvictParams(num_tokens=4))
    assert cache.evict(types.EvictParams(num_tokens=-1)).num_tokens_evicted == 0
    assert cache.evict(types.EvictParams(num_tokens=4)).num_tokens_evicted == 8


def test_touched_prefix_is_evicted_last():
    """A touched prefix is the last to be evicted."""
    cache = RadixCache.create_simulated()
    for ids in ([1, 1], [2, 2]):
        insert(cache, ids)
    cache.touch_prefix(RadixKey(array("q", [1, 1])))
    cache.evict(types.EvictParams(num_tokens=1))
    assert [match(cache, ids).device_prefix_len for ids in ([1, 1], [2, 2])] == [2, 0]


def test_reports_show_figures_and_nodes(capsys):
    """The log line has both figures, the printed tree one line a node, and there are no events."""
    allocator = Adapter(4)
    cache = cache_over(allocator)
    insert(cache, range(8), allocator.alloc(8))
    match(cache, range(4))
    assert (
        cache.available_and_evictable_str() == f"{SIZE} tokens can be used: {SIZE - 8} free, 8 cached and not locked\n"
    )
    cache.pretty_print()
    lines = ["0 [] r=1", "  4 [0, 1, 2, 3] r=0", "    4 [4, 5, 6, 7] r=0", "#tokens: 8"]
    assert capsys.readouterr().out.splitlines() == lines
    assert (cache.take_events(), cache.kv_events, cache.device) == ([], None, torch.device("cpu"))


def a_request(ids, row, namespace=(None, None), prompt_len=None):
    """A request as SGLang holds it, as far as a cache reads it."""
    prompt = ids[: len(ids) if prompt_len is None else prompt_len]
    return SimpleNamespace(
        kv=SimpleNamespace(req_pool_idx=row, cache_protected_len=0, swa_evict_floor=0),
        origin_input_ids=prompt,
        output_ids=ids[len(prompt) :],
        full_untruncated_fill_ids=ids,
        extra_key=namespace[0],
        cache_salt=namespace[1],
        priority=None,
        last_node=None,
        lock=None,
    )


class Recorder:
    """Records events as SGLang's does: stores with the tokens of their pages, removals by the hashes of then."""

    enabled = True

    def __init__(self, page_size):
        self.page_size = page_size
        self.blocks = {}
        self.num_cleared = 0

    def hashes(self, node, *, spaced):
        """A hash of each page and all before it, kept on the node."""
        name = "event_hash_value" if spaced else "hash_value"
        if getattr(node, name) is None:
            above = getattr(node.parent, name) or [(node.key.extra_key, node.key.cache_salt) if spaced else "root"]
            tokens, values = list(node.key.raw_token_ids()), [above[-1]]
            for start in range(0, len(tokens), self.page_size):
                values.append((values[-1], *tokens[start : start + self.page_size]))
            setattr(node, name, values[1:])
        return getattr(node, name)

    def record_store(self, node):
        """Note each page under its hashes."""
        for plain, spaced in zip(self.hashes(node, spaced=False), self.hashes(node, spaced=True), strict=True):
            assert spaced not in self.blocks
            self.blocks[spaced] = plain

    def record_remove(self, node):
        """Forget each page."""
        for spaced in self.hashes(node, spaced=True):
            del self.blocks[spaced]

    def record_all_cleared(self):
        """Forget all."""
        self.blocks.clear()
        self.num_cleared += 1

    def take(self):
        """What there is."""
        return sorted(map(repr, self.blocks))


@pytest.mark.parametrize("page_size", PAGE_SIZES)
def test_recorder_of_events_knows_every_page(page_size):
    """Through inserts, splits, joins and evictions the recorder has one block for each cached page, hashes included."""

    class Recording(RadixCache):
        """A cache with a recorder."""

        def _recorder(self, params):
            return Recorder(params.page_size)

    allocator = Adapter(page_size)
    cache = Recording(Params(allocator, page_size))
    rng = random.Random(page_size)
    for _ in range(200):
        ids = [rng.randrange(2) for _ in range(rng.randrange(1, 6 * page_size))]
        extra, verb = rng.choice([None, "lora"]), rng.random()
        if verb < 0.6 and (row := allocator.alloc(-(-len(ids) // page_size) * page_size)) is not None:
            shared = insert(cache, ids, row[: len(ids)], extra_key=extra).prefix_len
            whole = len(ids) - len(ids) % page_size
            allocator.free_segment(row[:shared], start_pos=0)
            allocator.free_segment(row[whole:], start_pos=whole)
        elif verb < 0.8:
            match(cache, ids, extra_key=extra)
        else:
            cache.evict(types.EvictParams(num_tokens=rng.randrange(20)))
        assert len(cache.take_events()) * page_size == cache.total_size()
    cache.reset()
    assert (cache.take_events(), cache.kv_events.num_cleared) == ([], 2)


class Engine:
    """Requests that start, checkpoint and finish on a cache, with the slots that a scheduler would give them."""

    def __init__(self, page_size):
        self.allocator = Adapter(page_size, size=400)
        self.table = Table(8, 64)
        self.cache = cache_over(self.allocator, req_to_token_pool=self.table)
        self.rows = list(range(8, 0, -1))

    def start(self, ids, namespace, prompt_len):
        """Match, lock, and slots for the rest."""
        request = a_request(ids, self.rows.pop(), namespace, prompt_len)
        found = match(self.cache, ids, extra_key=namespace[0], cache_salt=namespace[1])
        request.last_node = found.last_device_node
        request.lock = self.cache.lock(request.last_node)
        request.kv.cache_protected_len = found.device_prefix_len
        prefix = self.cache.path_device_indices(request.last_node)
        last = prefix[-1:].tolist() or [-1]
        if self.allocator.available_size() < len(ids) + self.cache.page_size:
            self.cache.evict(types.EvictParams(num_tokens=len(ids) + self.cache.page_size))
        fresh = self.allocator.alloc_extend([len(prefix)], [len(ids)], last)
        self.table.req_to_token[request.kv.req_pool_idx, : len(ids)] = torch.cat([prefix, fresh]).to(torch.int32)
        return request

    def checkpoint(self, request):
        """Keep what there is of it, and look whether its row reads what the tree has."""
        ids = request.full_untruncated_fill_ids
        self.cache.checkpoint(request, up_to=len(ids))
        whole = len(ids) - len(ids) % self.cache.page_size
        assert request.kv.cache_protected_len == whole
        assert torch.equal(self.cache.path_device_indices(request.last_node), self.row(request)[:whole].long())
        assert request.last_node.lock_ref > 0 or not whole

    def finish(self, request, *, keep):
        """Give the row back, with or without keeping it."""
        if keep:
            self.cache.checkpoint(request, up_to=len(request.full_untruncated_fill_ids))
        start = request.kv.cache_protected_len
        self.allocator.free_segment(self.row(request)[start:], start_pos=start)
        self.cache.unlock(request.lock)
        self.rows.append(request.kv.req_pool_idx)

    def row(self, request):
        """The slots of all its tokens."""
        return self.table.req_to_token[request.kv.req_pool_idx, : len(request.full_untruncated_fill_ids)]

    def audit(self, requests):
        """Every slot is available, in the tree, or one request's own."""
        owned = self.cache.all_values_flatten().tolist()
        for request in requests:
            own = self.row(request)[request.kv.cache_protected_len :].tolist()
            pages = {slot // self.cache.page_size for slot in own}
            owned += [page * self.cache.page_size + at for page in pages for at in range(self.cache.page_size)]
        assert len(set(owned)) == len(owned), "a slot has two owners"
        assert len(owned) + self.allocator.available_size() == self.allocator.size
        self.cache.sanity_check()


@pytest.mark.parametrize("page_size", PAGE_SIZES)
def test_every_slot_of_requests_has_one_owner(page_size):
    """Through random starts, checkpoints and finishes every slot has one owner, and none is lost at the end."""
    for seed in range(6):
        rng = random.Random(seed)
        engine, running = Engine(page_size), []
        for _ in range(60):
            if running and rng.random() < 0.3:
                engine.checkpoint(rng.choice(running))
            elif running and (rng.random() < 0.4 or not engine.rows):
                engine.finish(running.pop(rng.randrange(len(running))), keep=rng.random() < 0.7)
            else:
                ids = [rng.randrange(2) for _ in range(rng.randrange(1, 40))]
                running.append(engine.start(ids, rng.choice(NAMESPACES[:2]), rng.randrange(len(ids) + 1)))
            engine.audit(running)
        while running:
            engine.finish(running.pop(), keep=False)
        engine.cache.evict(types.EvictParams(num_tokens=400))
        assert engine.allocator.available_size() == engine.allocator.size


def test_prompt_has_a_higher_priority_than_the_answer():
    """A checkpoint splits the tree where the prompt ends, and ranks the prompt above the answer."""
    engine = Engine(4)
    ids = list(range(16))
    request = engine.start(ids, (None, None), prompt_len=9)
    engine.checkpoint(request)
    assert (list(request.last_node.key), list(request.last_node.parent.key)) == (ids[8:], ids[:8])
    assert (request.last_node.priority, request.last_node.parent.priority) == (0, 1)


def test_window_floor_bounds_what_is_cached():
    """With windows alone, pages up to the floor, rounded up, are cached; the rest stays the request's own."""
    engine = Engine(4)
    request = engine.start(list(range(20)), (None, None), prompt_len=20)
    request.kv.swa_evict_floor = 9
    engine.cache.checkpoint(request, up_to=20)
    assert (request.kv.cache_protected_len, engine.cache.total_size()) == (12, 12)
    engine.audit([request])


WIDE = [0, 5, 2**31 - 1, 2**31, 2**32 + 5, -1, -5, 1992249758279980980, 2**62 + 5, -(2**63)]


@pytest.mark.parametrize("page_size", PAGE_SIZES)
def test_ids_of_64_bits_are_told_apart(page_size):
    """Ids that differ only above 32 bits, and those below 0, are different tokens: keys match as lists of ints do."""
    cache = RadixCache.create_simulated(page_size=page_size)
    rng = random.Random(page_size)
    kept = []
    for _ in range(300):
        ids = [rng.choice(WIDE) for _ in range(rng.randrange(1, 4 * page_size))]
        key = RadixKey(array("q", ids))
        whole = [ids[: end * page_size] for end in range(len(ids) // page_size + 1)]
        longest = max(len(part) for part in whole if any(other[: len(part)] == part for other in [*kept, []]))
        assert cache.match_prefix(types.MatchPrefixParams(key)).device_prefix_len == longest
        if rng.random() < 1 / 2:
            cache.insert(types.InsertParams(key))
            kept.append(whole[-1])
            node = cache.match_prefix(types.MatchPrefixParams(key)).last_device_node
            parts = []
            while not node.is_root:
                parts[:0] = node.key.raw_token_ids()
                node = node.parent
            assert parts == whole[-1]
    cache.sanity_check()


def test_codes_of_ids_that_no_key_has_are_dropped():
    """Matches keep nothing, and codes of evicted keys go when there are many; those in use stay."""
    cache = RadixCache.create_simulated()
    codes = cache._codes
    for image in range(3000):
        key = RadixKey(array("q", [7, 2**40 + image]))
        assert cache.match_prefix(types.MatchPrefixParams(key)).device_prefix_len == (1 if image else 0)
        cache.insert(types.InsertParams(key))
        if image > 10:
            cache.evict(types.EvictParams(num_tokens=1))
        assert len(codes) <= 1026
    first = RadixKey(array("q", [7, 2**40 + 2999]))
    assert cache.match_prefix(types.MatchPrefixParams(first)).device_prefix_len == 2
    before = len(codes)
    cache.match_prefix(types.MatchPrefixParams(RadixKey(array("q", [7, 2**50]))))
    assert len(codes) == before
    assert "[7]" in repr([cache.root_node.children[7].key.raw_token_ids().tolist()])
