"""Pages of equal blocks: how large they are, and how many a page of each kind takes."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvstead.errors import InvalidSize, LayoutError
from kvstead.model import (
    CacheKind,
    LayerCache,
    ModelLayout,
    PaddedPages,
    StatePart,
    TokenCache,
    equal_page,
    padded_pages,
    preset_names,
)

LAYOUTS = [ModelLayout.preset(name) for name in preset_names()]


def entry(size, kind=CacheKind.FULL):
    return TokenCache(kind, 1, size, 0, "uint8", size, 0, None if kind is CacheKind.FULL else 4)


def made_up(full=(), window=(), state=(), idle=0):
    """A layout with a layer for each size of an entry or state, and so many layers that own nothing."""
    tokens = [entry(size) for size in full] + [entry(size, CacheKind.WINDOW) for size in window]
    layers = [LayerCache(index, cache) for index, cache in enumerate(tokens)]
    layers += [LayerCache(0, state=(StatePart("recurrent", (size,), "uint8"),)) for size in state]
    layers += [LayerCache(0, shared_kind=CacheKind.FULL, shared_with=0)] * idle
    return ModelLayout("made up", tuple(layers))


@pytest.mark.parametrize(
    ("name", "block_bytes", "blocks"),
    [
        ("gemma-3-27b", 10 * 16 * 8192, {"full": 1, "window": 6}),
        ("gpt-oss-120b", 18 * 16 * 2048, {"full": 1, "window": 1}),
        ("llama-4-scout", 12 * 16 * 4096, {"full": 1, "window": 3}),
        ("qwen3-8b", 36 * 16 * 4096, {"full": 1}),
        ("mistral-7b-v0.1", 32 * 16 * 4096, {"window": 1}),
        ("deepseek-v3", 61 * 16 * 1152, {"full": 1}),
        ("gemma-3n-e4b", 4 * 16 * 2048, {"full": 1, "window": 4}),  # 15 layers share
        ("hunyuan-large", 32 * 16 * 2560, {"full": 1}),  # every other layer shares
        ("mimo-v2-flash", 9 * 16 * 5120, {"full": 1, "window": 5}),  # full entries are half as large
        ("gemma-4-31b", 10 * 16 * 16_384, {"full": 1, "window": 5}),
    ],
)
def test_known_models_without_states(name, block_bytes, blocks):
    """The page stays as asked for; layers are grouped by the kind with the fewest, and shared ones do not count."""
    assert padded_pages(ModelLayout.preset(name), 16) == PaddedPages(16, block_bytes, blocks)


@pytest.mark.parametrize(
    ("name", "page_size", "group", "blocks"),
    [
        ("qwen3-next-80b-a3b", 1056, 12, {"full": 1, "state": 3}),
        ("bamba-9b", 1040, 3, {"full": 1, "state": 10}),
        ("jamba-v0.1", 144, 4, {"full": 1, "state": 7}),
        ("kimi-linear-48b-a3b", 1888, 7, {"full": 1, "state": 3}),
        ("zamba2-7b", 80, 13, {"full": 1, "state": 7}),  # 13 layers have both
        ("falcon-h1-7b", 3104, 44, {"full": 1, "state": 1}),  # all layers have both
        ("lfm2-1.2b", 16, 6, {"full": 1, "state": 2}),  # a state smaller than 16 tokens
    ],
)
def test_known_models_with_states(name, page_size, group, blocks):
    """The page of 16 tokens grows until a layer's state fits, and stays where it does already."""
    layout = ModelLayout.preset(name)
    largest = max(layer.token_bytes for layer in layout.layers)
    assert padded_pages(layout, 16) == PaddedPages(page_size, group * page_size * largest, blocks)


