"""Faults that allocators of shared bytes have had elsewhere, told as scenes with their numbers."""

import numpy as np
import pytest
import torch
from allocator_pair import snapshot
from unified_pair import chain_state, stamped_pages

from kvstead.allocators import UnifiedMambaAllocator, UnifiedMambaSWAAllocator, UnifiedSWAAllocator
from kvstead.arena import SharedBytes, SharedPool
from kvstead.pools import EntrySpec

POISON = 0xFF  # as bfloat16, float16 and float8 alike: not a number


def tokens_and_states(**keywords):
    """100 bytes above the sink: tokens of 1 byte, states of 20."""
    return UnifiedMambaAllocator(120, page_size=1, full=1, state=20, **keywords)


def counted_tokens_and_states():
    chain = SharedBytes(120, [SharedPool("full", 1, 1, 1), SharedPool("state", 20, 20, 1)], sink_bytes=20)
    return UnifiedMambaAllocator.over(chain)


# States need bytes that only tokens can give.


@pytest.mark.parametrize(
    "make",
    [tokens_and_states, lambda: tokens_and_states(eager=True), counted_tokens_and_states],
    ids=["lazy", "eager", "by count"],
)
@pytest.mark.parametrize("seed", range(5))
def test_a_state_gets_the_bytes_of_tokens_wherever_they_lie(make, seed):
    """90 tokens, 10 bytes left, a state of 20: none is promised, 10 tokens are what is short, any ten of them do."""
    allocator = make()
    tokens = allocator.alloc(90)
    cached, locked = tokens[:80], tokens[80:]
    assert allocator.states.available_size() == 0
    before = snapshot(allocator)
    assert allocator.states.alloc(1) is None
    assert snapshot(allocator) == before
    chain = allocator.chain
    assert chain.shortfall({"state": 1}) == 10
    assert not chain.fits({"state": 1}, without={"full": 9})
    assert chain.fits({"state": 1}, without={"full": 10})
    evicted = np.random.default_rng(seed).permutation(cached.numpy())[:10]
    allocator.free(evicted[:9])
    assert allocator.states.available_size() == 0
    assert chain.shortfall({"state": 1}) == 1
    allocator.free(evicted[9:])
    assert chain.shortfall({"state": 1}) == 0
    assert allocator.states.available_size() == 1
    assert allocator.states.alloc(1).tolist() == [1]
    assert chain.by_state().gap == 0
    assert allocator.available_size() == 0
    assert (allocator.physical_slots(locked) > 0).all()
    allocator.audit()


def test_a_state_that_only_a_move_could_place_is_refused_before_anything_is_freed():
    """The ten tokens in its way may not move: a chain says beforehand that freeing all others will not help."""
    is_open = [True]
    allocator = tokens_and_states(may_move=lambda: is_open[0])
    tokens = allocator.alloc(90)
    locked, cached = tokens[:10], tokens[10:]
    is_open[0] = False
    assert not allocator.chain.fits({"state": 1}, without={"full": 80})
    before = chain_state(allocator.chain), snapshot(allocator)
    assert allocator.states.alloc(1) is None
    assert (chain_state(allocator.chain), snapshot(allocator)) == before
    assert allocator.physical_slots(locked).min() < allocator.physical_slots(cached).min()
    allocator.free(cached)
    assert allocator.states.available_size() == 0
    assert allocator.states.alloc(1) is None
    assert allocator.available_size() == 90
    is_open[0] = True
    assert allocator.states.available_size() == 4
    assert allocator.states.alloc(4) is not None


# What one side has borrowed of the other.


@pytest.mark.parametrize("by_count", [False, True], ids=["in an arena", "by count"])
def test_what_a_side_has_borrowed_is_never_counted_below_zero(by_count):
    """100 bytes, tokens of 1 and windows of 2: of 80 tokens, 30 on the windows' half, 20 or 10 are left, never less."""
    if by_count:
        pools = [SharedPool("full", 1, 1, 1), SharedPool("window", 2, 2, 1)]
        allocator = UnifiedSWAAllocator.over(SharedBytes(102, pools, sink_bytes=2))
    else:
        allocator = UnifiedSWAAllocator(102, page_size=1, full=1, window=2)

    def sizes():
        return allocator.full_available_size(), allocator.swa_available_size()

    assert sizes() == (100, 50)
    head = allocator.alloc_extend_swa_tail([0], [80], [-1], 0)
    assert sizes() == (20, 10)
    allocator.free(head[75:])
    assert sizes() == (25, 12)
    tail = allocator.alloc_extend_swa_tail([75], [80], head[74:75], 5)
    assert sizes() == (10, 5)
    assert allocator.available_size() == 3
    allocator.alloc(3)
    assert sizes() == (1, 0)
    assert allocator.alloc(1) is None
    allocator.free_swa(tail)
    assert sizes() == (11, 5)
    allocator.free(head[:75])
    assert sizes() == (86, 43)
    allocator.clear()
    assert sizes() == (100, 50)


