"""SGLang's unified allocators and ours on the same scripts, with real bytes that move."""

import itertools
import math
import random
from abc import ABC
from types import SimpleNamespace

import peer  # noqa: F401 - makes SGLang importable
import pytest
import torch
from sglang.srt.mem_cache import unified_memory_pool as their_memory
from sglang.srt.mem_cache.allocator import swa as static_swa
from sglang.srt.mem_cache.allocator import unified_hybrid_swa as their_swa
from sglang.srt.mem_cache.allocator import unified_mamba as their_mamba
from sglang.srt.mem_cache.allocator import unified_sub_pool as their_pool
from sglang.srt.mem_cache.prefill_budget import SharedSWAPrefillBudget
from test_peer_callers import hold, live, prompts
from test_peer_signatures import missing_parameters
from unified_scripts import KINDS, NoTensors, Script, Side, classes_of, ints, make_allocator, make_buffer, make_specs

import side_sglang
import side_sglang_unified as factories
from kvstead.errors import DoubleFree, ForeignPage
from kvstead.integrations.sglang import unified_memory_pool as memory
from kvstead.integrations.sglang.allocator import arena_pool, unified_hybrid_swa, unified_mamba, unified_sub_pool

pytestmark = pytest.mark.sglang

THEIRS = classes_of(memory=their_memory, swa=their_swa, mamba=their_mamba, pool=their_pool)
OURS = classes_of(memory=memory, swa=unified_hybrid_swa, mamba=unified_mamba, pool=unified_sub_pool)
PAGE_SIZES = (1, 4)


def tensors(classes, buffer, kind, page_size):
    """SGLang's own pools of tensors over a buffer, SGLang's or ours."""
    common = {"unified_buffer": buffer, "page_size": page_size}
    mamba = None
    if kind != "windows":
        layers = {"mamba_layer_ids": [5, 6], "spec_state_size": 4}
        mamba = classes.UnifiedMambaPool(unified_buffer=buffer, sub_pool_name="mamba", **layers)
    if kind == "states":
        full = classes.UnifiedMHATokenToKVPool(**common, sub_pool_name="full", start_layer=0, end_layer=3)
        return SimpleNamespace(full_kv_pool=full, mamba_pool=mamba)
    layers = {"full_attention_layer_ids": [0, 1, 2], "swa_attention_layer_ids": [3, 4]}
    pool = classes.UnifiedSWAKVPool(**common, **layers, start_layer=0, end_layer=5)
    pool.mamba_pool = mamba
    return pool


def side(classes, kind, page_size, *, is_lazy, num_pages=10):
    """An allocator of either make, SGLang's own with its pools of tensors."""
    buffer = make_buffer(classes, kind, page_size, num_pages)
    pools = tensors(THEIRS, buffer, kind, page_size) if classes is THEIRS else NoTensors()
    return Side(make_allocator(classes, buffer, kind, page_size, pools, is_lazy=is_lazy), page_size)


def pair(kind, page_size=4, *, is_lazy=True):
    return tuple(side(classes, kind, page_size, is_lazy=is_lazy) for classes in (THEIRS, OURS))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("page_size", PAGE_SIZES)
def test_same_calls_on_eager_buffers(kind, page_size):
    """Where pages move at every free, both have the same capacity at every step and the same pages under other names,
    and lose no byte; with three pools SGLang may have less.
    """
    for seed in range(3):
        sides = pair(kind, page_size, is_lazy=False)
        Script(sides, page_size, seed, exact=kind != "both", can_grow=page_size > 1).run(40)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("page_size", PAGE_SIZES)
def test_same_calls_on_lazy_buffers(kind, page_size):
    """Where pages move only when bytes are wanted, SGLang never has more available than ours; all else is the same."""
    for seed in range(3):
        Script(pair(kind, page_size), page_size, seed, exact=False, can_grow=page_size > 1).run(40)


