"""Entry sizes of arena pools, and the places of their parts."""

import itertools
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from kvstead.errors import InvalidSize, LayoutError
from kvstead.model import (
    BOUNDED,
    WHOLE_SEQUENCE,
    CacheKind,
    LayerCache,
    ModelLayout,
    StatePart,
    TokenCache,
    preset_names,
)
from kvstead.pools import ArenaKVPool, ArenaStatePool, ByteArena, EntrySpec, Place, StatePool, state_spec, token_spec

UNEVEN = {"smollm2-135m"}  # of 9 heads, for one rank alone
LATENTS = ("deepseek-v2-lite", "deepseek-v3", "kimi-k2", "kimi-linear-48b-a3b")
DTYPES = [
    *itertools.product(["bfloat16", "float8_e4m3fn"], ["bfloat16", "float32"], ["bfloat16", "float32"]),
    ("float32", "float32", "float8_e4m3fn"),
    ("fp8_ds_mla", "float32", "bfloat16"),
]


def state_layout(*states):
    """Layers with parts of (shape, dtype), no tokens."""
    layers = [
        LayerCache(at, state=tuple(StatePart(f"part {number}", *part) for number, part in enumerate(parts)))
        for at, parts in enumerate(states)
    ]
    return ModelLayout("by hand", tuple(layers))


def token_layout(*entries):
    return ModelLayout("by hand", tuple(LayerCache(at, entry) for at, entry in enumerate(entries)))


def arena_of(spec, num_pages=4):
    arena = ByteArena(spec.page_bytes * num_pages)
    arena.register([spec])
    return arena


@pytest.mark.parametrize("dtypes", DTYPES, ids="-".join)
@pytest.mark.parametrize("tensor_parallel", [1, 2])
def test_entries_have_the_bytes_that_the_layout_says(dtypes, tensor_parallel):
    """For every bundled model: one token of each side and one state, without padding, on their elements' multiples."""
    keywords = dict(zip(("cache_dtype", "state_dtype", "conv_dtype"), dtypes, strict=True))
    names = set(LATENTS if dtypes[0] == "fp8_ds_mla" else preset_names()) - (UNEVEN if tensor_parallel > 1 else set())
    num_specs = 0
    for name in names:
        layout = ModelLayout.preset(name, tensor_parallel=tensor_parallel, **keywords)
        makers = [
            (layout.full_bytes_per_token, lambda of: token_spec(of, WHOLE_SEQUENCE, name="full", page_size=16)),
            (layout.window_bytes_per_token, lambda of: token_spec(of, BOUNDED, name="window", page_size=16)),
            (layout.state_bytes, state_spec),
        ]
        for num_bytes, make in makers:
            if num_bytes == 0:
                with pytest.raises(LayoutError, match="no layer has entries"):
                    make(layout)
                continue
            spec = make(layout)
            assert spec.entry_bytes == num_bytes
            assert num_bytes % spec.align == 0
            num_specs += 1
    assert num_specs >= len(LATENTS)


def test_specs_keep_the_options_given():
    """Name, page size, place and zeroing are as the caller gives them; a state is a page of its own."""
    layout = ModelLayout.preset("qwen3-next-80b-a3b")
    tokens = token_spec(layout, WHOLE_SEQUENCE, name="kv", page_size=64, place=Place.HIGH, zero_on_take=True)
    assert (tokens.name, tokens.page_size, tokens.place, tokens.zero_on_take) == ("kv", 64, Place.HIGH, True)
    assert tokens.page_bytes == 64 * 12 * 2 * 2 * 256 * 2
    state = state_spec(layout, name="mamba", place=Place.MIDDLE)
    assert (state.name, state.page_size, state.place, state.zero_on_take) == ("mamba", 1, Place.MIDDLE, False)
    assert (state_spec(layout).name, state_spec(layout).place) == ("state", Place.LOW)
    with pytest.raises(InvalidSize, match="page_size of pool 'kv' is 0"):
        token_spec(layout, WHOLE_SEQUENCE, name="kv", page_size=0)


