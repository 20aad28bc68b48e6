"""Bytes of sequences and pools, and what a tensor-parallel rank holds of them."""

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvstead.errors import InvalidSize, LayoutError, MisalignedSize
from kvstead.model import CacheKind, ModelLayout, preset_names
from kvstead.model.catalog import preset_config

_ONE_POOL = [
    name
    for name in preset_names()
    if len(ModelLayout.preset(name).kinds) == 1 and not ModelLayout.preset(name).state_bytes
]
_LAYOUTS = {name: ModelLayout.preset(name) for name in preset_names()}


def _held_tokens(kind, span, num_tokens):
    """The tokens that a layer still holds, by adding them one at a time: slow and obviously right."""
    held = []
    for token in range(num_tokens):
        if kind is CacheKind.CHUNK and token % span == 0:
            held = []
        held.append(token)
        if kind is CacheKind.WINDOW and len(held) > span:
            held.pop(0)
    return held


@given(
    st.sampled_from(["gpt-oss-20b", "llama-4-scout", "gemma-3n-e4b", "qwen3-next-80b-a3b"]),
    st.integers(1, 40),
    st.integers(0, 200),
)
def test_a_sequence_holds_what_adding_tokens_one_by_one_leaves(name, span, num_tokens):
    """Bytes of a sequence equal those of the entries that remain when tokens come one at a time, plus its state."""
    config = preset_config(name)
    inner = {**config.get("text_config", config), "sliding_window": span}
    if name == "llama-4-scout":
        inner = {**inner, "attention_chunk_size": span, "sliding_window": None}
    layout = ModelLayout.from_config(inner)
    expected = layout.state_bytes
    for layer in layout.layers:
        if layer.tokens:
            held = _held_tokens(layer.tokens.kind, layer.tokens.span, num_tokens)
            expected += len(held) * (layer.tokens.key_bytes + layer.tokens.value_bytes)
    assert layout.sequence_bytes(num_tokens) == expected


@given(st.sampled_from(_ONE_POOL), st.integers(0, 10**6), st.integers(1, 4096))
def test_bytes_and_slots_are_inverses(name, num_pages, page_size):
    """The bytes for a number of slots hold exactly these, and one byte less holds a page less."""
    layout = _LAYOUTS[name]
    slots = num_pages * page_size
    num_bytes = layout.bytes_for(slots, page_size)
    assert layout.slots_for(num_bytes, page_size) == slots
    assert layout.slots_for(num_bytes - 1, page_size) == max(0, slots - page_size)


@given(st.sampled_from(_ONE_POOL), st.integers(0, 2**45), st.integers(1, 4096))
def test_slots_fit_and_a_page_more_does_not(name, num_bytes, page_size):
    """What `slots_for` gives fits the bytes with its padding page, in whole pages, and no page more would."""
    layout = _LAYOUTS[name]
    slots = layout.slots_for(num_bytes, page_size)
    assert slots % page_size == 0
    assert slots == 0 or layout.bytes_for(slots, page_size) <= num_bytes
    assert layout.bytes_for(slots + page_size, page_size) > num_bytes


def test_slots_of_a_known_budget():
    """40 GiB of llama-3.1-8b at pages of 16: 2 MiB a page, 20,480 pages, one of them padding."""
    layout = _LAYOUTS["llama-3.1-8b"]
    assert layout.slots_for(40 * 2**30, 16) == (20_480 - 1) * 16
    assert layout.slots_for(2 * 2**21 - 1, 16) == 0
    assert layout.bytes_for(0, 16) == 2**21


def test_bad_sizes_raise():
    """Negative bytes, slots or lengths, a page size of 0 and slots that are no whole pages raise."""
    layout = _LAYOUTS["llama-3.1-8b"]
    for call in (
        lambda: layout.slots_for(-1, 16),
        lambda: layout.slots_for(1, 0),
        lambda: layout.bytes_for(-16, 16),
        lambda: layout.bytes_for(16, -16),
        lambda: layout.sequence_bytes(-1),
    ):
        with pytest.raises(InvalidSize):
            call()
    with pytest.raises(MisalignedSize, match=r"17 slots.*page size 16"):
        layout.bytes_for(17, 16)


@pytest.mark.parametrize("name", sorted(set(preset_names()) - set(_ONE_POOL)))
def test_layouts_of_several_pools_are_not_one_number_of_slots(name):
    """Where a model keeps several kinds, one number of slots means nothing, so asking for it raises."""
    for ask in (_LAYOUTS[name].slots_for, _LAYOUTS[name].bytes_for):
        with pytest.raises(LayoutError, match="not one pool"):
            ask(0, 16)