USED = {
    "MultiEndedAllocator": """__init__ _allocated_pages _byte_high_frontier _byte_low_frontier _free_phys_pages alloc
        alloc_decode alloc_extend alloc_with_virtual allocated_count available_size bind_peer clear entry_bytes
        entry_bytes_per_page flush_opportunistic free grow_direction lazy_compaction live_page_count max_slots
        min_page_index min_slot_index num_pages num_virtual_ids physical_to_virtual set_inflight_forward
        set_latest_forward_done_event take_physical take_physical_pages translate_kv_loc translate_write_loc
        virtual_to_physical watermark_physical free_segment free_segments schedulable_available_size
        is_slot_allocated allocator_state_str prewarm_compaction""",
    "UnifiedMambaTokenToKVPoolAllocator": """__init__ alloc alloc_decode alloc_extend available_size flush_opportunistic
        free free_segment set_inflight_forward set_latest_forward_done_event size translate_kv_loc translate_write_loc
        set_disagg_move_gate set_host_transfer_move_gate mamba_slot_full_token_cost mamba_full_cache_donor
        full_v2p_page_table full_p2v_page_table prepare_mamba_allocation full_tokens_before_mamba_recheck size_full
        size_mamba get_cpu_copy load_cpu_copy verify_byte_accounting evict_to_free_tokens check_decode_capacity""",
    "UnifiedSWATokenToKVPoolAllocator": """__init__ _conserve_full_available_size _conserve_swa_available_size alloc
        alloc_decode alloc_extend alloc_extend_swa_tail available_size flush_opportunistic free free_swa free_full
        free_swa_segment free_full_segment set_inflight_forward set_latest_forward_done_event translate_kv_loc
        translate_loc_from_full_to_swa swa_v2p_page_table ensure_capacity set_full_to_swa_mapping size_swa
        swa_capacity_and_available current_full_capacity current_swa_capacity get_extend_allocation_demand""",
    "UnifiedMambaSWATokenToKVPoolAllocator": """alloc_extend_swa_tail free_swa mamba_slot_full_token_cost
        prepare_mamba_allocation set_disagg_move_gate flush_opportunistic""",
    "UnifiedKVPool": """__init__ _raw mamba_views_for max_slots mha_views_for min_slot_index mla_spec mla_views_for spec
        mha_spec mamba_spec anchor_bytes active_allocation_bytes""",
}


@pytest.mark.parametrize("name", USED)
def test_members_that_callers_use_exist(name):
    """Every member that callers use is one of SGLang's class and of ours, and takes the same arguments."""
    theirs, ours = getattr(THEIRS, name), getattr(OURS, name)
    for member in USED[name].split():
        mine = getattr(ours, member)
        method = getattr(theirs, member, None)
        if callable(method):
            missing = missing_parameters(method, mine)
            assert [parameter for parameter in missing if not parameter.startswith("_")] == [], member


FACTS = [
    *("size", "max_slots", "min_slot_index", "num_pages", "min_page_index", "page_size", "entry_bytes"),
    *("entry_bytes_per_page", "grow_direction", "lazy_compaction", "live_page_count", "is_id_owner", "sub_pool_name"),
]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("page_size", PAGE_SIZES)
def test_pools_of_a_new_buffer_are_alike(kind, page_size):
    """Sizes, first pages, directions, frontiers and available slots of every pool are SGLang's."""
    them, mine = pair(kind, page_size, is_lazy=False)
    assert them.inner.available_size() == mine.inner.available_size()
    for name, (pool, *_) in mine.sides().items():
        other = them.sides()[name][0]
        for fact in FACTS:
            assert getattr(pool, fact) == getattr(other, fact), (name, fact)
        if pool.grow_direction != "float":
            assert pool.watermark_physical == other.watermark_physical
            assert pool._byte_low_frontier() == other._byte_low_frontier()
            assert pool._byte_high_frontier() == other._byte_high_frontier()
        assert pool._free_phys_pages.numel() == other._free_phys_pages.numel() == 0
        assert pool._allocated_pages() == other._allocated_pages() == 0


