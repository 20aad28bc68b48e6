"""States of sequences: their parts, copies and zeros, in bytes of their own and in an arena."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from arena_pools import STATES, TOKENS, arena_of, bits, random_bytes, require_no_overlap

from kvstead.errors import ForeignPage, InvalidSize, LayoutError
from kvstead.model import ModelLayout, preset_names
from kvstead.pools import ArenaStatePool, EntrySpec, StatePool, state_spec

SMALL = STATES["mixed by hand"]


def pools_of(layout):
    """The same number of states in both kinds of pool."""
    spec = state_spec(layout)
    return StatePool(layout, 5), ArenaStatePool(layout, arena_of(spec, 6, spec.entry_bytes // 2), spec)


def views_of(pool):
    return [view for parts in pool.parts for view in parts.values()]


def fill(pool, seed=0):
    """Random bytes in all states; what they are, by view."""
    for at, view in enumerate(views_of(pool)):
        bits(view).copy_(random_bytes(bits(view).shape, seed + at))
    return [view.clone() for view in views_of(pool)]


def require_rows(pool, before, came_from):
    """Row i of every view holds what row came_from[i] held, or zeros for None."""
    for view, old in zip(views_of(pool), before, strict=True):
        for row, origin in enumerate(came_from):
            expected = torch.zeros_like(old[0]) if origin is None else old[origin]
            assert torch.equal(bits(view[row]), bits(expected))


@pytest.mark.parametrize("name", STATES)
def test_states_have_the_parts_of_their_layers(name):
    """Each layer has its tensors by name, in shape and dtype, zeros at first; layers without state have none."""
    layout = STATES[name]
    for pool in pools_of(layout):
        assert pool.num_slots == 5
        assert pool.num_bytes == 6 * layout.state_bytes
        assert len(pool.parts) == len(layout.layers)
        for layer, parts in zip(layout.layers, pool.parts, strict=True):
            assert list(parts) == [part.name for part in layer.state]
            for part in layer.state:
                view = pool.part(layer.index, part.name)
                assert view is parts[part.name]
                assert (view.shape, view.dtype) == ((6, *part.shape), getattr(torch, part.dtype))
                assert not bits(view).any()


@pytest.mark.parametrize("name", STATES)
def test_no_two_elements_of_states_lie_on_the_same_bytes(name):
    """Every element of every part of every slot has bytes of its own, and together they are all bytes of the slots."""
    layout = STATES[name]
    spec = state_spec(layout)
    arena = arena_of(spec, 3, spec.entry_bytes - 1)
    require_no_overlap(arena, spec, views_of(ArenaStatePool(layout, arena, spec)))


@pytest.mark.parametrize("name", ["mixed by hand", "a convolution alone"])
@pytest.mark.parametrize("make", [list, np.array, torch.tensor])
def test_states_are_copied_and_zeroed_whole(name, make):
    """A copy carries all layers and parts, pairwise, and neighbours keep theirs; so do zeros."""
    for pool in pools_of(STATES[name]):
        before = fill(pool)
        pool.copy(make([1, 5, 1]), make([4, 2, 0]))
        require_rows(pool, before, [1, 1, 5, 3, 1, 5])
        pool.zero(make([3, 5, 3]))
        require_rows(pool, before, [1, 1, 5, None, 1, None])


def test_an_empty_batch_of_states_is_allowed():
    """An empty batch copies and zeroes nothing."""
    for pool in pools_of(SMALL):
        before = fill(pool)
        pool.copy([], [])
        pool.zero(torch.tensor([], dtype=torch.int64))
        require_rows(pool, before, range(6))


@pytest.mark.parametrize(
    ("source", "target", "error", "words"),
    [
        ([1, 2], [3], InvalidSize, "2 source slots and 1 target"),
        ([1, 2], [3, 3], InvalidSize, r"\[1, 2\] cannot be copied to \[3, 3\]"),
        ([1, 2], [2, 3], InvalidSize, r"\[1, 2\] cannot be copied to \[2, 3\]"),
        ([1], [1], InvalidSize, "cannot be copied"),
        ([6], [1], ForeignPage, "slot 6 does not belong to this pool"),
        ([1], [-1], ForeignPage, "slot -1 does not belong to this pool"),
        ([1, 10**12], [2, 3], ForeignPage, "slot 1000000000000"),
    ],
)
def test_copies_that_make_no_sense_are_refused(source, target, error, words):
    """Unequal lengths, a target named twice or also a source, and slots out of range are refused; nothing is copied."""
    for pool in pools_of(SMALL):
        before = fill(pool)
        with pytest.raises(error, match=words):
            pool.copy(source, target)
        require_rows(pool, before, range(6))


@pytest.mark.parametrize("slot", [-1, 6, 10**12])
def test_slots_out_of_range_are_not_zeroed(slot):
    """Slot -1 is refused; it does not mean the last one."""
    for pool in pools_of(SMALL):
        before = fill(pool)
        with pytest.raises(ForeignPage, match=f"slot {slot} does not belong"):
            pool.zero([1, slot])
        require_rows(pool, before, range(6))


@pytest.mark.parametrize(("layer", "name"), [(0, "scale"), (1, "conv"), (2, "recurrent")])
def test_parts_that_a_layer_lacks_are_refused(layer, name):
    """The message lists the tensors that the layer has."""
    there = ", ".join(part.name for part in SMALL.layers[layer].state) or "none"
    for pool in pools_of(SMALL):
        with pytest.raises(LayoutError, match=f"layer {layer} has no tensor {name!r}.*{there}"):
            pool.part(layer, name)


def test_an_arena_holds_the_states_above_its_sink():
    """The sink of a larger pool takes slots away, not rows; a rest too small for a state stays unused."""
    spec = state_spec(SMALL)
    large = EntrySpec("large", spec.entry_bytes * 3 - 8, align=1)
    pool = ArenaStatePool(SMALL, arena_of(spec, 9, spec.entry_bytes - 1, [large]), spec)
    assert pool.num_slots == 6
    assert pool.part(0, "conv").shape[0] == 9
    assert pool.num_bytes == 9 * spec.entry_bytes


def test_pools_of_no_states_are_refused():
    """A pool of no states is refused, and so is a model without states."""
    with pytest.raises(InvalidSize, match="num_slots is 0"):
        StatePool(SMALL, 0)
    with pytest.raises(LayoutError, match="no layer has entries for pool 'state'"):
        StatePool(TOKENS["latents"], 1)


def test_every_bundled_model_with_states_has_a_pool():
    """Its bytes are the layout's, padding slot included. Of each model the first layers up to two with state."""
    num_models = 0
    for name in preset_names():
        layout = ModelLayout.preset(name)
        with_state = [layer.index for layer in layout.layers if layer.state]
        if with_state:
            layout = replace(layout, layers=layout.layers[: with_state[:2][-1] + 1])
            assert StatePool(layout, 1).num_bytes == 2 * layout.state_bytes
            num_models += 1
    assert num_models >= 10
