"""Tokens and states in one arena under a chain that moves pages: what the views show stays with its owner."""

import itertools
import random

import numpy as np
import pytest
import torch
from arena_pools import bits, by_hand, entry, random_bytes

from kvstead.arena import PoolChain
from kvstead.model import BOUNDED, WHOLE_SEQUENCE, CacheKind, LayerCache, StatePart
from kvstead.pools import ArenaKVPool, ArenaStatePool, ByteArena, Place, state_spec, token_spec

# Entries of 2 * 11, 2 * 7 and 4 * 13 bytes; parts of one, two and four bytes an element.
LAYOUT = by_hand(
    LayerCache(0, entry(CacheKind.FULL, 1, 3, 2, "bfloat16", index_bytes=6)),
    LayerCache(1, entry(CacheKind.WINDOW, 1, 2, 1, "bfloat16")),
    LayerCache(2, state=(StatePart("conv", (3, 1), "bfloat16"), StatePart("recurrent", (2, 2), "float32"))),
    LayerCache(3, entry(CacheKind.FULL, 1, 2, 1, "bfloat16")),
    LayerCache(4, entry(CacheKind.WINDOW, 2, 1, 1, "bfloat16")),
    LayerCache(5, state=(StatePart("conv", (7, 1), "bfloat16"), StatePart("recurrent", (4, 1), "float32"))),
)
POISON = 255


def specs_of(page_size, *, zero_on_take):
    """The three pools, state lowest."""
    keywords = {"page_size": page_size, "zero_on_take": zero_on_take}
    return [
        state_spec(LAYOUT),
        token_spec(LAYOUT, BOUNDED, name="window", place=Place.MIDDLE, **keywords),
        token_spec(LAYOUT, WHOLE_SEQUENCE, name="full", place=Place.HIGH, **keywords),
    ]


class Sides:
    """A chain on poisoned bytes, its pools, and what each live page was given to hold."""

    def __init__(self, page_size, seed, *, eager=False, zero_on_take=False):
        self.rng = random.Random(seed)
        self.seeds = itertools.count(1)
        self.arena = ByteArena(302 + 401 * page_size)
        self.arena.storage.fill_(POISON)
        self.specs = {spec.name: spec for spec in specs_of(page_size, zero_on_take=zero_on_take)}
        self.chain = PoolChain(self.arena, list(self.specs.values()), eager=eager)
        self.states = ArenaStatePool(LAYOUT, self.arena, self.specs["state"])
        self.full = ArenaKVPool(LAYOUT, self.arena, self.specs["full"])
        self.window = ArenaKVPool(LAYOUT, self.arena, self.specs["window"], kinds=BOUNDED)
        self.held = {name: {} for name in self.specs}
        self.num_refused = 0

    def views(self, name):
        """Every tensor of a pool, once."""
        if name == "state":
            return [view for parts in self.states.parts for view in parts.values()]
        pool = getattr(self, name)
        return [view for view in (*pool.key, *pool.value, *pool.index) if view is not None]

    def slots(self, name, v_page):
        """Where a virtual page's slots lie now."""
        page_size = self.specs[name].page_size
        page = int(self.chain.pools[name].map.v2p[v_page])
        assert page > 0
        return torch.arange(page * page_size, (page + 1) * page_size)

    def contents(self, name, v_page):
        """What the views show of a page, as bytes."""
        slots = self.slots(name, v_page)
        return [bits(view[slots]) for view in self.views(name)]

    def take(self, name, count):
        """Give free ids pages, and write random elements to them through the views."""
        free = [v for v in range(1, self.chain.pools[name].map.num_virtual + 1) if v not in self.held[name]]
        v_pages = free[:count]
        if self.chain.take(name, np.array(v_pages, dtype=np.int64)) is None:
            self.num_refused += 1
            return
        for v_page in v_pages:
            zeroed = not any(part.any() for part in self.contents(name, v_page))
            assert zeroed or not self.specs[name].zero_on_take
            self.write(name, v_page)
            self.held[name][v_page] = self.contents(name, v_page)

    def write(self, name, v_page):
        """Random bytes, as keys and values are written, or states."""
        slots = self.slots(name, v_page)
        if name == "state":
            for view in self.views(name):
                view[slots] = random_bytes((1, *bits(view).shape[1:]), next(self.seeds)).view(view.dtype)
            return
        pool = getattr(self, name)
        for layer, tensors in enumerate(zip(pool.key, pool.value, pool.index, strict=True)):
            if tensors[0] is not None:
                data = [
                    None
                    if t is None
                    else random_bytes((len(slots), *bits(t).shape[1:]), next(self.seeds)).view(t.dtype)
                    for t in tensors
                ]
                pool.write(layer, slots, *data[:2])
                if tensors[2] is not None:
                    tensors[2][slots] = data[2]

    def release(self, name, count):
        """Release some pages."""
        v_pages = self.rng.sample(sorted(self.held[name]), min(count, len(self.held[name])))
        self.chain.release(name, np.array(v_pages, dtype=np.int64))
        for v_page in v_pages:
            del self.held[name][v_page]

    def copy_states(self):
        """Half of the states are copied onto the others."""
        v_pages = self.rng.sample(sorted(self.held["state"]), len(self.held["state"]))
        half = len(v_pages) // 2
        pairs = list(zip(v_pages[:half], v_pages[half : 2 * half], strict=True))
        self.states.copy(*([int(self.slots("state", pair[end])) for pair in pairs] for end in (0, 1)))
        for source, target in pairs:
            self.held["state"][target] = self.held["state"][source]

    def step(self):
        """One call; takes prevail."""
        name = self.rng.choice(list(self.specs))
        dice = self.rng.random()
        if dice < 0.6:
            self.take(name, self.rng.choice([1, 1, 2, 4]))
        elif dice < 0.85:
            self.release(name, self.rng.choice([1, 2, 3]))
        elif dice < 0.92:
            self.chain.compact(self.rng.choice([None, 60, 200]))
        else:
            self.copy_states()
        self.check()

    def check(self):
        """Every live page shows what it was given."""
        for name, pages in self.held.items():
            for v_page, expected in pages.items():
                assert all(map(torch.equal, self.contents(name, v_page), expected))