@pytest.mark.parametrize("kind", [*KINDS, "latent"])
@pytest.mark.parametrize("page_size", PAGE_SIZES)
def test_tensors_lie_where_sglangs_lie(kind, page_size):
    """Every tensor of every layer starts at the same byte, in the same shape, with rows the same distance apart."""
    places = []
    for classes in (THEIRS, OURS):
        specs = make_specs(classes, kind) if kind != "latent" else [latent(classes), *make_specs(classes, "states")[1:]]
        buffer = classes.UnifiedKVPool(
            total_bytes=9000, sub_pool_specs=specs, device="cpu", enable_memory_saver=False, page_size=page_size
        )
        views = {}
        for spec in specs:
            ask = {"mamba": buffer.mamba_views_for, "latent": buffer.mla_views_for}.get(spec.name, buffer.mha_views_for)
            views[spec.name] = [place_of(tensor, buffer) for tensor in flat(ask(spec.name))]
            views[spec.name] += [spec.entry_bytes(), spec.get_dtype()]
        places.append(views)
    assert places[0] == places[1]


def latent(classes):
    """A spec of latent rows."""
    dims = {"kv_lora_rank": 8, "qk_rope_head_dim": 8, "store_dtype": torch.float16}
    return classes.MLASubPoolSpec(name="latent", layer_num=2, grow_direction="down", **dims)


def flat(views):
    """All tensors of nested lists, a layer at a time."""
    if isinstance(views, torch.Tensor):
        return [views] if views.dim() == 3 else list(views)
    return list(itertools.chain.from_iterable(flat(view) for view in views))


def place_of(tensor, buffer):
    """Where a tensor's first row and the next one start."""
    start = tensor[0].data_ptr() - buffer._raw.data_ptr()
    return tensor.dtype, tuple(tensor.shape), start, tensor[1].data_ptr() - buffer._raw.data_ptr()


@pytest.fixture
def replaced(monkeypatch):
    """SGLang's factories make the buffer and the allocators of our classes."""
    monkeypatch.setattr(their_memory, "UnifiedKVPool", OURS.UnifiedKVPool)
    for module, names in (
        (their_swa, ("UnifiedSWATokenToKVPoolAllocator", "UnifiedMambaSWATokenToKVPoolAllocator")),
        (their_mamba, ("UnifiedMambaTokenToKVPoolAllocator",)),
    ):
        for name in names:
            monkeypatch.setattr(module, name, getattr(OURS, name))


@pytest.mark.usefixtures("replaced")
@pytest.mark.parametrize("kind", ["windows", "states", "windows and states"])
def test_sglangs_factories_and_pools_run_on_ours(kind):
    """What SGLang builds around a buffer, tensors and tables of requests, works on ours: entries follow their slots."""
    bundle = factories._bundle(kind, 200, 4, lazy=True)
    allocator = bundle.token_to_kv_pool_allocator
    assert type(allocator).__module__.startswith("kvstead")
    pools = bundle.token_to_kv_pool
    row = allocator.alloc(48)
    keys = torch.randn(48, 1, pools.full_kv_pool.head_dim).to(torch.float16)
    pools.full_kv_pool.get_key_buffer(0)[allocator.translate_kv_loc(row)] = keys
    if "states" in kind:
        table = bundle.req_to_token_pool
        slots = table.mamba_allocator.alloc(3)
        places = table.translate_mamba_indices(slots)
        table.mamba_pool.mamba_cache.conv[0][:, places] = 3
        table.mamba_allocator.alloc_group_begin(4)
        assert table.mamba_allocator.alloc(1).tolist() == [4]
        table.mamba_allocator.alloc_group_end()
        assert table.mamba_allocator.available_size() == table.mamba_allocator.size - 4
    if "windows" in kind:
        assert torch.equal(pools.translate_loc_from_full_to_swa(row), allocator.translate_loc_from_full_to_swa(row))
        allocator.free_swa(row[:8])
    allocator.free(row[8:16])
    assert allocator.flush_opportunistic() > 0
    kept = torch.cat([row[:8], row[16:]])
    stored = pools.full_kv_pool.get_key_buffer(0)[allocator.translate_kv_loc(kept)]
    assert torch.equal(stored, torch.cat([keys[:8], keys[16:]]))
    if "states" in kind:
        assert (table.mamba_pool.mamba_cache.conv[0][:, table.translate_mamba_indices(slots)] == 3).all()
        table.mamba_allocator.free(slots[:1])
        assert not table.mamba_allocator.is_slot_allocated(slots[0])
        table.mamba_allocator.clear()
    allocator.free(kept)
    assert allocator.verify_byte_accounting() == []


