"""Layouts of every form that an entry takes, and arenas for them."""

from dataclasses import replace

import torch

from kvstead.model import CacheKind, LayerCache, ModelLayout, StatePart, TokenCache
from kvstead.pools import ByteArena


def first_layers(name, num_layers, **keywords):
    layout = ModelLayout.preset(name, **keywords)
    return replace(layout, layers=layout.layers[:num_layers])


def by_hand(*layers):
    return ModelLayout("by hand", layers)


def entry(kind, heads, key_dim, value_dim, dtype="int8", index_bytes=0):
    """A layer's entry of elements that torch knows."""
    size = getattr(torch, dtype).itemsize
    sizes = heads * key_dim * size, heads * value_dim * size
    span = 8 if kind is CacheKind.WINDOW else None
    return TokenCache(kind, heads, key_dim, value_dim, dtype, *sizes, span=span, index_bytes=index_bytes)


_SPARSE = entry(CacheKind.LATENT, 1, 8, 0, "bfloat16", index_bytes=12)

TOKENS = {
    "keys and values": first_layers("llama-3.1-8b", 2),
    "fp8": first_layers("llama-3.1-8b", 2, cache_dtype="float8_e4m3fn"),
    "keys wider than values": first_layers("mimo-v2-flash", 7),
    "latents": first_layers("deepseek-v3", 3),
    "packed latents": first_layers("deepseek-v3", 3, cache_dtype="fp8_ds_mla"),
    "indexer keys": by_hand(LayerCache(0, _SPARSE), LayerCache(1), LayerCache(2, _SPARSE)),
    "shared layers": by_hand(
        LayerCache(0, entry(CacheKind.FULL, 2, 3, 2, "bfloat16")),
        LayerCache(1, entry(CacheKind.FULL, 1, 4, 4, "bfloat16")),
        LayerCache(2, shared_kind=CacheKind.FULL, shared_with=0),
    ),
    "an odd number of bytes": by_hand(*(LayerCache(at, entry(CacheKind.FULL, 1, 4, 3)) for at in range(3))),
    "layers of other kinds": first_layers("qwen3-next-80b-a3b", 4),
}

STATES = {
    "Mamba-2": first_layers("bamba-9b", 2, tensor_parallel=8),
    "bfloat16 alone": first_layers("qwen3-next-80b-a3b", 4, state_dtype="bfloat16", tensor_parallel=8),
    "bytes and floats": first_layers("qwen3-next-80b-a3b", 2, conv_dtype="float8_e4m3fn", tensor_parallel=8),
    "three convolutions": first_layers("kimi-linear-48b-a3b", 4, tensor_parallel=8),
    "a convolution alone": first_layers("lfm2-1.2b", 4, tensor_parallel=8),
    "mixed by hand": by_hand(
        LayerCache(0, state=(StatePart("conv", (5, 3), "bfloat16"), StatePart("recurrent", (2, 3), "float32"))),
        LayerCache(1),
        LayerCache(2, state=(StatePart("conv", (1, 1), "bfloat16"), StatePart("scale", (1,), "float64"))),
        LayerCache(3, state=(StatePart("none", (4, 0), "float32"), StatePart("flags", (8,), "int8"))),
    ),
}


def arena_of(spec, num_pages=5, spare_bytes=0, others=()):
    """An arena with so many pages of a pool, sink included, and `spare_bytes` that make no page."""
    arena = ByteArena(spec.page_bytes * num_pages + spare_bytes)
    arena.register([spec, *others])
    return arena


def random_bytes(shape, seed):
    return torch.randint(0, 256, shape, dtype=torch.uint8, generator=torch.Generator().manual_seed(seed))


def bits(tensor):
    """The bytes of a tensor, so that no NaN is unequal to itself."""
    return tensor.view(torch.uint8) if tensor.numel() else tensor.new_zeros(0, dtype=torch.uint8)


def require_no_overlap(arena, spec, views):
    """Views hold what was written to each, once all are written, and take every byte of the pool's pages, once."""
    for seed, view in enumerate(views):
        bits(view).copy_(random_bytes(bits(view).shape, seed))
    for seed, view in enumerate(views):
        assert torch.equal(bits(view), random_bytes(bits(view).shape, seed))
    arena.storage.zero_()
    for view in views:
        bits(view).fill_(255)
    end = arena.num_pages(spec) * spec.page_bytes
    assert sum(bits(view).numel() for view in views) == end
    assert arena.storage[:end].eq(255).all()
    assert not arena.storage[end:].any()
    arena.storage.zero_()
