"""SGLang's own callers on our allocators: its scheduler's batches, its prefix caches, its composite of two sides."""

import random

import peer
import pytest
import torch
from recorder import WindowRecorder
from replayer import replay
from sglang.srt.mem_cache.allocator import swa as their_swa
from sglang.srt.mem_cache.common import free_kv_row_segments

import side_sglang
import side_sglang_windows
from drop_in import DropIn, Storage
from kvstead.integrations.sglang.allocator import backends
from kvstead.integrations.sglang.allocator.paged import PagedTokenToKVPoolAllocator
from kvstead.integrations.sglang.allocator.swa import SWATokenToKVPoolAllocator
from kvstead.integrations.sglang.allocator.token import TokenToKVPoolAllocator

pytestmark = pytest.mark.sglang

SPAN = 8


@pytest.fixture(params=["host", "device"], autouse=True)
def kept_on(request, monkeypatch):
    """Our free lists on the host, or where they are on an accelerator."""
    monkeypatch.setattr(backends, "is_resident", lambda _device: request.param == "device")


def paged(cls, num_pages, page_size):
    return cls(num_pages * page_size, page_size, torch.bfloat16, "cpu", Storage(), need_sort=False)


def windowed(cls, num_pages, num_windows, page_size):
    sizes = (num_pages * page_size, num_windows * page_size, page_size)
    return cls(*sizes, torch.bfloat16, "cpu", Storage(), need_sort=False)


def available(pool):
    return pool.full_available_size(), pool.swa_available_size()


@pytest.mark.parametrize("page_size", [2, 4])
def test_scheduler_decodes_on_our_allocators(page_size, monkeypatch):
    """SGLang's decode step frees windows, allocates and writes the rows, with the same slots available afterwards."""
    lengths = [70, 9, 130, 33]
    batches = []
    for cls in (peer.SWATokenToKVPoolAllocator, SWATokenToKVPoolAllocator):
        monkeypatch.setattr(side_sglang, "SWATokenToKVPoolAllocator", cls)
        monkeypatch.setattr(their_swa, "SWATokenToKVPoolAllocator", cls)  # which its caches insist on
        batches.append(side_sglang_windows.SGLangBatch(lengths, 64, page_size))
    pools = [batch._batch.token_to_kv_pool_allocator for batch in batches]
    assert isinstance(pools[1], SWATokenToKVPoolAllocator)
    for _ in range(70):
        theirs, ours = (batch.decode_call()() for batch in batches)
        assert (theirs % page_size).tolist() == (ours % page_size).tolist()
        for batch in batches:
            batch.commit()
        assert batches[0].released() == batches[1].released()
        assert available(pools[0]) == available(pools[1])
    assert batches[1].released() > 0
    assert pools[1].verify_byte_accounting() == []


