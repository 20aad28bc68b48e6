import itertools
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from unified_scripts import (
    KINDS,
    STATE_BYTES,
    TOKEN_BYTES,
    WINDOW_BYTES,
    NoTensors,
    Script,
    Side,
    classes_of,
    ints,
    make_allocator,
    make_buffer,
    make_specs,
)

from kvstead.errors import DoubleFree, ForeignPage, FreeGroupError, InvalidSize, LayoutError, MisalignedSegment
from kvstead.integrations.sglang import unified_memory_pool as memory
from kvstead.integrations.sglang.allocator import unified_hybrid_swa, unified_mamba, unified_sub_pool
from kvstead.integrations.sglang.allocator.swa import SWATokenToKVPoolAllocator
from kvstead.integrations.sglang.allocator.unified_sub_pool import MultiEndedAllocator

OURS = classes_of(memory=memory, swa=unified_hybrid_swa, mamba=unified_mamba, pool=unified_sub_pool)
PAGE_SIZES = (1, 4)


def allocator_of(kind, page_size=4, *, is_lazy=True, num_pages=10):
    buffer = make_buffer(OURS, kind, page_size, num_pages)
    return make_allocator(OURS, buffer, kind, page_size, NoTensors(), is_lazy=is_lazy)


def pool_of(buffer, name, page_size=4, *, is_id_owner=True, **settings):
    settings = {"lazy_compaction": True} | settings
    return MultiEndedAllocator(
        kvcache=None,
        unified_buffer=buffer,
        sub_pool_name=name,
        device="cpu",
        is_id_owner=is_id_owner,
        page_size=page_size,
        **settings,
    )


