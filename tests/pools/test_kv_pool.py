"""The tensors of a layout: their bytes, and what is written comes back."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from kvstead.errors import InvalidSize
from kvstead.model import BOUNDED, CacheKind, LayerCache, ModelLayout, TokenCache, split_bytes
from kvstead.pools import KVPool

PRESETS = [
    ("llama-3.1-8b", {}),
    ("llama-3.1-8b", {"cache_dtype": "float8_e4m3fn"}),
    ("qwen3-8b", {"cache_dtype": "float32"}),
    ("llama-3.1-70b", {"tensor_parallel": 8}),
    ("qwen3-30b-a3b", {}),
    ("deepseek-v3", {}),
    ("deepseek-v3", {"cache_dtype": "fp8_ds_mla"}),
    ("deepseek-v2-lite", {"tensor_parallel": 2}),
    ("smollm2-135m", {}),
]


def layout_of(name, **keywords):
    """A preset with its first three layers."""
    layout = ModelLayout.preset(name, **keywords)
    return replace(layout, layers=layout.layers[:3])


def small_pool(num_slots=8, page_size=2, name="llama-3.1-8b", **keywords):
    return KVPool(layout_of(name, **keywords), num_slots, page_size)


def entries_like(tensor, num, seed=0):
    """Small whole numbers, which every dtype keeps exactly."""
    generator = torch.Generator().manual_seed(seed)
    shape = (num, *tensor.shape[1:])
    return torch.randint(0, 9, shape, generator=generator).to(tensor.dtype)


@pytest.mark.parametrize(("name", "keywords"), PRESETS)
@pytest.mark.parametrize(("num_slots", "page_size"), [(0, 1), (5, 1), (48, 16), (64, 64)])
def test_tensors_take_the_bytes_that_the_layout_says(name, keywords, num_slots, page_size):
    """Slots and padding page over all layers are what `bytes_for` counts, and what sizing is built on."""
    layout = layout_of(name, **keywords)
    pool = KVPool(layout, num_slots, page_size)
    assert pool.num_bytes == layout.bytes_for(num_slots, page_size)


@pytest.mark.parametrize(("name", "keywords"), PRESETS)
def test_every_slot_of_every_layer_keeps_its_own_entries(name, keywords):
    """What is written to some slots is read there, in any order, and nowhere else."""
    pool = KVPool(layout_of(name, **keywords), 8, 2)
    slots = torch.tensor([7, 2, 9])
    for layer, (key, value) in enumerate(zip(pool.key, pool.value, strict=True)):
        written = entries_like(key, 3, layer), None if value is None else entries_like(value, 3, 50 + layer)
        pool.write(layer, slots, *written)
        order = torch.tensor([2, 0, 1])
        for expected, found in zip(written, pool.read(layer, slots[order]), strict=True):
            assert (expected is None) == (found is None)
            if expected is not None:
                assert torch.equal(expected[order].view(torch.uint8), found.view(torch.uint8))
        others = torch.tensor([0, 1, 3, 4, 5, 6, 8])
        for tensor in pool.read(layer, others):
            assert tensor is None or not tensor.view(torch.uint8).any()


def test_latent_entries_have_no_values():
    """A latent layer keeps one entry a token; values for it are refused."""
    pool = small_pool(name="deepseek-v2-lite")
    assert pool.key[0].shape == (10, 1, 576)
    assert pool.value == [None] * 3
    with pytest.raises(InvalidSize, match="value entries of shape None"):
        pool.write(0, torch.tensor([2]), torch.zeros(1, 1, 576), torch.zeros(1, 1, 512))


def test_packed_entries_are_bytes():
    """A dtype that torch does not know is kept as the layout's bytes: 512 + 16 + 128 for a packed latent."""
    pool = small_pool(name="deepseek-v3", cache_dtype="fp8_ds_mla")
    assert pool.key[0].dtype == torch.uint8
    assert pool.key[0].shape == (10, 1, 656)