def prompts(page_size, count):
    """Prompts that share beginnings, whole pages each."""
    rng = random.Random(page_size)
    seen = [[]]
    for _ in range(count):
        head = rng.choice(seen)
        cut = rng.randint(0, len(head) // page_size) * page_size
        tail = [rng.randrange(3) for _ in range(rng.randint(1, 5) * page_size)]
        seen.append([*head[:cut], *tail][: 12 * page_size])
        yield torch.tensor(seen[-1]).numpy()


def live(tree, prompt, *, afresh):
    """A prompt is matched, given the slots it lacks, and cached; evictions make room where there is too little.

    afresh: it does not use what was matched, and hands that part in as a duplicate, to be freed or kept.
    """
    key = tree.key(prompt)
    found = tree.match_call(key)()
    num_matched = tree.num_matched(found)
    num_shared = 0 if afresh else num_matched
    missing = len(prompt) - num_shared
    if missing > min(tree.available_size(), getattr(tree, "window_available_size", tree.available_size)()):
        tree.evict_call(missing)()
        return num_matched, False
    row = tree.row(tree.shared_slots(found)[:num_shared], tree.alloc(missing))
    tree.insert_call(key, row, num_shared)()
    return num_matched, True


def hold(tree, prompt, held, number):
    """A request now and then holds on to a prompt, whose windows it has left behind; the oldest lets go."""
    if number % 2:
        held.append(tree._tree.lock(tree.match_call(tree.key(prompt))().last_device_node))
        tree._tree.release_swa(held[-1])
    if len(held) > 3:
        tree._tree.unlock(held.pop(0))


@pytest.mark.parametrize("core", ["rust", "python"])
@pytest.mark.parametrize("page_size", [1, 4])
def test_prefix_caches_run_on_one_pool(core, page_size):
    """SGLang's radix cache matches, inserts and evicts on ours as on its own, with the same slots available."""
    pair = {1: (peer.TokenToKVPoolAllocator, TokenToKVPoolAllocator)}.get(
        page_size, (peer.PagedTokenToKVPoolAllocator, PagedTokenToKVPoolAllocator)
    )
    if page_size == 1:
        pools = [cls(40, torch.bfloat16, "cpu", Storage(), need_sort=False) for cls in pair]
    else:
        pools = [paged(cls, 40, page_size) for cls in pair]
    trees = [side_sglang.SGLangTree(pool, side_sglang._cache(core, pool, page_size)) for pool in pools]
    matched = 0
    for number, prompt in enumerate(prompts(page_size, 120)):
        seen = [live(tree, prompt, afresh=number % 3 == 0) for tree in trees]
        assert seen[0] == seen[1]
        assert pools[0].available_size() == pools[1].available_size()
        matched += seen[0][0]
    assert matched > 0
    for _ in range(2):
        budgets = [pool.create_prefill_budget(tree._tree) for pool, tree in zip(pools, trees, strict=True)]
        assert budgets[0].remaining_total == budgets[1].remaining_total > 0
        for pool, tree in zip(pools, trees, strict=True):
            assert pool.check_decode_capacity(num_tokens=pool.available_size() + 3, tree_cache=tree._tree)
        assert pools[0].available_size() == pools[1].available_size()
    for tree in trees:
        tree.evict_call(10**6)()
    assert pools[1].available_size() == pools[1].size
    assert pools[1].verify_byte_accounting() == []


@pytest.mark.parametrize("core", ["rust", "python"])
@pytest.mark.parametrize("page_size", [1, 4])
def test_prefix_caches_run_on_two_sides(core, page_size, monkeypatch):
    """SGLang's radix cache with windows links, tombstones and evicts either side on ours as on its own."""
    pools, trees, locks, moved = [], [], ([], []), []
    clear = SWATokenToKVPoolAllocator.clear_full_to_swa_mapping
    monkeypatch.setattr(
        SWATokenToKVPoolAllocator, "clear_full_to_swa_mapping", lambda *args: moved.append(1) or clear(*args)
    )
    for cls in (peer.SWATokenToKVPoolAllocator, SWATokenToKVPoolAllocator):
        monkeypatch.setattr(their_swa, "SWATokenToKVPoolAllocator", cls)  # which its caches insist on
        pools.append(windowed(cls, 60, 40, page_size))
        cache = side_sglang.window_cache(core, pools[-1], page_size, SPAN)
        trees.append(side_sglang.SGLangWindowTree(pools[-1], cache))
    for number, prompt in enumerate(prompts(page_size, 120)):
        for tree in trees:
            lacking = len(prompt) - tree.window_available_size()
            if lacking > 0:
                tree.evict_windows_call(lacking)()
        seen = [live(tree, prompt, afresh=number % 3 == 0) for tree in trees]
        assert seen[0] == seen[1]
        assert available(pools[0]) == available(pools[1])
        for tree, held in zip(trees, locks, strict=True):
            hold(tree, prompt, held, number)
    assert moved, "windows moved from duplicates to rows that are in use"
    for tree, held in zip(trees, locks, strict=True):
        for lock in held:
            tree._tree.unlock(lock)
        tree.evict_windows_call(10**6)()
        tree.evict_call(10**6)()
    assert available(pools[1]) == (pools[1].size_full, pools[1].size_swa)
    assert pools[1].verify_byte_accounting() == []


@pytest.mark.parametrize("page_size", [1, 4])
def test_finished_rows_free_both_sides(page_size):
    """A finished row, part of which has left the window, frees both of its sides."""
    pools = [windowed(cls, 20, 20, page_size) for cls in (peer.SWATokenToKVPoolAllocator, SWATokenToKVPoolAllocator)]
    for pool in pools:
        row = DropIn(pool).alloc_extend([0], [10 * page_size], [-1]) if page_size > 1 else pool.alloc(10)
        pool.free_group_begin()
        pool.free_swa_segment(row[2 * page_size : 6 * page_size], start_pos=2 * page_size)
        kept = [(row[: 4 * page_size], 0), (row[5 * page_size :], 5 * page_size)]
        free_kv_row_segments(pool, kept, swa_evicted_seqlen=6 * page_size, swa_dead_lo=2 * page_size)
        pool.free_group_end()
    assert available(pools[0]) == available(pools[1]) == (19 * page_size, 20 * page_size)
    assert pools[1].verify_byte_accounting() == []


@pytest.mark.parametrize("page_size", [1, 4])
def test_composite_of_two_sides_runs_on_our_pools(page_size, monkeypatch):
    """SGLang's own class for two sides, made of our pools, answers as on its own, and can be resized."""
    sizes = (20, 13, page_size)
    scripts = []
    for seed in range(6):
        theirs = DropIn(windowed(peer.SWATokenToKVPoolAllocator, *sizes))
        scripts.append(WindowRecorder(theirs, seed).record(f"composite {seed}", "swa", 50))
    monkeypatch.setattr(their_swa, "TokenToKVPoolAllocator", TokenToKVPoolAllocator)
    monkeypatch.setattr(their_swa, "PagedTokenToKVPoolAllocator", PagedTokenToKVPoolAllocator)
    for script in scripts:
        pool = windowed(peer.SWATokenToKVPoolAllocator, *sizes)
        assert type(pool.swa_attn_allocator).__module__.startswith("kvstead")
        replay(script, DropIn(pool), exact=page_size == 1)
        pool.full_attn_allocator.core.audit()
    pool.resize(type("Config", (), {"full_max_total_num_tokens": 8 * page_size, "swa_max_total_num_tokens": page_size}))
    assert available(pool) == (8 * page_size, page_size)