@given(
    st.lists(
        st.lists(
            st.tuples(
                st.lists(st.integers(1, 5), min_size=1, max_size=3).map(tuple),
                st.sampled_from(["float64", "float32", "bfloat16", "int8"]),
            ),
            min_size=1,
            max_size=3,
        ),
        min_size=1,
        max_size=3,
    )
)
def test_any_state_is_laid_out_or_refused(states):
    """Every part lies on its elements' multiples in every slot; a state is refused if and only if none such exists.

    Slots follow one another without padding, so one exists exactly where all the largest elements' multiples are met by
    the entry.
    """
    layout = state_layout(*states)
    largest = max(torch.empty(0, dtype=getattr(torch, dtype)).itemsize for parts in states for _, dtype in parts)
    if layout.state_bytes % largest:
        with pytest.raises(LayoutError, match=f"{layout.state_bytes} bytes, not a multiple of the {largest} bytes of"):
            StatePool(layout, 2)
        return
    pool = StatePool(layout, 2)
    assert pool.num_bytes == 3 * layout.state_bytes
    for layer, parts in enumerate(states):
        for number, (shape, dtype) in enumerate(parts):
            part = pool.part(layer, f"part {number}")
            assert (part.shape, part.dtype) == ((3, *shape), getattr(torch, dtype))
            assert part.stride(0) * part.itemsize == layout.state_bytes
            assert part[1].is_contiguous()
            assert part.data_ptr() % part.itemsize == 0


def test_large_elements_come_first():
    """An indexer's 12 bytes between two latents would put the second off the 16 that kernels load at once."""
    entry = TokenCache(CacheKind.LATENT, 1, 8, 0, "bfloat16", 16, 0, index_bytes=12)
    layout = token_layout(entry, entry)
    spec = token_spec(layout, WHOLE_SEQUENCE, name="full")
    arena = arena_of(spec)
    pool = ArenaKVPool(layout, arena, spec)
    tensors = (*pool.key, *pool.index)
    assert [tensor.data_ptr() - arena.storage.data_ptr() for tensor in tensors] == [0, 16, 32, 44]


@pytest.mark.parametrize(
    ("layout", "kinds", "words"),
    [
        (
            state_layout([((5, 3), "bfloat16"), ((2, 2), "float32")]),
            None,
            "'state' have 46 bytes.*4 bytes of a torch.float32",
        ),
        (state_layout([((3,), "int8")], [((2,), "float16")]), None, "'state' have 7 bytes.*2 bytes of a torch.float16"),
        (
            token_layout(TokenCache(CacheKind.LATENT, 1, 8, 0, "bfloat16", 16, 0, index_bytes=5)),
            WHOLE_SEQUENCE,
            "'full' have 21 bytes.*2 bytes of a torch.bfloat16",
        ),
    ],
)
def test_entries_that_cannot_be_aligned_are_refused(layout, kinds, words):
    """Without padding the second entry would begin inside an element; the message says what to change."""
    with pytest.raises(LayoutError, match=f"{words}.*dtypes of one size"):
        state_spec(layout) if kinds is None else token_spec(layout, kinds, name="full")
    by_hand = EntrySpec("full" if kinds else "state", layout.state_bytes or layout.full_bytes_per_token, align=1)
    with pytest.raises(LayoutError, match=words):
        (ArenaKVPool if kinds else ArenaStatePool)(layout, arena_of(by_hand), by_hand)


@pytest.mark.parametrize("kind", ["tokens", "states"])
def test_pools_refuse_specs_that_are_not_theirs(kind):
    """A spec of another layout, one that the arena does not have, and an arena without storage are refused."""
    layout = ModelLayout.preset("qwen3-next-80b-a3b")
    layout = replace(layout, layers=layout.layers[:4])
    pool, spec = (
        (ArenaKVPool, token_spec(layout, WHOLE_SEQUENCE, name="x"))
        if kind == "tokens"
        else (ArenaStatePool, state_spec(layout, name="x"))
    )
    wider = replace(spec, entry_bytes=spec.entry_bytes * 2)
    with pytest.raises(
        LayoutError, match=f"'x' have {wider.entry_bytes} bytes, those of the layout {spec.entry_bytes}"
    ):
        pool(layout, arena_of(wider), wider)
    with pytest.raises(LayoutError, match=r"no pool 'x'.*Register it first"):
        pool(layout, ByteArena(8 * spec.page_bytes), spec)
    with pytest.raises(LayoutError, match="no pool 'x'"):
        pool(layout, arena_of(replace(spec, name="y")), spec)
    empty = ByteArena(8 * spec.page_bytes, storage=False)
    empty.register([spec])
    with pytest.raises(LayoutError, match="storage=True"):
        pool(layout, empty, spec)


def test_a_page_of_several_states_is_refused():
    """Zeroing and copying go by the state, and so do the chain's pages."""
    layout = state_layout([((4,), "float32")])
    spec = replace(state_spec(layout), page_size=2)
    with pytest.raises(LayoutError, match="2 states a page"):
        ArenaStatePool(layout, arena_of(spec), spec)