class Either(ABC):  # noqa: B024 - only to be asked for
    """What SGLang's caches insist on, of its own make or of ours."""


for _classes in (THEIRS, OURS):
    Either.register(_classes.UnifiedSWAAllocatorBase)


class UnifiedTree(side_sglang.SGLangWindowTree):
    """SGLang's cache with windows, whose slots come with window slots, as far as both fit together."""

    def __init__(self, pool, cache):
        super().__init__(pool, cache)
        self.available_size = self.window_available_size = pool.available_size

    def alloc(self, num_tokens):
        """Both sides."""
        return self._pool.alloc(num_tokens)


@pytest.mark.parametrize("core", ["rust", "python"])
@pytest.mark.parametrize("page_size", PAGE_SIZES)
def test_prefix_caches_run_on_a_unified_buffer(core, page_size, monkeypatch):
    """SGLang's radix cache with windows links, tombstones, revives and evicts on ours as on its own."""
    monkeypatch.setattr(their_swa, "UnifiedSWAAllocatorBase", Either)
    monkeypatch.setattr(static_swa, "SWATokenToKVPoolAllocator", Either)
    sides = [side(classes, "windows", page_size, is_lazy=False, num_pages=40) for classes in (THEIRS, OURS)]
    pools = [side_.inner for side_ in sides]
    trees = [UnifiedTree(pool, side_sglang.window_cache(core, pool, page_size, 8)) for pool in pools]
    locks, moved, bind = ([], []), [], arena_pool.ArenaPoolView.bind
    monkeypatch.setattr(arena_pool.ArenaPoolView, "bind", lambda *args: moved.append(1) or bind(*args))
    for number, prompt in enumerate(prompts(page_size, 120)):
        for tree in trees:
            tree.evict_windows_call(number % 4 * 4 * page_size)()
        assert len({live(tree, prompt, afresh=number % 3 == 0) for tree in trees}) == 1
        assert len({pool.available_size() for pool in pools}) == 1
        assert len({(used(pool.full_attn_allocator), used(pool.swa_attn_allocator)) for pool in pools}) == 1
        assert pools[1].verify_byte_accounting() == []
        for tree, held in zip(trees, locks, strict=True):
            hold(tree, prompt, held, number)
    assert moved, "windows moved from duplicates to rows that are in use"
    for tree, held in zip(trees, locks, strict=True):
        for lock in held:
            tree._tree.unlock(lock)
        tree.evict_call(10**6)()
    assert used(pools[1].full_attn_allocator) == used(pools[1].swa_attn_allocator) == 0


def used(pool):
    return pool.allocated_count()


# Where SGLang does otherwise.