def test_layers_that_share_have_one_tensor():
    """A layer that reads another's entries has that layer's tensors, counted and moved once."""
    layout = layout_of("llama-3.1-8b")
    shared = replace(layout, layers=(*layout.layers, LayerCache(3, shared_kind=CacheKind.FULL, shared_with=1)))
    pool = KVPool(shared, 4, 2)
    assert pool.key[3] is pool.key[1]
    assert pool.value[3] is pool.value[1]
    assert pool.num_bytes == layout.bytes_for(4, 2) == shared.bytes_for(4, 2)
    pool.write(3, torch.tensor([2]), torch.ones(1, 8, 128), torch.ones(1, 8, 128))
    pool.move(torch.tensor([2, 3]), torch.tensor([3, 2]))
    assert pool.read(1, torch.tensor([2, 3]))[0][:, 0, 0].tolist() == [0, 1]


def test_layers_without_entries_have_no_tensors():
    """Such a layer has None, and writing to it is refused."""
    layout = layout_of("llama-3.1-8b")
    pool = KVPool(replace(layout, layers=(*layout.layers, LayerCache(3))), 4, 2)
    assert pool.read(3, torch.tensor([2])) == (None, None)
    assert pool.num_bytes == layout.bytes_for(4, 2)
    with pytest.raises(InvalidSize, match="layer 3 takes key entries of shape None"):
        pool.write(3, torch.tensor([2]), torch.ones(1, 8, 128))


def test_indexer_keys_are_bytes_of_their_own():
    """What a sparse-attention indexer keeps beside a latent lies in `index` and moves with its slot."""
    entry = TokenCache(CacheKind.LATENT, 1, 8, 0, "bfloat16", 16, 0, index_bytes=12)
    layout = replace(layout_of("llama-3.1-8b"), layers=(LayerCache(0, entry),))
    pool = KVPool(layout, 4, 2)
    assert pool.index[0].shape == (6, 1, 12)
    assert pool.num_bytes == layout.bytes_for(4, 2) == 6 * 28
    pool.index[0][3] = 7
    pool.move(torch.tensor([3]), torch.tensor([5]))
    assert pool.index[0][:, 0, 0].tolist() == [0, 0, 0, 7, 0, 7]


WINDOWED = ["gemma-3-1b", "gpt-oss-20b", "llama-4-scout", "gemma-3n-e4b", "mimo-v2-flash", "command-r7b"]


def two_pools(name, num_slots, num_window_slots, page_size, **keywords):
    """Both pools of a model with windows, and its layout."""
    layout = ModelLayout.preset(name, **keywords)
    window = KVPool(layout, num_window_slots, page_size, kinds=BOUNDED)
    return layout, KVPool(layout, num_slots, page_size), window


@pytest.mark.parametrize("name", WINDOWED)
@pytest.mark.parametrize(("num_slots", "num_window_slots", "page_size"), [(0, 0, 1), (5, 3, 1), (48, 16, 16)])
def test_two_pools_take_the_bytes_that_the_split_says(name, num_slots, num_window_slots, page_size):
    """Both sides with their padding pages are what `split_bytes` counts, each its own kinds' share."""
    layout, full, window = two_pools(name, num_slots, num_window_slots, page_size)
    assert full.num_bytes == layout.full_bytes_per_token * (num_slots + page_size)
    assert window.num_bytes == layout.window_bytes_per_token * (num_window_slots + page_size)
    assert full.num_bytes + window.num_bytes == split_bytes(layout, num_slots, num_window_slots, page_size)


@pytest.mark.parametrize("name", WINDOWED)
def test_each_layer_lies_in_the_pool_of_its_kind(name):
    """Of every layer that caches, also by sharing, one pool has tensors, with its own number of rows, and one None."""
    layout, full, window = two_pools(name, 8, 4, 2)
    for layer in layout.layers:
        kind = layer.shared_kind if layer.tokens is None else layer.tokens.kind
        mine, other, rows = (window, full, 6) if kind in BOUNDED else (full, window, 10)
        assert mine.key[layer.index].shape[0] == mine.value[layer.index].shape[0] == rows
        assert other.read(layer.index, torch.arange(2)) == (None, None)


def test_layers_share_inside_the_pool_of_their_kind():
    """The last 15 layers of Gemma 3n read layer 18's windows or layer 19's keys and values: one tensor in one pool."""
    layout, full, window = two_pools("gemma-3n-e4b", 8, 4, 2)
    for layer in layout.layers[20:]:
        mine, other, owner = (full, window, 19) if layer.shared_kind is CacheKind.FULL else (window, full, 18)
        assert mine.key[layer.index] is mine.key[owner]
        assert mine.value[layer.index] is mine.value[owner]
        assert other.key[layer.index] is other.value[layer.index] is None
    window.write(33, torch.tensor([5]), torch.ones(1, 2, 256), torch.ones(1, 2, 256))
    window.move(torch.tensor([5]), torch.tensor([3]))
    assert window.read(18, torch.tensor([3, 4, 5]))[0][:, 1, 0].tolist() == [1, 0, 1]