def churn(page_size, seed, steps, *, eager, zero_on_take):
    sides = Sides(page_size, seed, eager=eager, zero_on_take=zero_on_take)
    for _ in range(steps):
        sides.step()
    sides.chain.audit()
    return sides


def test_entry_sizes_are_those_worked_out_by_hand():
    """Sizes have no common factor but their elements' size, so grids never line up."""
    assert [spec.entry_bytes for spec in specs_of(1, zero_on_take=False)] == [52, 14, 22]


@pytest.mark.parametrize("eager", [False, True], ids=["lazy", "eager"])
@pytest.mark.parametrize("page_size", [1, 3])
@pytest.mark.parametrize("zero_on_take", [False, True])
def test_what_was_written_follows_every_move(page_size, eager, zero_on_take):
    """Keys, values, indexer keys and states are found at the physical slots after takes, releases, moves and copies."""
    runs = [churn(page_size, seed, 75, eager=eager, zero_on_take=zero_on_take) for seed in range(2)]
    assert sum(run.chain.num_moves for run in runs) > 20
    assert all(run.num_refused for run in runs)


@pytest.mark.soak
@pytest.mark.parametrize("eager", [False, True], ids=["lazy", "eager"])
@pytest.mark.parametrize("page_size", [1, 2, 3, 5])
@pytest.mark.parametrize("seed", range(10))
def test_what_was_written_follows_every_move_for_long(page_size, eager, seed):
    """The same holds over thousands of calls."""
    sides = churn(page_size, 100 + seed, 1500, eager=eager, zero_on_take=seed % 2 == 1)
    assert sides.chain.num_moves > 100


@pytest.mark.parametrize(("zero_on_take", "shown"), [(True, 0), (False, POISON)])
def test_pages_are_zeros_when_taken_over_poison(zero_on_take, shown):
    """With `zero_on_take` every element of a page is 0, fresh or used before; without, the poison shows through."""
    sides = Sides(3, 0, zero_on_take=zero_on_take)
    v_pages = np.arange(1, 4)
    for name in ("full", "full", "window", "window"):
        assert sides.chain.take(name, v_pages) is not None
        for v_page in v_pages:
            assert all(part.eq(shown).all() for part in sides.contents(name, v_page))
            for view in sides.views(name):
                bits(view)[sides.slots(name, v_page)] = POISON
        sides.chain.release(name, v_pages)


def test_views_stay_valid_while_pages_move():
    """A compaction moves pages under the same tensors: each row is found where its page went."""
    sides = Sides(1, 0)
    before = [view.data_ptr() for name in sides.specs for view in sides.views(name)]
    for name in sides.specs:
        sides.take(name, 8)
        sides.chain.release(name, np.array([1, 2, 5]))
        for v_page in (1, 2, 5):
            del sides.held[name][v_page]
    assert sides.chain.compact() > 0
    sides.check()
    assert [view.data_ptr() for name in sides.specs for view in sides.views(name)] == before