@pytest.mark.parametrize("kind", KINDS)
def test_pages_freed_twice_raise(kind):
    """SGLang, compacting lazily, has an id twice among the free ones, and its self-check finds nothing; ours raises."""
    them, mine = pair(kind)
    for side_ in (them, mine):
        row = side_.alloc(8)
        side_.free(row[:4])
        if side_ is mine:
            with pytest.raises(DoubleFree):
                side_.free(row[:4])
        else:
            side_.free(row[:4])
    pools = [side_.inner.full_attn_allocator for side_ in (them, mine)]
    repeated = [pool.free_virtual_ids.numel() - pool.free_virtual_ids.unique().numel() for pool in pools]
    assert (repeated, [pool.live_page_count for pool in pools]) == ([1, 0], [0, 1])
    assert them.inner.verify_byte_accounting() == []


def test_padding_cannot_be_freed():
    """SGLang unbinds the sink, where padded rows are written; ours raises."""
    them, mine = pair("states")
    them.free(ints([0]))
    assert them.inner.full_v2p_page_table[0] == -1
    with pytest.raises(ForeignPage):
        mine.free(ints([0]))
    assert mine.inner.full_v2p_page_table[0] == 0


def test_decoding_with_pages_of_one_token():
    """SGLang hands out an id again and again, without a page for it; ours one with a page every time."""
    seen = []
    for side_ in pair("states", 1):
        last = side_.alloc(2)[-1:].tolist()
        new = [side_.alloc_decode([3], last).item() for _ in range(2)]
        seen.append((new[1] - new[0], side_.inner.full_attn_allocator.allocated_count()))
    assert seen == [(0, 2), (1, 4)]


def test_ids_outside_the_pool_cannot_be_translated():
    """SGLang sends an id past the pool to the sink; ours raises."""
    them, mine = pair("states")
    beyond = ints([10**6])
    assert them.inner.translate_kv_loc(beyond).tolist() == [0]
    with pytest.raises(ForeignPage):
        mine.inner.translate_kv_loc(beyond)


def test_windows_freed_inside_a_group_wait_for_its_end():
    """SGLang frees them at once, ours when the group ends, as every other free."""
    them, mine = pair("windows")
    held = []
    for side_ in (them, mine):
        row = side_.alloc(8)
        side_.free_group_begin()
        side_.free_swa(row[:4])
        held.append(side_.inner.swa_attn_allocator.allocated_count())
        side_.free_group_end()
        assert side_.inner.swa_attn_allocator.allocated_count() == 4
    assert held == [4, 8]


def test_states_freed_inside_a_group_wait_for_its_end():
    """SGLang frees them at once, ours when the group ends, with the tokens of their requests."""
    held = []
    for side_ in pair("states"):
        states = side_.inner.mamba_allocator
        slots = states.alloc(2)
        side_.free_group_begin()
        states.free(slots)
        held.append(states.allocated_count())
        side_.free_group_end()
        assert states.allocated_count() == 0
    assert held == [0, 2]


def test_bytes_of_closed_holes_are_free_at_once():
    """SGLang's idle flush moves pages, and their bytes are free at the next call; with ours they are free at once."""
    spans = []
    for side_ in pair("windows"):
        rows = [side_.alloc(4) for _ in range(6)]
        side_.free(rows[1])
        side_.free(rows[3])
        assert side_.inner.flush_opportunistic() > 0
        spans.append(side_.inner.full_attn_allocator._allocated_pages())
        side_.inner.flush_opportunistic()
        assert side_.inner.full_attn_allocator._allocated_pages() == 4
    assert spans == [6, 4]


def test_pages_move_to_make_room_between_three_pools():
    """SGLang refuses tokens that would fit after moves; ours hands them out."""
    refused = 0
    for seed in range(6):
        them, mine = pair("both")
        Partway((them, mine), 4, seed, exact=False).run(30)
        room = mine.inner.available_size()
        if room > them.inner.available_size() and them.alloc(room) is None:
            refused += 1
            assert mine.alloc(room) is not None
            assert mine.inner.verify_byte_accounting() == []
    assert refused


