"""Tokens in an arena: what a pool of their own does, on the arena's bytes."""

import itertools

import pytest
import torch
from arena_pools import TOKENS, arena_of, bits, by_hand, entry, random_bytes, require_no_overlap

from kvstead.errors import InvalidSize
from kvstead.model import BOUNDED, WHOLE_SEQUENCE, CacheKind, LayerCache, ModelLayout
from kvstead.pools import ArenaKVPool, ByteArena, EntrySpec, KVPool, token_spec


def pool_in_arena(layout, page_size=2, num_pages=5, spare_bytes=0, kinds=WHOLE_SEQUENCE):
    spec = token_spec(layout, kinds, name="x", page_size=page_size)
    arena = arena_of(spec, num_pages, spare_bytes)
    return arena, spec, ArenaKVPool(layout, arena, spec, kinds=kinds)


def every(pool):
    """Every tensor of a pool by place, None too."""
    return [*pool.key, *pool.value, *pool.index]


@pytest.mark.parametrize("name", TOKENS)
def test_an_arena_pool_does_what_a_pool_of_its_own_does(name):
    """The same writes, reads and overlapping moves end in the same bytes in every layer and slot."""
    layout = TOKENS[name]
    _, _, pool = pool_in_arena(layout)
    alone = KVPool(layout, 8, 2)
    assert (pool.num_slots, pool.page_size, pool.num_bytes) == (alone.num_slots, alone.page_size, alone.num_bytes)
    orders = [torch.tensor(slots) for slots in ([9, 2, 5], [4, 0, 7, 3])]
    for round_, (layer, slots) in enumerate(itertools.product(range(len(layout.layers)), orders)):
        if alone.key[layer] is None:
            with pytest.raises(InvalidSize, match=f"layer {layer} takes key entries of shape None"):
                pool.write(layer, slots, torch.ones(len(slots), 1, 1))
            continue
        tensors = alone.key[layer], alone.value[layer]
        data = [
            t if t is None else random_bytes((len(slots), *bits(t).shape[1:]), round_).view(t.dtype) for t in tensors
        ]
        for each in (pool, alone):
            each.write(layer, slots, *data)
            if each.index[layer] is not None:
                each.index[layer][slots] = random_bytes((len(slots), *each.index[layer].shape[1:]), 99 - round_)
    source, target = torch.tensor([2, 3, 9, 5]), torch.tensor([3, 4, 2, 8])
    for each in (pool, alone):
        each.move(source, target)
    for mine, other in zip(every(pool), every(alone), strict=True):
        assert (mine is None) == (other is None)
        if mine is not None:
            assert mine.dtype == other.dtype
            assert torch.equal(bits(mine), bits(other))
    for layer in range(len(layout.layers)):
        for mine, other in zip(pool.read(layer, target), alone.read(layer, target), strict=True):
            assert (mine is None) == (other is None)
            assert mine is None or torch.equal(bits(mine), bits(other))


@pytest.mark.parametrize("name", TOKENS)
@pytest.mark.parametrize(("page_size", "spare_bytes"), [(1, 0), (3, 0), (2, 1), (1, 13)])
def test_no_two_elements_lie_on_the_same_bytes(name, page_size, spare_bytes):
    """Every element of every part of every slot has bytes of its own, and together they are all bytes of the pages.

    Also where the arena is no multiple of anything.
    """
    arena, spec, pool = pool_in_arena(TOKENS[name], page_size, spare_bytes=spare_bytes)
    views = {id(view): view for view in every(pool) if view is not None}
    require_no_overlap(arena, spec, list(views.values()))


@pytest.mark.parametrize("name", TOKENS)
def test_rows_are_slots_an_entry_apart(name):
    """Row stride is the entry's bytes in every tensor, heads and elements of a row lie together, from byte 0 on."""
    arena, spec, pool = pool_in_arena(TOKENS[name])
    begin = arena.storage.data_ptr()
    for view in every(pool):
        if view is not None:
            assert view.stride(0) * view.itemsize == spec.entry_bytes
            assert view[0].is_contiguous()
            assert 0 <= view.data_ptr() - begin < spec.entry_bytes
            assert (view.data_ptr() - begin) % view.itemsize == 0