def packs(allocator, more):
    """Whether the pages in use and `more` of each pool can lie in the buffer at all: lowest first, in order."""
    byte, pools = allocator.unified_buffer.arena.sink_bytes, pools_of(allocator)
    for pool in [pools[name] for name in ("mamba", "swa", "full") if name in pools]:
        count = pool.live_page_count + more.get(pool.sub_pool_name, 0)
        start = max(-(-byte // pool.entry_bytes_per_page), pool.min_page_index)
        if count and start + count > pool.num_pages:
            return False
        byte = (start + count) * pool.entry_bytes_per_page if count else byte
    return True


def pools_of(allocator):
    names = {"full": "full_attn_allocator", "swa": "swa_attn_allocator", "mamba": "mamba_allocator"}
    return {pool: getattr(allocator, name) for pool, name in names.items() if hasattr(allocator, name)}


def capacity(allocator, *names):
    """The most pages that each of some pools can take at once, counted up."""
    return next(n for n in itertools.count() if not packs(allocator, dict.fromkeys(names, n + 1)))


class Checked(Script):
    """A script on one allocator, whose capacities are compared with packings that are counted out."""

    def compare(self):
        """As in every script, and the capacities."""
        super().compare()
        inner = self.sides[0].inner
        if not self.in_group:
            names = [name for name in pools_of(inner) if name != "mamba"]
            ids = inner.full_attn_allocator.num_virtual_ids - 1 - inner.full_attn_allocator.live_page_count
            assert inner.available_size() == min(capacity(inner, *names), ids) * self.page_size
            assert inner.size_full >= inner.full_available_size() >= inner.available_size()
            if hasattr(inner, "mamba_allocator"):
                assert inner.mamba_allocator.available_size() == capacity(inner, "mamba")
        for pool in pools_of(inner).values():
            facts(pool)


def facts(pool):
    """What a pool says of itself fits together: tables, holes, span and bytes."""
    v2p, p2v = pool.virtual_to_physical, pool.physical_to_virtual
    assert (v2p[0], v2p[-1], p2v[0], p2v[-1]) == (0, -1, 0, -1)
    assert v2p.numel() == pool.num_virtual_ids + 1
    assert p2v.numel() == pool.num_pages + 1
    held = (v2p > 0).nonzero().flatten()
    assert torch.equal(p2v[v2p[held]], held)
    assert (p2v > 0).sum() == held.numel()
    lo, hi = (byte // pool.entry_bytes_per_page for byte in (pool._byte_low_frontier(), pool._byte_high_frontier()))
    assert hi - lo == pool._allocated_pages() == pool.live_page_count + pool._free_phys_pages.numel()
    assert set(range(lo, hi)) >= set(v2p[held].tolist()) | set(pool._free_phys_pages.tolist())
    assert pool.watermark_physical == (lo - 1 if pool.grow_direction == "down" else hi)
    assert pool.allocated_count() == pool.live_page_count * pool.entry_bytes_per_page // pool.entry_bytes
    assert f"{pool._free_phys_pages.numel()} of them holes" in pool.allocator_state_str()


@pytest.mark.parametrize("is_lazy", [True, False], ids=["lazy", "eager"])
@pytest.mark.parametrize("page_size", PAGE_SIZES)
@pytest.mark.parametrize("kind", KINDS)
def test_scripts_keep_bytes_and_count_capacity_exactly(kind, page_size, is_lazy):
    """Random calls lose no byte of a live page and share none, and the capacity is the largest packing there is."""
    for seed in range(3):
        side = Side(allocator_of(kind, page_size, is_lazy=is_lazy), page_size)
        Checked([side], page_size, seed).run(40)
        assert side.inner.lazy_compaction == is_lazy


@pytest.mark.parametrize("kind", KINDS)
def test_first_freed_is_first_reused(kind):
    """Ids are handed out from 1 upward and freed ones queue behind them, even when pages move."""
    allocator = allocator_of(kind, 1)
    first = allocator.alloc(4)
    assert first.tolist() == [1, 2, 3, 4]
    allocator.free(ints([2, 3]))
    order = allocator.full_attn_allocator.free_virtual_ids.tolist()
    assert (order[0], order[-2:]) == (5, [2, 3])
    assert allocator.alloc(2).tolist() == [5, 6]


def test_entries_have_the_bytes_of_their_tensors():
    """An entry is the sum of its layers' tensors: padded to 16 bytes where it is of tokens, and not for states."""
    full, swa, mamba = make_specs(OURS, "both")
    assert (full.entry_bytes(), swa.entry_bytes(), mamba.entry_bytes()) == (TOKEN_BYTES, WINDOW_BYTES, STATE_BYTES)
    odd = memory.MHASubPoolSpec(
        name="odd", layer_num=1, head_num=1, head_dim=3, v_head_dim=5, store_dtype=torch.uint8, grow_direction="up"
    )
    assert (odd.entry_bytes(), odd.get_dtype(), odd.kv_cache_dtype) == (16, torch.uint8, torch.uint8)
    latent = latent_spec("up")
    assert (latent.kv_cache_dim, latent.entry_bytes(), latent.get_dtype()) == (6, 32, torch.float16)
    assert mamba.get_dtype() == torch.bfloat16


def latent_spec(direction):
    return memory.MLASubPoolSpec(
        name="latent",
        layer_num=2,
        kv_lora_rank=4,
        qk_rope_head_dim=2,
        store_dtype=torch.float16,
        grow_direction=direction,
    )


def tensors_of(buffer):
    """Every tensor of every pool, [slots, ...], with the pool's name and a page's slots."""
    found = []
    for spec in buffer.sub_pool_specs:
        if hasattr(spec, "conv_dtype"):
            convs, temporal = buffer.mamba_views_for(spec.name)
            found += [(spec.name, tensor) for block in (*convs, temporal) for tensor in block]
        elif hasattr(spec, "kv_lora_rank"):
            found += [(spec.name, tensor) for tensor in buffer.mla_views_for(spec.name)]
        else:
            found += [(spec.name, tensor) for side in buffer.mha_views_for(spec.name) for tensor in side]
    return found


@pytest.mark.parametrize("page_size", PAGE_SIZES)
@pytest.mark.parametrize("kind", [*KINDS, "latent"])
def test_tensors_of_a_pool_share_no_byte_and_lie_in_their_slots(kind, page_size):
    """Each tensor of each layer has bytes of its own in every slot, and all of them lie in the slot's entry."""
    specs = make_specs(OURS, kind) if kind != "latent" else [*make_specs(OURS, "states")[:1], latent_spec("up")]
    buffer = memory.UnifiedKVPool(total_bytes=5000, sub_pool_specs=specs, device="cpu", page_size=page_size)
    for name in {name for name, _ in tensors_of(buffer)}:
        tensors = [tensor for owner, tensor in tensors_of(buffer) if owner == name]
        entry, num_slots = buffer.spec(name).entry_bytes(), tensors[0].shape[0]
        page = 1 if name == "mamba" else page_size
        assert num_slots == buffer.max_slots(name) // page * page
        owners = torch.zeros(num_slots * entry, dtype=torch.int64)
        for tensor in tensors:
            for slot in (0, 1, num_slots - 1):
                buffer._raw.zero_()
                tensor[slot].view(torch.uint8).fill_(1)
                touched = buffer._raw.nonzero().flatten()
                assert touched.numel() == tensor[slot].nbytes
                assert (touched // entry == slot).all()
                owners[touched] += 1
        assert owners.max() == 1


def test_specs_and_tensors_of_another_kind_are_refused():
    """Specs and tensors of another kind, and unknown pools, are refused by name."""
    buffer = make_buffer(OURS, "both", 4)
    wrong = [buffer.mla_spec, buffer.mamba_spec, buffer.mla_views_for, buffer.mamba_views_for]
    for ask, name in [*((ask, "full") for ask in wrong), (buffer.mha_spec, "mamba"), (buffer.mha_views_for, "mamba")]:
        with pytest.raises(LayoutError, match=name):
            ask(name)
    with pytest.raises(LayoutError, match="full"):
        buffer.max_slots("nothing")
    assert (buffer.anchor_bytes("swa"), buffer.active_allocation_bytes) == (0, buffer.total_bytes)
    assert [spec.name for spec in buffer.sub_pool_specs] == ["mamba", "swa", "full"]


def test_first_slot_lies_above_the_sink():
    """The first slot and page of a pool are the first above the largest page of any pool."""
    buffer = make_buffer(OURS, "states", 4)
    full = pool_of(buffer, "full")
    assert buffer.min_slot_index("full") == 7  # 656 bytes of state, 96 of a token
    assert (full.min_slot_index, full.min_page_index, full.max_slots, full.num_pages) == (7, 2, 128, 32)
    assert (full.entry_bytes, full.entry_bytes_per_page, full.grow_direction, full.size) == (96, 384, "down", 128)


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"enable_memory_saver": True}, NotImplementedError),
        ({"post_capture_active": True}, NotImplementedError),
        ({"fused_draft": "a draft"}, NotImplementedError),
        ({"total_bytes": 300}, LayoutError),
        ({"sub_pool_specs": "one"}, LayoutError),
        ({"sub_pool_specs": "two up"}, LayoutError),
        ({"sub_pool_specs": "with draft"}, NotImplementedError),
        ({"sub_pool_specs": "misaligned"}, LayoutError),
    ],
    ids=str,
)
def test_impossible_buffers_are_refused(change, error):
    """Unsupported settings, and sizes without capacity for a page, are refused by the constructor."""
    full, swa = make_specs(OURS, "windows")
    states = {"name": "mamba", "layer_num": 1, "grow_direction": "up", "conv_state_shapes": ((3,),)}
    states |= {"conv_dtype": torch.bfloat16, "temporal_state_shape": (2,), "temporal_dtype": torch.float32}
    other = {
        "one": [full],
        "two up": [swa, latent_spec("up")],
        "with draft": [full, SimpleNamespace(grow_direction="up", draft_region="a region")],
        "misaligned": [full, memory.MambaSubPoolSpec(**states)],
    }
    change = {key: other.get(value, value) if key == "sub_pool_specs" else value for key, value in change.items()}
    settings = {"total_bytes": 4000, "sub_pool_specs": [full, swa], "device": "cpu", "page_size": 4}
    with pytest.raises(error):
        memory.UnifiedKVPool(**settings | change)