def test_sides_may_differ_in_width():
    """MiMo has other heads in its windows, and keys wider than values on both sides."""
    _, full, window = two_pools("mimo-v2-flash", 4, 2, 2)
    assert (full.key[0].shape, full.value[0].shape) == ((6, 4, 192), (6, 4, 128))
    assert (window.key[1].shape, window.value[1].shape) == ((4, 8, 192), (4, 8, 128))


def test_ranks_share_the_window_side_too():
    """Each of two ranks has half of the heads of both sides."""
    layout, full, window = two_pools("llama-4-scout", 4, 2, 2, tensor_parallel=2)
    assert full.key[3].shape == (6, 4, 128)
    assert window.key[0].shape == (4, 4, 128)
    assert full.num_bytes + window.num_bytes == split_bytes(layout, 4, 2, 2)


def test_a_model_of_windows_only_is_one_pool():
    """Where every layer slides the bounded kinds are all there is, and the bytes those of `bytes_for`."""
    layout, full, window = two_pools("mistral-7b-v0.1", 8, 8, 2)
    assert full.num_bytes == 0
    assert window.num_bytes == layout.bytes_for(8, 2)


@given(st.permutations(range(2, 10)), st.integers(0, 8), st.permutations(range(2, 10)))
def test_moves_may_overlap(source, count, target):
    """Slots are copied as they were before the move, also where the move overwrites them."""
    entry = TokenCache(CacheKind.FULL, 1, 2, 1, "int8", 2, 1)
    layout = replace(layout_of("llama-3.1-8b"), layers=(LayerCache(0, entry), LayerCache(1, entry)))
    pool = KVPool(layout, 8, 2)
    for layer in range(2):
        entries = torch.arange(20).reshape(10, 1, 2) + 20 * layer
        pool.write(layer, torch.arange(10), entries, -entries[:, :, :1])
    before = [pool.read(layer, torch.arange(10)) for layer in range(2)]
    pool.move(torch.tensor(source[:count], dtype=torch.int64), torch.tensor(target[:count], dtype=torch.int64))
    came_from = list(range(10))
    for origin, place in zip(source[:count], target[:count], strict=True):
        came_from[place] = origin
    for layer in range(2):
        for old, new in zip(before[layer], pool.read(layer, torch.arange(10)), strict=True):
            assert torch.equal(new, old[came_from])


def test_padding_rows_take_writes():
    """Kernels may write to the slots of page 0; no other slot changes."""
    pool = small_pool(page_size=2)
    pool.write(0, torch.tensor([0, 1]), torch.ones(2, 8, 128), torch.ones(2, 8, 128))
    assert not pool.read(0, torch.arange(2, 10))[0].any()


@pytest.mark.parametrize(
    ("num_key", "num_value", "heads", "dim"), [(2, 3, 8, 128), (3, 2, 8, 128), (3, 3, 4, 128), (3, 3, 8, 64)]
)
def test_entries_of_another_shape_are_refused(num_key, num_value, heads, dim):
    """Too few entries, other heads or another width are refused, and the layer stays as it is."""
    pool = small_pool()
    key, value = torch.ones(num_key, 8, 128), torch.ones(num_value, heads, dim)
    for pair in ((key, value), (value, key), (key, None)):
        with pytest.raises(InvalidSize, match="layer 1 takes"):
            pool.write(1, torch.tensor([2, 3, 4]), *pair)
    for tensor in pool.read(1, torch.arange(10)):
        assert not tensor.any()


def test_entries_are_converted():
    """Entries of another dtype are converted to the layout's."""
    pool = small_pool()
    entries = torch.full((1, 8, 128), 1.001, dtype=torch.float64)
    pool.write(0, torch.tensor([2]), entries, entries)
    assert pool.read(0, torch.tensor([2]))[0].dtype == torch.bfloat16
    assert torch.equal(pool.read(0, torch.tensor([2]))[1], entries.to(torch.bfloat16))