class Partway(Script):
    """A script that stops in the middle."""

    def run(self, num_steps):
        """Play, and leave things as they are."""
        for _ in range(num_steps):
            self.rng.choice(self.acts)()
            self.compare()
        if self.in_group:
            self.group()


def cost(plan, page_size, *, prefer_swa=False):
    """A plan as pages, what it keeps first in front; infinity for None."""
    pages = [math.inf] * 2 if plan is None else [num // page_size for num in plan]
    return pages if prefer_swa else pages[::-1]


@pytest.mark.parametrize("page_size", PAGE_SIZES)
def test_both_sides_are_priced_together_as_sglang_prices_them(page_size):
    """Any demand and evictable slots: what SGLang can reserve, ours can, with no more evicted; ours may have a page
    more, because SGLang counts what grids cost as lost.
    """
    rng, same, all_asked = random.Random(page_size), 0, 0
    for _ in range(12):
        them, mine = (side.inner for side in pair("windows", page_size))
        sizes = [page_size * rng.randrange(1, 3) for _ in range(rng.randrange(5))]
        for row in zip(*([allocator.alloc(size) for size in sizes] for allocator in (them, mine)), strict=True):
            if rng.random() < 1 / 3:
                them.free_swa(row[0])
                mine.free_swa(row[1])
        for _ in range(60):
            demand = sorted((rng.randrange(14 * page_size) for _ in range(2)), reverse=True)
            names = {
                "full_evictable_tokens": rng.randrange(1 + mine.full_attn_allocator.allocated_count()),
                "swa_evictable_tokens": rng.randrange(1 + mine.swa_attn_allocator.allocated_count()),
            }
            for extra in ({}, {"prefer_swa": True}, {"empty_pool": True}):
                plan, own = (side.reclaim_plan(*demand, **names, **extra) for side in (them, mine))
                keeps = {"prefer_swa": "prefer_swa" in extra}
                assert cost(own, page_size, **keeps) <= cost(plan, page_size, **keeps), (demand, names, extra)
                same += own == plan
                all_asked += 1
            assert mine.can_reserve(*demand, **names) >= them.can_reserve(*demand, **names)
            limits = {"token_capacity": 10**6, "sliding_window_size": 3 * page_size, "chunk_size": 2 * page_size}
            bound, own = (side.max_new_tokens_for_memory(*demand, **limits) for side in (them, mine))
            assert (-1 if bound is None else bound) <= (-1 if own is None else own)
    assert same > 0.9 * all_asked


def test_budgets_of_a_prefill_are_sglangs_joint_ones():
    """Every allocator with windows in a unified buffer answers with the budget that prices both sides together."""
    tree = SimpleNamespace(
        full_evictable_size=lambda: 0,
        swa_evictable_size=lambda: 0,
        mamba_evictable_size=lambda: 2,
        sliding_window_size=8,
    )
    for kind in ("windows", "both"):
        mine = side(OURS, kind, 4, is_lazy=True).inner
        if kind == "both":
            assert mine.mamba_allocator.alloc(2) is not None
        most = mine.available_size()
        budget = mine.create_prefill_budget(tree, num_mixed_decode_tokens=4)
        assert isinstance(budget, SharedSWAPrefillBudget)
        assert budget.has_capacity()
        asked = {"extend_input_len": 4, "max_new_tokens": 0, "chunk_limit": None}
        assert budget.can_allocate_prefill(paged_input=4, **asked)
        asked["extend_input_len"] = most + 8
        assert not budget.can_allocate_prefill(paged_input=most + 8, **asked)
        if kind == "both":  # states that can be evicted count
            assert mine.can_reserve(most + 4, 4) <= mine.can_reserve(most + 4, 4, mamba_evictable_slots=2)
            assert budget.allocator.can_reserve(most + 4, most + 4)
            assert not mine.can_reserve(most + 4, most + 4)
            assert mine.max_new_tokens_for_memory(4, 10**6, token_capacity=10**6, sliding_window_size=8, chunk_size=8)