@pytest.mark.parametrize("name", preset_names())
def test_totals_are_the_sums_of_the_layers(name):
    """Bytes by kind add up to those of the layers, and nothing can be changed afterwards."""
    layout = _LAYOUTS[name]
    by_kind = sum(layout.bytes_per_token(kind) for kind in CacheKind)
    assert by_kind == sum(layer.token_bytes for layer in layout.layers)
    assert by_kind == layout.full_bytes_per_token + layout.window_bytes_per_token
    assert set(layout.kinds) == {kind for layer in layout.layers for kind in layer.kinds}
    assert all(part.num_bytes > 0 for layer in layout.layers for part in layer.state)
    with pytest.raises(dataclasses.FrozenInstanceError):
        layout.name = "other"


@pytest.mark.parametrize(("ranks", "expected"), [(1, 24_576), (2, 12_288), (4, 12_288), (8, 12_288), (16, 12_288)])
def test_heads_replicate_when_ranks_outnumber_them(ranks, expected):
    """Qwen3-Next has 2 key and value heads: from 2 ranks on the bytes of a rank stop shrinking."""
    layout = ModelLayout.preset("qwen3-next-80b-a3b", tensor_parallel=ranks)
    assert layout.full_bytes_per_token == expected
    assert layout.state_bytes * ranks == 77_266_944  # its state heads do split


@pytest.mark.parametrize(
    ("name", "ranks", "message"),
    [
        ("llama-3.1-8b", 3, "32 attention heads do not divide among 3"),
        ("llama-3.1-8b", 64, "32 attention heads do not divide among 64"),
        ("falcon-h1-7b", 8, "24 Mamba|12 attention heads"),
        ("qwen3-next-80b-a3b", 32, "16 linear key heads do not divide among 32"),
        ("kimi-linear-48b-a3b", 64, "32 linear attention heads do not divide among 64"),
        ("jamba-v0.1", 3, "8192 Mamba channels do not divide among 3"),
        ("nemotron-h-8b", 3, "128 Mamba heads do not divide among 3"),
        ("lfm2-1.2b", 3, "2048 convolution channels do not divide among 3"),
        ("deepseek-v3", 3, "128 attention heads do not divide among 3"),
    ],
)
def test_a_degree_that_does_not_divide_raises(name, ranks, message):
    """Heads and channels that cannot be shared out evenly raise, with their number and the degree."""
    with pytest.raises(LayoutError, match=message):
        ModelLayout.preset(name, tensor_parallel=ranks)


def test_heads_that_cannot_be_copied_evenly_raise():
    """Two key and value heads cannot be copied to three ranks alike, nor six heads split among four."""
    config = {"hidden_size": 96, "head_dim": 8, "num_hidden_layers": 1, "num_attention_heads": 12}
    with pytest.raises(LayoutError, match="2 key and value heads cannot be copied evenly to 3"):
        ModelLayout.from_config({**config, "num_key_value_heads": 2}, tensor_parallel=3)
    with pytest.raises(LayoutError, match="6 key and value heads do not divide among 4"):
        ModelLayout.from_config({**config, "num_key_value_heads": 6}, tensor_parallel=4)


def test_groups_of_mamba_are_copied_to_ranks_beyond_them():
    """Bamba has one group: each of 4 ranks holds its input and output vectors whole, and a quarter of the heads."""
    conv, recurrent = ModelLayout.preset("bamba-9b", tensor_parallel=4).layers[0].state
    assert conv.shape == (8192 // 4 + 2 * 128, 3)
    assert recurrent.shape == (32, 64, 128)


@given(st.sampled_from(preset_names()), st.sampled_from([1, 2, 4, 8, 16]))
def test_ranks_together_hold_at_least_the_whole(name, ranks):
    """All ranks hold no less than one would, and one rank no more; only copies make a difference."""
    try:
        part = ModelLayout.preset(name, tensor_parallel=ranks)
    except LayoutError:
        return
    whole = _LAYOUTS[name]
    for ours, all_of_it in zip(part.layers, whole.layers, strict=True):
        assert ours.token_bytes <= all_of_it.token_bytes <= ours.token_bytes * ranks
        assert ours.state_bytes <= all_of_it.state_bytes <= ours.state_bytes * ranks