@pytest.mark.parametrize("change", [{"grow_direction": "sideways"}, {"layer_num": 0}])
def test_impossible_specs_are_refused(change):
    """Unknown directions and pools without layers are refused."""
    settings = {"name": "full", "layer_num": 1, "grow_direction": "up", "head_num": 1, "head_dim": 4}
    with pytest.raises(LayoutError, match="full"):
        memory.MHASubPoolSpec(**settings | change, store_dtype=torch.float16)


def test_one_pool_alone_works_like_a_paged_allocator():
    """A pool that owns ids grows, shrinks and defers frees by pages; what it takes is lost to the other pool."""
    buffer = make_buffer(OURS, "states", 4)
    full, mamba = pool_of(buffer, "full"), pool_of(buffer, "mamba", 1)
    full.bind_peer(mamba)
    mamba.bind_low_peer(full)
    before = mamba.available_size()
    row = Side(full, 4).alloc_extend([0], [6], [-1])
    assert row.tolist() == [4, 5, 6, 7, 8, 9]
    row = torch.cat([row, Side(full, 4).alloc_decode([7], [9])])
    assert (full.allocated_count(), full.is_slot_allocated(11), full.is_slot_allocated(12)) == (8, True, False)
    assert not full.is_slot_allocated(10**6)
    assert mamba.available_size() < before
    assert (full.schedulable_available_size(), full.free_virtual_ids[0]) == (full.available_size(), 3)
    full.free_group_begin()
    full.free_segments([(row[4:], 4)])
    assert (full.allocated_count(), full.free_group is None) == (8, False)
    full.free_group_end()
    full.free_segment(row[:4], start_pos=0)
    assert (full.allocated_count(), mamba.available_size()) == (0, before)
    full.clear()
    assert full.verify_byte_accounting() == []
    with pytest.raises(NotImplementedError, match="size"):
        full.resize(None)