def test_a_short_prompt_pins_a_page_as_large_as_a_state():
    """qwen3-next-80b-a3b: a state is 1,048 tokens of a layer, so 12 tokens take 1,056; in pools apart they take 16."""
    layout = ModelLayout.preset("qwen3-next-80b-a3b")
    assert 1048 * 2048 == 2_146_304 == layout.layers[0].state_bytes
    assert padded_pages(layout, 1).page_size == 1048
    padded = padded_pages(layout, 16)
    pinned = padded.block_bytes * (padded.blocks["full"] + padded.blocks["state"])
    apart = layout.full_bytes_per_token * 16 + layout.state_bytes
    assert pinned == 4 * 12 * 1056 * 2048
    assert (10**10 // pinned, 10**10 // apart) == (96, 128)


@pytest.mark.parametrize("layout", LAYOUTS, ids=lambda layout: layout.name)
@pytest.mark.parametrize("page_size", [1, 7, 16, 64, 256])
def test_every_model_has_padded_pages(layout, page_size):
    """No size is refused: blocks hold what each kind needs, in the fewest pages asked for that hold a layer's state."""
    found = padded_pages(layout, page_size)
    states = {layer.state_bytes for layer in layout.layers}
    entries = {layer.token_bytes for layer in layout.layers}
    assert found.page_size % page_size == 0
    assert found.page_size * max(entries) >= max(states)
    assert found.page_size == page_size or (found.page_size - page_size) * max(entries) < max(states)
    needed = {
        "full": layout.full_bytes_per_token * found.page_size,
        "window": layout.window_bytes_per_token * found.page_size,
        "state": layout.state_bytes,
    }
    assert set(found.blocks) == {kind for kind, num_bytes in needed.items() if num_bytes}
    assert all(number * found.block_bytes >= needed[kind] for kind, number in found.blocks.items())
    assert min(found.blocks.values()) == 1


@pytest.mark.parametrize(
    ("layers", "group", "blocks"),
    [
        ((12, 13), 13, (1, 1)),  # less than 1.25 times as many
        ((4, 5), 4, (1, 2)),  # exactly 1.25 times as many
        ((10, 52), 10, (1, 6)),  # a group of two and eight unused
        ((20, 30), 20, (1, 2)),
        ((5, 1), 1, (5, 1)),
    ],
)
def test_layers_form_groups_of_the_kind_with_the_fewest(layers, group, blocks):
    """As many as the kind with the fewest has, or the most where that is nearly as many; the last may lack some."""
    found = padded_pages(made_up([8] * layers[0], [8] * layers[1]), 4)
    assert found == PaddedPages(4, group * 4 * 8, dict(zip(("full", "window"), blocks, strict=True)))


def test_states_alone_are_blocks_of_their_size():
    """Without entries there is no page to grow: a block is the largest state in each layer."""
    assert padded_pages(made_up(state=(100, 70, 100), idle=2), 16) == PaddedPages(16, 300, {"state": 1})


sizes = st.lists(st.integers(1, 50), max_size=8)


@given(sizes, sizes, st.lists(st.integers(1, 2000), max_size=8), st.integers(0, 3), st.integers(1, 40))
def test_layers_that_differ_in_size_are_padded(full, window, state, idle, page_size):
    """For any layers, a block has room for the largest entry and state in each layer, and no more."""
    layout = made_up(full, window, state, idle)
    numbers = {
        kind: len(own) for kind, own in zip(("full", "window", "state"), (full, window, state), strict=True) if own
    }
    if not numbers:
        with pytest.raises(LayoutError, match="made up has no entries and no states"):
            padded_pages(layout, page_size)
        return
    found = padded_pages(layout, page_size)
    largest, largest_state = max([0, *full, *window]), max([0, *state])
    tokens = next(n for n in range(page_size, 10**6, page_size) if n * largest >= largest_state or not largest)
    group = min(numbers.values())
    if 4 * max(numbers.values()) < 5 * group:
        group = max(numbers.values())
    assert (found.page_size, found.block_bytes) == (tokens, group * max(tokens * largest, largest_state))
    assert all(
        group * (found.blocks[kind] - 1) < number <= group * found.blocks[kind] for kind, number in numbers.items()
    )
    assert set(found.blocks) == set(numbers)


@pytest.mark.parametrize("layout", [x for x in LAYOUTS if x.state_bytes], ids=lambda layout: layout.name)
def test_pages_of_one_layer_agree_with_equal_pages(layout):
    """The page of blocks, in tokens, is that of one layer's entries and one layer's state."""
    assert padded_pages(layout, 1).page_size == equal_page(layout).num_tokens


@pytest.mark.parametrize("page_size", [0, -16])
def test_pages_without_a_token_are_refused(page_size):
    """A page size below 1 is refused."""
    with pytest.raises(InvalidSize, match=f"page size is {page_size}"):
        padded_pages(LAYOUTS[0], page_size)