def test_layers_that_share_have_one_view():
    """A layer that reads another's entries has that layer's views; layers of another kind have none."""
    _, _, pool = pool_in_arena(TOKENS["shared layers"])
    assert pool.key[2] is pool.key[0]
    assert pool.value[2] is pool.value[0]
    layout = ModelLayout.preset("gemma-3n-e4b")
    _, _, window = pool_in_arena(layout, kinds=BOUNDED)
    assert window.key[33] is window.key[18]
    assert window.key[19] is window.key[34] is None
    assert window.num_bytes == 10 * layout.window_bytes_per_token


@pytest.mark.parametrize("page_size", [1, 3, 4])
def test_a_grid_has_the_slots_that_it_could_hold(page_size):
    """Rows reach as far as whole pages do; slots to hold are those of pages above the sink."""
    layout = TOKENS["an odd number of bytes"]
    spec = token_spec(layout, WHOLE_SEQUENCE, name="x", page_size=page_size)
    large = EntrySpec("large", spec.page_bytes * 2 + 1, align=1)
    arena = arena_of(spec, 9, spec.page_bytes - 1, [large])
    pool = ArenaKVPool(layout, arena, spec)
    assert pool.num_slots == 6 * page_size
    assert [view.shape[0] for view in (*pool.key, *pool.value)] == [9 * page_size] * 6
    assert pool.num_bytes == 9 * spec.page_bytes
    with pytest.raises(IndexError):
        pool.read(0, torch.tensor([9 * page_size]))


def test_refused_writes_change_nothing():
    """Entries of another shape are refused by an arena pool as by any other."""
    arena, _, pool = pool_in_arena(TOKENS["keys wider than values"])
    with pytest.raises(InvalidSize, match="layer 0 takes value entries"):
        pool.write(0, torch.tensor([3]), torch.ones(1, *pool.key[0].shape[1:]), torch.ones(1, *pool.key[0].shape[1:]))
    assert not arena.storage.any()


@pytest.mark.parametrize("dtype", ["bfloat16", "int8"])
def test_rows_beyond_2_gib_are_reached(dtype):
    """Slot times stride is computed in 64 bits: entries past byte 2**31 and 2**32 are read, written and moved.

    The arena's memory is reserved and, but for a few pages, never touched.
    """
    entry_of_a_mib = entry(CacheKind.FULL, 4, 1 << 17, 1 << 17, dtype)
    layout = by_hand(LayerCache(0, entry_of_a_mib))
    spec = token_spec(layout, WHOLE_SEQUENCE, name="x")
    arena = ByteArena((4 << 30) + 3 * spec.page_bytes, storage=False)
    arena.register([spec])
    arena.storage = torch.empty(arena.total_bytes, dtype=torch.uint8)
    pool = ArenaKVPool(layout, arena, spec)
    beyond = [(1 << 31) // spec.entry_bytes, pool.num_slots]
    assert beyond[1] * spec.entry_bytes > 1 << 32
    for stamp, slot in enumerate(beyond, 1):
        rows = torch.full((1, 4, 1 << 17), stamp)
        pool.write(0, torch.tensor([slot]), rows, -rows)
    assert arena.storage[beyond[1] * spec.entry_bytes :][: spec.entry_bytes].any()
    key, value = pool.read(0, torch.tensor(beyond))
    assert key.float().amin((1, 2)).tolist() == key.float().amax((1, 2)).tolist() == [1, 2]
    assert value.float().amin((1, 2)).tolist() == value.float().amax((1, 2)).tolist() == [-1, -2]
    pool.move(torch.tensor(beyond[1:]), torch.tensor([1]))
    assert pool.read(0, torch.tensor([1]))[0].float().mean() == 2