def test_take_physical_says_where_slots_lie():
    """`take_physical` returns where slots lie; the table has their ids, by which they are freed."""
    full = pool_of(make_buffer(OURS, "windows", 4), "full")
    places = full.take_physical(8)
    pages = full.take_physical_pages(1)
    ids = full.physical_to_virtual[torch.cat([places[::4] // 4, pages])]
    assert ids.tolist() == [1, 2, 3]
    assert torch.equal(full.translate_kv_loc(ids * 4), torch.cat([places[::4], pages * 4]))
    full.free(ids * 4)
    assert full.live_page_count == 0
    assert full.take_physical(10**6 * 4) is None
    assert full.take_physical_pages(10**6) is None


@pytest.mark.parametrize("page_size", [1, 4])
@pytest.mark.parametrize("grouped", [False, True])
def test_pages_under_given_ids_are_freed_once_and_in_rows(page_size, grouped):
    """A page in two stretches, a slot named twice and a torn stretch are refused, with nothing changed."""
    buffer = make_buffer(OURS, "windows", page_size)
    owner, guest = pool_of(buffer, "full", page_size), pool_of(buffer, "swa", page_size, is_id_owner=False)
    row = owner.alloc(3 * page_size)
    guest.alloc_with_virtual(row[::page_size] // page_size)
    if grouped:
        guest.free_group_begin()
    part = row[:page_size]
    with pytest.raises(DoubleFree):
        guest.free_segments([(part, 0), (part, page_size)])
    if page_size == 1:
        with pytest.raises(DoubleFree):
            guest.free(torch.cat((part, part)))
    else:
        with pytest.raises(MisalignedSegment):
            guest.free_segments([(part, 0), (row[page_size + 1 :], page_size)])
    guest.free(row)
    guest.free_group_end()
    assert guest.live_page_count == 0


def test_pool_takes_pages_under_given_ids():
    """A pool without ids of its own takes pages under another's, waits in groups, and refuses other pages."""
    buffer = make_buffer(OURS, "windows", 4)
    owner, guest = pool_of(buffer, "full"), pool_of(buffer, "swa", is_id_owner=False)
    ids = owner.alloc(16)[::4] // 4
    guest.alloc_with_virtual(ids)
    assert (guest.live_page_count, guest.free_virtual_ids, guest.is_id_owner) == (4, None, False)
    facts(guest)
    with pytest.raises(InvalidSize, match="asked for and"):
        guest.alloc_with_virtual(torch.arange(5, owner.num_virtual_ids))
    guest.free_group_begin()
    guest.free_segment(ids[:1] * 4, start_pos=0)
    guest.free_segments([(ids[1:2] * 4, 4), (ids[:0], 8)])
    assert (guest.live_page_count, guest.translate_kv_loc(ids[:2] * 4).tolist()) == (4, [0, 0])
    with pytest.raises(DoubleFree):
        guest.free(ids[:1] * 4)
    with pytest.raises(FreeGroupError):
        guest.free_group_begin()
    guest.free_group_end()
    assert guest.live_page_count == 2
    with pytest.raises(DoubleFree):
        guest.free(ids[:1] * 4)
    with pytest.raises(ForeignPage):
        guest.free(ints([0]))
    for unaligned in (lambda: guest.free_segment(ids, start_pos=3), lambda: guest.free_segments([(ids, 3)])):
        with pytest.raises(MisalignedSegment):
            unaligned()
    guest.free(ints([]))
    room_left = guest.available_size()
    guest.clear()
    assert guest.available_size() > room_left
    assert guest.verify_byte_accounting() == []


def test_only_owners_hand_out_ids():
    """The wrong call raises and names the right one."""
    buffer = make_buffer(OURS, "windows", 4)
    owner, guest = pool_of(buffer, "full"), pool_of(buffer, "swa", is_id_owner=False)
    with pytest.raises(LayoutError, match="Use alloc"):
        owner.alloc_with_virtual(ints([1]))
    wrong = (lambda: guest.alloc(4), lambda: Side(guest, 4).alloc_extend([0], [1], [-1]))
    for ask in (*wrong, lambda: Side(guest, 4).alloc_decode([1], [-1])):
        with pytest.raises(LayoutError, match="alloc_with_virtual"):
            ask()


def test_pools_of_one_buffer_agree():
    """Another page size, way of compacting or buffer, kernel ids and shards are refused."""
    buffer = make_buffer(OURS, "windows", 4)
    full = pool_of(buffer, "full")
    with pytest.raises(LayoutError, match="pages"):
        pool_of(buffer, "swa", 1)
    with pytest.raises(LayoutError, match="lazy_compaction"):
        pool_of(buffer, "swa", lazy_compaction=False)
    with pytest.raises(LayoutError, match="different buffers"):
        full.bind_peer(pool_of(make_buffer(OURS, "windows", 4), "swa"))
    with pytest.raises(LayoutError, match="nothing"):
        pool_of(buffer, "nothing")
    for name, value in (("kernel_page_multiplier", 2), ("shards_under_dcp", True)):
        with pytest.raises(NotImplementedError):
            pool_of(buffer, "swa", **{name: value})
    for kind in KINDS:
        with pytest.raises(LayoutError, match="pages"):
            make_allocator(OURS, make_buffer(OURS, kind, 4), kind, 1, NoTensors(), is_lazy=True)


@pytest.mark.parametrize("kind", KINDS)
def test_slots_that_are_not_held_translate_to_the_sink(kind):
    """-1, padding and free slots lie in the sink; an id past the pool raises; `out` is written in place."""
    allocator = allocator_of(kind, 4)
    row = allocator.alloc(8)
    allocator.free(row[:4])
    places = allocator.translate_kv_loc(torch.cat([ints([-1, 0, 3]), row]))
    assert places.tolist()[:7] == [0] * 7
    assert (places[7:] > 0).all()
    out = torch.full((9,), 7)
    assert allocator.translate_write_loc(row, out=out, out_width=9) is out
    assert out.tolist() == [*places.tolist()[3:], 0]
    square = row.to(torch.int32).reshape(2, 4)
    buffer = torch.empty((2, 4), dtype=torch.int64)
    assert allocator.translate_kv_loc(square, out=buffer) is buffer
    assert torch.equal(allocator.full_attn_allocator.translate_kv_loc_dense(square), buffer)
    assert torch.equal(allocator.translate_kv_indices_for_transfer(row), buffer.flatten())
    assert torch.equal(allocator.translate_write_loc(row), buffer.flatten())
    with pytest.raises(ForeignPage):
        allocator.translate_kv_loc(ints([allocator.draft_virtual_id_space + 4]))
    with pytest.raises(InvalidSize):
        allocator.translate_kv_loc(row, out=torch.empty(3, dtype=torch.int64))
    assert allocator.is_slot_allocated(int(row[-1]))
    assert not allocator.is_slot_allocated(int(row[0]))


def test_tables_that_kernels_read_stay_where_they_are():
    """The tensors of both sides are the same at every call, and are up to date after a read or a translation."""
    allocator = allocator_of("windows", 4)
    full, window = allocator.full_v2p_page_table, allocator.swa_v2p_page_table
    row = allocator.alloc(12)
    allocator.free_swa(row[:4])
    allocator.translate_kv_loc(row)
    allocator.translate_loc_from_full_to_swa(row)
    assert full.data_ptr() == allocator.full_v2p_page_table.data_ptr()
    assert window.data_ptr() == allocator.swa_v2p_page_table.data_ptr()
    pages = row[::4] // 4
    assert torch.equal(full[pages] * 4, allocator.translate_kv_loc(row[::4]))
    assert window[pages].tolist()[0] == -1
    assert torch.equal(window[pages[1:]] * 4, allocator.translate_loc_from_full_to_swa(row[4::4]))
    assert torch.equal(allocator.full_p2v_page_table[full[pages]], pages)
    assert allocator.translate_loc_from_full_to_swa(row[:4]).tolist() == [0] * 4
    assert torch.equal(allocator.translate_swa_indices_for_transfer(row), allocator.translate_loc_from_full_to_swa(row))


@pytest.mark.parametrize("kind", ["windows", "both"])
def test_window_pages_can_be_passed_on(kind):
    """A full page without a window can take over another's, as a prefix cache does; the other loses it."""
    allocator = allocator_of(kind, 4)
    kept, incoming = allocator.alloc(8), allocator.alloc(8)
    allocator.free_swa(kept)
    places = allocator.translate_loc_from_full_to_swa(incoming)
    allocator.clear_full_to_swa_mapping(incoming)
    allocator.set_full_to_swa_mapping(kept, places)
    assert torch.equal(allocator.translate_loc_from_full_to_swa(kept), places)
    assert allocator.translate_loc_from_full_to_swa(incoming).tolist() == [0] * 8
    allocator.swa_attn_allocator.bind(kept[::4] // 4, places[::4] // 4)
    allocator.free_full(incoming)
    allocator.free(kept)
    assert allocator.verify_byte_accounting() == []
    assert allocator.swa_attn_allocator.allocated_count() == 0


@pytest.mark.parametrize("kind", ["windows", "both"])
def test_prompt_with_windows_at_its_end_alone(kind):
    """A prompt may have full pages for all of it and window pages for its tail."""
    allocator = allocator_of(kind, 4)
    row = Side(allocator, 4).alloc_extend_swa_tail([0], [14], [-1], 6)
    assert (allocator.translate_loc_from_full_to_swa(row) > 0).tolist() == [False] * 8 + [True] * 6
    assert [allocator.full_attn_allocator.live_page_count, allocator.swa_attn_allocator.live_page_count] == [4, 2]


def test_sizes_are_given_or_what_the_bytes_allow():
    """Without sizes a side has what it could hold alone, where a window slot needs a full one."""
    buffer = make_buffer(OURS, "windows", 4)
    cls, settings = OURS.UnifiedSWATokenToKVPoolAllocator, {"kvcache": NoTensors(), "device": "cpu", "page_size": 4}
    with pytest.raises(InvalidSize, match="both"):
        cls(unified_buffer=buffer, full_max_total_num_tokens=8, **settings)
    free = cls(unified_buffer=buffer, **settings)
    alone = free.full_room()
    assert (free.size_full, free.size_swa, free.size, free._full_max_total_num_tokens) == (alone,) * 4
    buffer = make_buffer(OURS, "windows", 4)
    sizes = {"full_max_total_num_tokens": 24, "swa_max_total_num_tokens": 16}
    capped = cls(unified_buffer=buffer, **sizes, **settings)
    row = capped.alloc(12)
    capped.free_swa(row[:4])
    assert (capped.size_full, capped.size_swa, capped.size, capped._swa_max_total_num_tokens) == (24, 16, 16, 16)
    assert (capped.full_available_size(), capped._conserve_full_available_size()) == (12, 12)
    assert (capped.swa_available_size(), capped._conserve_swa_available_size()) == (8, 8)
    assert (capped.current_full_capacity, capped.current_swa_capacity) == (24, 16)
    assert capped.swa_capacity_and_available(full_capacity=1, swa_capacity=1) == ((24, 12), (16, 8))
    assert capped.schedulable_full_available_size() > 12
    assert capped.schedulable_swa_available_size() > 8
    assert isinstance(capped, SWATokenToKVPoolAllocator)
    assert capped.get_kvcache().full_allocator is capped.full_attn_allocator


@pytest.mark.parametrize("kind", ["windows", "both"])
def test_unequal_demands_are_answered_together(kind):
    """Whether so many full and so many window slots fit together is answered as the packing says."""
    allocator = allocator_of(kind, 4)
    allocator.alloc(16)
    for full, window in itertools.product(range(0, 14, 2), repeat=2):
        assert allocator.ensure_capacity(4 * full, 4 * window) == packs(allocator, {"full": full, "swa": window})
        assert allocator.new_pages_available(full, window) == packs(allocator, {"full": full, "swa": window})


@pytest.mark.parametrize("kind", ["states", "both"])
def test_states_wait_and_go_with_the_tokens(kind):
    """States freed in a group are available at its end; cleared alone, they leave the group and the tokens stay."""
    allocator = allocator_of(kind, 4)
    states = allocator.mamba_allocator
    row, held = allocator.alloc(8), states.alloc(3)
    assert (held.tolist(), states.free_virtual_ids[0], states.page_size) == ([1, 2, 3], 4, 1)
    states.free_group_begin()
    states.free(held[:1])
    allocator.free(row[:4])
    assert states.allocated_count() == 3
    states.clear()
    states.free_group_end()
    assert (states.allocated_count(), allocator.full_attn_allocator.allocated_count()) == (0, 4)
    assert states.free_group is None
    assert allocator.verify_byte_accounting() == []
    assert states.alloc(2).tolist() == [1, 2]
    states.clear()
    with pytest.raises(DoubleFree):
        states.free(ints([1]))
    assert states.alloc(10**4) is None


@pytest.mark.parametrize("kind", ["states", "both"])
def test_bytes_of_tokens_serve_states(kind):
    """A state costs tokens by bytes; the bound for a recheck is never more than what is really needed."""
    allocator = allocator_of(kind, 4)
    tokens = TOKEN_BYTES + (WINDOW_BYTES if kind == "both" else 0)
    assert allocator.mamba_slot_full_token_cost() == -(-STATE_BYTES // tokens)
    assert allocator.mamba_full_cache_donor() is allocator
    row = allocator.alloc(allocator.available_size())
    states = allocator.mamba_allocator.available_size()
    assert allocator.full_tokens_before_mamba_recheck(states) == 0
    assert 0 < allocator.full_tokens_before_mamba_recheck(states + 2) <= 16
    allocator.free_group_begin()
    allocator.free(row[:16])
    assert allocator.mamba_allocator.available_size() == states
    allocator.prepare_mamba_allocation(states + 2)
    assert allocator.mamba_allocator.available_size() > states
    assert allocator.free_group == []
    allocator.free_group_end()
    assert allocator.mamba_allocator.alloc(states + 2) is not None


def test_size_of_tokens_beside_states_is_what_they_leave():
    """Available and held tokens make up the size, for any number of states."""
    allocator = allocator_of("states", 4)
    for _ in range(3):
        allocator.alloc(8)
        allocator.mamba_allocator.alloc(1)
        assert allocator.size == allocator.available_size() + allocator.full_attn_allocator.allocated_count()
        assert allocator.full_available_size() == allocator.full_attn_allocator.available_size()
    allocator.size = 3
    assert allocator.size != 3
    assert (allocator.size_full, allocator.size_mamba) == (127, 17)


@pytest.mark.parametrize("kind", KINDS)
def test_views_pass_calls_on_to_their_owner(kind):
    """The pools of an allocator take, free and wait as it does, and cannot be cleared or resized alone."""
    allocator = allocator_of(kind, 4)
    full = allocator.full_attn_allocator
    row = full.alloc(8)
    full.free_group_begin()
    full.free(row[:4])
    assert full.free_group is allocator.free_group is not None
    full.free_group_end()
    full.free_segment(row[4:], start_pos=4)
    assert full.allocated_count() == 0
    assert full.available_size() == full.schedulable_available_size() == allocator.full_room()
    for pool in pools_of(allocator).values():
        if pool is not getattr(allocator, "mamba_allocator", None):
            with pytest.raises(NotImplementedError, match="cleared"):
                pool.clear()
        with pytest.raises(NotImplementedError, match="size"):
            pool.resize(None)
        pool.clear_inverse_history()
        pool.prewarm_compaction()
    with pytest.raises(NotImplementedError, match="size"):
        allocator.resize(None)
    allocator.prewarm_compaction()
    assert allocator.allocator_state_str() == full.allocator_state_str()
    assert "available" in allocator.debug_print()


def test_window_side_frees_windows_alone():
    """A free on the window side, by any call, keeps the full page; and nothing is handed out there."""
    allocator = allocator_of("windows", 4)
    row, window = allocator.alloc(12), allocator.swa_attn_allocator
    window.free(row[:1])
    allocator.free_group_begin()
    window.free_segment(row[4:8], start_pos=4)
    assert len(allocator.swa_free_group) == 1
    assert window.free_virtual_ids is None
    allocator.free_group_end()
    assert [window.live_page_count, allocator.full_attn_allocator.live_page_count] == [1, 3]
    assert (allocator.swa_free_group, window.available_size()) == ([], allocator.core.swa_available_size())
    with pytest.raises(NotImplementedError, match="full pages"):
        window.alloc(4)
    allocator.clear()
    assert [window.live_page_count, allocator.full_attn_allocator.live_page_count] == [0, 0]


class Event:
    """Counts who waits for it."""

    waits = 0

    def wait(self):
        """Once more."""
        self.waits += 1


def scattered(kind, *, is_lazy=True):
    """An allocator with holes."""
    allocator = allocator_of(kind, 4, is_lazy=is_lazy)
    rows = [allocator.alloc(4) for _ in range(6)]
    allocator.free(rows[1])
    allocator.free(rows[3])
    return allocator


@pytest.mark.parametrize("through", ["allocator", "side"])
@pytest.mark.parametrize("kind", KINDS)
def test_moves_come_behind_the_last_forward_pass(kind, through):
    """Moves wait for the event of the last pass, by either of its names."""
    allocator = scattered(kind)
    target = allocator if through == "allocator" else allocator.full_attn_allocator
    first, last = Event(), Event()
    target.set_latest_forward_done_event(first)
    target.set_inflight_forward(last, ints([4]))
    assert target.flush_opportunistic() > 0
    assert (first.waits, last.waits > 0) == (0, True)
    assert target.flush_opportunistic() == 0
    assert all(pool._free_phys_pages.numel() == 0 for pool in pools_of(allocator).values())


@pytest.mark.parametrize("kind", KINDS)
def test_nothing_moves_while_a_gate_is_closed(kind):
    """Each of the two gates keeps pages where they are, and the capacity is counted accordingly."""
    allocator, is_open = scattered(kind), {"disagg": True, "host": True}
    allocator.set_disagg_move_gate(lambda: is_open["disagg"])
    allocator.set_host_transfer_move_gate(lambda: is_open["host"])
    with_moves = allocator.available_size()
    for gate in is_open:
        is_open[gate] = False
        before = allocator.full_v2p_page_table.clone()
        assert allocator.flush_opportunistic() == 0
        assert allocator.available_size() <= with_moves
        assert allocator.alloc(allocator.available_size() + 4) is None
        assert torch.equal(before, allocator.full_v2p_page_table)
        is_open[gate] = True
    assert allocator.flush_opportunistic() > 0
    assert allocator.available_size() == with_moves


def test_moves_wait_for_the_whole_stream_without_an_event(monkeypatch):
    """Without an event the current stream waits for the forward stream, and for nothing without either."""
    waited = []
    stream = SimpleNamespace(wait_stream=waited.append)
    module = SimpleNamespace(current_stream=lambda: stream)
    monkeypatch.setattr(torch, "get_device_module", lambda _: module)
    moves = memory.MoveGate("cpu")
    moves.fence()
    moves.forward_stream = "forward"
    moves.fence()
    moves.forward_done = Event()
    moves.fence()
    assert (waited, moves.forward_done.waits) == (["forward"], 1)


class Sibling:
    """What SGLang keeps for each state outside the buffer, by physical slot."""

    def __init__(self):
        self.values = {}

    def copy_slots(self, src, dst):
        """Copy the values of slots."""
        self.values |= {int(b): self.values[int(a)] for a, b in zip(src, dst, strict=True)}


@pytest.mark.parametrize("is_lazy", [False, True])
@pytest.mark.parametrize("kind", ["states", "both"])
def test_what_is_kept_beside_the_buffer_moves_with_the_states(kind, is_lazy):
    """Tensors by physical slot outside the buffer are copied with every move of states, and ring positions reset."""
    sibling = Sibling()
    pools = NoTensors()
    pools.mamba_pool = SimpleNamespace(_slot_siblings=(sibling,), replayssm_write_pos=torch.ones(40, dtype=torch.int32))
    allocator = make_allocator(OURS, make_buffer(OURS, kind, 4, 10), kind, 4, pools, is_lazy=is_lazy)
    states = [allocator.mamba_allocator.alloc(1) for _ in range(6)]
    places = {int(state): int(allocator.mamba_allocator.translate_kv_loc(state)) for state in states}
    sibling.values = {place: state for state, place in places.items()}
    for state in (states[0], states[2]):
        allocator.mamba_allocator.free(state)
    allocator.flush_opportunistic()
    live = [state for at, state in enumerate(states) if at not in {0, 2}]
    now = {int(state): int(allocator.mamba_allocator.translate_kv_loc(state)) for state in live}
    assert any(now[state] != places[state] for state in now)
    assert all(sibling.values[place] == state for state, place in now.items())
    moved = [place for state, place in now.items() if place != places[state]]
    assert pools.mamba_pool.replayssm_write_pos[moved].sum() == 0
    assert pools.mamba_pool.replayssm_write_pos.sum() == 40 - len(moved)


def test_eager_buffers_have_no_holes():
    """Where pages move at every free, no hole is ever left at an end of the chain."""
    allocator = scattered("windows", is_lazy=False)
    assert all(pool._free_phys_pages.numel() == 0 for pool in pools_of(allocator).values())
    assert not allocator.full_attn_allocator.lazy_compaction


class Tree:
    """A prefix cache that holds rows and states, and gives them back one by one, rows first."""

    def __init__(self, allocator, rows=(), states=()):
        self.allocator, self.rows, self.states = allocator, list(rows), list(states)
        self.shares, self.asked = True, []

    def supports_prefix_sharing(self):
        """Whether it holds anything."""
        return self.shares

    def full_evictable_size(self):
        """Slots of all rows, which have both sides."""
        return sum(row.numel() for row in self.rows)

    swa_evictable_size = full_evictable_size

    def mamba_evictable_size(self):
        """States."""
        return len(self.states)

    def evict_for_alloc(self, params, *, allocation_reclaim_satisfied):
        """Rows up to the larger number of tokens, then states, until the allocator is satisfied."""
        self.asked.append(params)
        gone = SimpleNamespace(num_tokens_evicted=0, swa_num_tokens_evicted=0, mamba_num_evicted=0)
        wanted = max(params.num_tokens, params.swa_num_tokens)
        while self.rows and gone.num_tokens_evicted < wanted and not allocation_reclaim_satisfied():
            row = self.rows.pop()
            self.allocator.free(row)
            gone.num_tokens_evicted += row.numel()
        while self.states and gone.mamba_num_evicted < params.mamba_num and not allocation_reclaim_satisfied():
            self.allocator.mamba_allocator.free(self.states.pop())
            gone.mamba_num_evicted += 1
        return gone


@pytest.mark.parametrize("is_grouped", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_eviction_goes_on_until_tokens_fit_together(kind, is_grouped):
    """Rows are evicted until the slots fit, no further, inside a group too, which stays open."""
    allocator = allocator_of(kind, 4)
    states = [allocator.mamba_allocator.alloc(1) for _ in range(4)] if kind != "windows" else []
    rows = [allocator.alloc(4) for _ in range(allocator.available_size() // 4)]
    tree = Tree(allocator, rows, states)
    if is_grouped:
        allocator.free_group_begin()
        assert allocator.evict_to_free_tokens(tree, 8)
        assert allocator.free_group == []
        allocator.free_group_end()
    else:
        assert allocator.evict_to_free_tokens(tree, 8)
    assert 8 <= allocator.available_size() <= 12
    assert len(rows) - len(tree.rows) == 2
    assert tree.states == states
    tree.shares = False
    assert allocator.evict_to_free_tokens(tree, 8) is None
    assert allocator.evict_to_free_tokens(None, 8) is None


@pytest.mark.parametrize("kind", KINDS)
def test_nothing_is_evicted_for_tokens_that_cannot_fit(kind):
    """Where all that can be evicted does not suffice, all of it stays."""
    allocator = allocator_of(kind, 4)
    rows = [allocator.alloc(4) for _ in range(allocator.available_size() // 4)]
    tree = Tree(allocator, rows[1:])
    num_tokens = 4 * len(rows)
    assert not allocator.evict_to_free_tokens(tree, num_tokens)
    assert (len(tree.rows), tree.asked) == (len(rows) - 1, [])
    assert allocator.evict_to_free_tokens(tree, num_tokens - 4)


@pytest.mark.parametrize("kind", ["states", "both"])
def test_states_are_evicted_only_where_tokens_do_not_suffice(kind):
    """States go when all rows have gone and the tokens still do not fit."""
    allocator = allocator_of(kind, 4)
    free_at_first = allocator.available_size()
    states = [allocator.mamba_allocator.alloc(1) for _ in range(4)]
    rows = [allocator.alloc(4) for _ in range(allocator.available_size() // 4)]
    tree = Tree(allocator, rows, states)
    assert allocator.evict_to_free_tokens(tree, free_at_first)
    assert (tree.rows, tree.states) == ([], [])
    assert [params.mamba_num for params in tree.asked] == [0, len(states)]


def test_eviction_gives_up_when_the_tree_evicts_nothing():
    """A tree that says more is evictable than it evicts ends the eviction with False."""
    allocator = allocator_of("windows", 4)
    rows = [allocator.alloc(4) for _ in range(allocator.available_size() // 4)]
    tree = Tree(allocator, rows)
    tree.evict_for_alloc = lambda *_, **__: SimpleNamespace(
        num_tokens_evicted=0, swa_num_tokens_evicted=0, mamba_num_evicted=0
    )
    assert allocator.evict_to_free_tokens(tree, 4) is False
    assert not allocator.check_decode_capacity(num_tokens=4, tree_cache=tree)


@pytest.mark.parametrize("kind", ["windows", "both"])
def test_eviction_makes_room_for_a_reservation_of_both_sides(kind):
    """Rows are evicted until the slots of both sides fit together; if they never do, the answer says why."""
    allocator = allocator_of(kind, 4)
    rows = [allocator.alloc(4) for _ in range(allocator.available_size() // 4)]
    tree = Tree(allocator, rows)
    assert allocator.reclaim_for_prealloc(tree, 12, 4) is None
    assert allocator.ensure_capacity(12, 4)
    assert tree.rows
    assert "10000 full and 4 window" in allocator.reclaim_for_prealloc(tree, 10_000, 4)
    tree.shares = False
    assert allocator.reclaim_for_prealloc(tree, 4, 4) is None
    assert "10000 full and 4 window" in allocator.reclaim_for_prealloc(tree, 10_000, 4)


@pytest.mark.parametrize("kind", ["windows", "both"])
@pytest.mark.parametrize("prefer_swa", [False, True])
def test_a_plan_evicts_the_least_that_makes_both_sides_fit(kind, prefer_swa):
    """Any demand: the plan is the first of all pairs, fewest windows first (or full slots), whose pages then pack."""
    allocator = allocator_of(kind, 4, num_pages=8)
    rows = [allocator.alloc(4) for _ in range(6)]
    for row in rows[:2]:
        allocator.free_swa(row)
    size, full_used, window_used = allocator.page_size, 6, 4

    def expected(full, window, full_evictable, window_evictable):
        pairs = itertools.product(range(full_evictable + 1), range(window_evictable + 1))
        plans = [
            (num_full * size, num_windows * size)
            for num_full, num_windows in pairs
            if packs(allocator, {"full": full - num_full, "swa": window - num_windows})
        ]
        return min(plans, key=lambda plan: plan if prefer_swa else plan[::-1], default=None)

    rng = np.random.default_rng(3)
    for _ in range(200):
        demand = [int(n) for n in rng.integers(0, 12, 2)]
        evictable = int(rng.integers(0, full_used + 1)), int(rng.integers(0, window_used + 1))
        names = dict(zip(("full_evictable_tokens", "swa_evictable_tokens"), [n * size for n in evictable], strict=True))
        plan = allocator.reclaim_plan(*(n * size for n in demand), **names, prefer_swa=prefer_swa)
        assert plan == expected(*demand, *evictable), (demand, evictable)
        assert allocator.can_reserve(*(n * size for n in demand), **names) == (plan is not None)
        assert allocator.can_reserve(*(max(0, n * size - 0.5) for n in demand), **names) == (plan is not None)
    assert allocator.reclaim_plan(-1, 4) is None
    assert not allocator.can_reserve(4, -1)


@pytest.mark.parametrize("kind", ["windows", "both"])
def test_an_empty_buffer_is_asked_without_what_is_in_use(kind):
    """With `empty_pool` the pages in use do not count; beside states, one state does."""
    allocator = allocator_of(kind, 4)
    state = {"mamba": 1} if kind == "both" else {}
    most = next(n for n in itertools.count() if not packs(allocator, {"full": n + 1, "swa": n + 1, **state})) * 4
    allocator.alloc(allocator.available_size())
    assert not allocator.can_reserve(4, 4)
    assert allocator.can_reserve(most, most, empty_pool=True)
    assert allocator.reclaim_plan(most, most, empty_pool=True) == (0, 0)
    assert allocator.prealloc_ceiling_fits(most, most)
    assert allocator.prealloc_fits_assumes_reclaim()
    assert not allocator.can_reserve(most + 4, most + 4, empty_pool=True)
    assert allocator.reclaim_plan(most + 4, most + 4, empty_pool=True) is None
    assert not allocator.can_reserve(allocator.size_full, 0, empty_pool=True, require_token_slack=True)


def test_a_budget_below_what_a_side_has_is_part_of_the_demand():
    """What the budgets reserve for others is added on each side, and what the tree can evict is counted."""
    allocator = allocator_of("windows", 4)
    rows = [allocator.alloc(4) for _ in range(allocator.available_size() // 4)]
    tree = Tree(allocator, rows[2:])
    evictable = tree.full_evictable_size()
    has_full = allocator.full_available_size() + evictable
    has_window = allocator.swa_available_size() + evictable
    budgets = {"full_budget_tokens": has_full, "swa_budget_tokens": has_window}
    assert allocator.prealloc_fits(tree, evictable, evictable, **budgets)
    assert not allocator.prealloc_fits(tree, evictable + 4, evictable + 4, **budgets)
    less = {name: budget - 4 for name, budget in budgets.items()}
    assert not allocator.prealloc_fits(tree, evictable, evictable, **less)
    assert allocator.prealloc_fits(tree, evictable - 4, evictable - 4, **less)
    assert allocator.prealloc_fits(tree, evictable, 0, full_budget_tokens=has_full)


def test_demand_of_rows_is_that_of_the_pages_they_open():
    """The demand before rows grow is counted in pages; with shards it is the caller's figure."""
    allocator = allocator_of("windows", 4)
    rng = np.random.default_rng(5)
    prefix = torch.from_numpy(rng.integers(0, 20, 30))
    seq = prefix + torch.from_numpy(rng.integers(0, 9, 30))
    pages = sum(-(-int(end) // 4) - -(-int(start) // 4) for start, end in zip(prefix, seq, strict=True))
    ask = allocator.get_extend_allocation_demand
    assert ask(prefix, seq, conservative_num_tokens=77, shard_size=1) == pages * 4
    assert ask(prefix, seq, conservative_num_tokens=77, shard_size=2) == 77


def test_copies_to_the_host_go_by_physical_slots():
    """The pool beside states is passed physical slots, both ways."""
    calls = []
    allocator = allocator_of("states", 4)
    allocator._kvcache = SimpleNamespace(
        get_cpu_copy=lambda indices, **_: calls.append(indices) or "copy",
        load_cpu_copy=lambda copy, indices, **_: calls.append(indices) or copy,
    )
    row = allocator.alloc(4)
    assert allocator.get_cpu_copy(row) == "copy"
    assert allocator.load_cpu_copy("copy", row) == "copy"
    assert all(torch.equal(call, allocator.translate_kv_loc(row)) for call in calls)


def test_only_window_pools_pass_pages_on():
    """`bind` of a pool without window pages raises and names the right call."""
    full = allocator_of("windows").full_attn_allocator
    with pytest.raises(LayoutError, match="window pool"):
        full.bind(ints([1]), ints([1]))


def test_attributes_of_parts_are_read_only():
    """An attribute that is read from a part cannot be set, and reads the part from then on too."""
    allocator = allocator_of("windows")
    with pytest.raises(AttributeError, match="cannot set"):
        allocator.size_full = 3
    assert allocator.size_full == 4000


def test_unified_classes_pass_for_window_allocators():
    """SGLang asks for its classes of two sides by `isinstance`, and the unified ones are among them."""
    assert issubclass(unified_hybrid_swa.UnifiedSWAAllocatorBase, SWATokenToKVPoolAllocator)
    assert isinstance(allocator_of("both"), SWATokenToKVPoolAllocator)