@pytest.mark.parametrize("make", [tokens_and_states, counted_tokens_and_states])
def test_all_states_of_a_request_are_asked_for_at_once(make):
    """Room for two states and tokens is none for a request of three: `fits` and `shortfall` count all that it takes."""
    allocator = make()
    allocator.alloc(50)
    assert allocator.states.available_size() == 2
    assert allocator.fits(10, num_states=2)
    assert not allocator.fits(10, num_states=3)
    assert allocator.chain.shortfall({"full": 10, "state": 3}) == 20
    assert allocator.states.alloc(3) is None
    assert allocator.states.alloc(2) is not None
    assert not allocator.fits(1, num_states=1)


def test_room_is_counted_anew_after_every_call_of_any_side():
    """Sizes asked for before are not those of now: each take and free on one side shows on all others at once."""
    allocator = UnifiedMambaSWAAllocator(120, page_size=1, full=1, window=2, state=20)

    def sizes():
        return (
            allocator.available_size(),
            allocator.full_available_size(),
            allocator.swa_available_size(),
            allocator.states.available_size(),
        )

    new = sizes()
    assert new == (33, 100, 50, 5)
    states = allocator.states.alloc(3)
    assert sizes() == (13, 40, 20, 2)
    row = allocator.alloc(10)
    assert sizes() == (3, 10, 5, 0)
    allocator.free_swa(row[:5])
    assert sizes() == (6, 20, 10, 1)
    with allocator.defer_frees():
        allocator.free(row)
        allocator.states.free(states)
        assert sizes() == (6, 20, 10, 1)
    assert sizes() == new


# Recycled pages.


def zeroing(**keywords):
    specs = {"full": 4, "window": 6, "state": 26}
    kinds = {name: EntrySpec(name, size, align=2, zero_on_take=True) for name, size in specs.items()}
    return UnifiedMambaSWAAllocator(600, page_size=2, **kinds, **keywords)


def storage_of(allocator):
    return allocator.chain.arena.storage.numpy()


def taken_since(allocator, before):
    """Pages that somebody holds now and nobody did then."""
    pages = stamped_pages(allocator)
    return [pages[key] for key in pages.keys() - before]


def test_a_recycled_page_reads_zero_whoever_wrote_to_it():
    """Free bytes are poison: whatever kind takes them reads zeros, finite in every type, and no byte beside changes."""
    allocator = zeroing()
    arena = storage_of(allocator)
    arena[:] = POISON
    steps = [
        lambda: allocator.alloc(4),
        lambda: allocator.states.alloc(2),
        lambda: allocator.alloc(2),
        lambda: allocator.states.alloc(1),
    ]
    for take in steps:
        held, before = stamped_pages(allocator).keys(), arena.copy()
        take()
        new = taken_since(allocator, held)
        assert new
        for page in new:
            assert not page.any()
            assert torch.isfinite(page.view(torch.bfloat16)).all()
            page.fill_(POISON)  # what its new holder writes; and every other byte is what it was
        assert (arena == before).all()


@pytest.mark.parametrize("eager", [False, True], ids=["lazy", "eager"])
@pytest.mark.parametrize("seed", range(4))
def test_pages_handed_from_kind_to_kind_read_zero_and_keep_their_neighbours(eager, seed):
    """Freed in the midst of a life and taken by another kind, moved or not: zeros for the taker, the rest stays."""
    rng = np.random.default_rng(seed)
    allocator = zeroing(eager=eager)
    storage_of(allocator)[:] = POISON
    rows, states, stamps, num_taken = [], [], {}, 0
    for step in range(120):
        what = rng.random()
        if what < 0.4:
            slots = allocator.alloc(2 * int(rng.integers(1, 5)))
            rows += [] if slots is None else [slots]
        elif what < 0.6:
            slots = allocator.states.alloc(int(rng.integers(1, 3)))
            states += [] if slots is None else [slots]
        elif what < 0.75 and rows:
            allocator.free_swa(rows[int(rng.integers(len(rows)))][:2])
        elif what < 0.9 and rows:
            allocator.free(rows.pop(int(rng.integers(len(rows)))))
        elif states:
            allocator.states.free(states.pop(int(rng.integers(len(states)))))
        pages = stamped_pages(allocator)
        stamps = {key: stamp for key, stamp in stamps.items() if key in pages}
        assert all((pages[key] == stamp).all() for key, stamp in stamps.items())
        for key in pages.keys() - stamps.keys():
            assert not pages[key].any()
            num_taken += 1
            stamps[key] = step + 1
            pages[key].fill_(step + 1)
    assert allocator.chain.num_moves
    assert num_taken > 50
