"""What allocators of an arena promise beside what static ones do: places, gates, shared chains, states in one group."""

import numpy as np
import pytest
import torch
from allocator_pair import snapshot
from unified_pair import chain_state, one_pool, stamped_pages
from window_scenes import FREES, books, grouped_or_not, pages_of

from kvstead.allocators import (
    MultiEndedAllocator,
    PagedAllocator,
    SWAAllocator,
    UnifiedMambaAllocator,
    UnifiedMambaSWAAllocator,
    UnifiedSWAAllocator,
)
from kvstead.arena import PoolChain
from kvstead.errors import AuditError, DoubleFree, ForeignPage, InvalidSize, LayoutError
from kvstead.pools import ByteArena, EntrySpec, Place


def two_sides(**keywords):
    return UnifiedSWAAllocator(400, page_size=1, full=16, window=8, **keywords)


def with_all(**keywords):
    return UnifiedMambaSWAAllocator(900, page_size=2, full=6, window=4, state=50, **keywords)


MAKERS = {
    "one pool": lambda **keywords: one_pool(24, 2, **keywords),
    "two sides": two_sides,
    "tokens and states": lambda **keywords: UnifiedMambaAllocator(500, page_size=2, full=6, state=50, **keywords),
    "all three": with_all,
}
every_maker = pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)


# Room.


def test_two_sides_share_bytes_as_worked_out_by_hand():
    """384 bytes hold 16 tokens of 16 + 8; windows that are gone make room for tokens, and no page more than fits."""
    allocator = two_sides()
    assert allocator.available_size() == 16
    row = allocator.alloc(10)
    assert allocator.available_size() == 6
    allocator.free_swa(row[:6])
    assert allocator.available_size() == 8
    assert allocator.alloc(9) is None
    assert allocator.alloc(2) is not None
    assert allocator.available_size() == 6
    allocator.free(row)
    assert allocator.available_size() == 14
    assert (allocator.size, allocator.swa_size) == (24, 48)


@pytest.mark.parametrize("page_size", [1, 4])
def test_rows_of_a_table_grow_as_with_a_static_allocator(page_size):
    """Decoding rows in place writes the same slots, until both are full, and then changes nothing."""
    static = PagedAllocator(6 * page_size, page_size)
    arena = one_pool(6 * page_size, page_size)
    tables, lengths = ([np.full((3, 40), -1), np.zeros(3, dtype=np.int64)] for _ in range(2)), []
    answers = []
    for allocator, (table, length) in zip((static, arena), tables, strict=True):
        rows, tags = np.array([1, 2]), np.array([5, 6], dtype=np.int32)
        said = [allocator.alloc_decode_rows(table, length, rows, tags) for _ in range(4 * page_size)]
        answers.append(([None if slots is None else slots.tolist() for slots in said], allocator.owners()))
        lengths.append(length.tolist())
    assert answers[0] == answers[1]
    assert answers[0][0][-1] is None
    assert lengths[0] == lengths[1] == [0, 3 * page_size, 3 * page_size]


@pytest.mark.parametrize("eager", [False, True])
def test_while_the_gate_is_closed_nothing_moves_and_room_is_still_exact(eager):
    """With holes inside spans and no leave to move, what is promised can be taken; with leave there is more."""
    is_open = [True]
    allocator = two_sides(may_move=lambda: is_open[0], eager=eager)
    rows = allocator.alloc(16)
    is_open[0] = False
    allocator.free_swa(rows[::2])
    allocator.free(rows[5:8])
    held = dict(zip(rows.tolist(), allocator.physical_slots(rows).tolist(), strict=True))
    room = allocator.available_size()
    assert room > 0
    before = chain_state(allocator.chain), snapshot(allocator)
    assert allocator.alloc(room + 1) is None
    assert (chain_state(allocator.chain), snapshot(allocator)) == before
    taken = allocator.alloc(room)
    assert taken is not None
    assert allocator.chain.num_moves == 0
    live = [slot for slot in rows.tolist() if slot not in {6, 7, 8}]
    assert allocator.physical_slots(live).tolist() == [held[slot] for slot in live]
    allocator.free(taken)
    is_open[0] = True
    assert allocator.available_size() > room
    assert allocator.alloc(allocator.available_size()) is not None
    assert allocator.chain.num_moves
    allocator.audit()


def test_what_does_not_fit_on_every_side_is_taken_from_none():
    """Pages that the full side has room for and both sides together do not: None, and the arena is as it was."""
    allocator = with_all()
    allocator.states.alloc(allocator.states.available_size() - 1)
    before = chain_state(allocator.chain), snapshot(allocator)
    tokens = allocator.available_size() + 2
    assert allocator.full_available_size() >= tokens
    assert allocator.alloc(tokens) is None
    assert allocator.alloc_extend([0], [tokens], [-1]) is None
    assert allocator.alloc_extend_swa_tail([0], [tokens], [-1], tokens) is None
    assert allocator.states.alloc(2) is None
    assert (chain_state(allocator.chain), snapshot(allocator)) == before
    assert allocator.alloc_extend_swa_tail([0], [tokens], [-1], 0) is not None


def test_a_fence_stands_before_every_move():
    """The fence that an allocator was given is called when pages move, and not for plain takes."""
    calls = []
    allocator = two_sides(fence=lambda: calls.append(allocator.chain.num_moves))
    rows = allocator.alloc(16)
    assert not calls
    allocator.free_swa(rows[::2])
    allocator.alloc(allocator.available_size())
    assert allocator.chain.num_moves
    assert calls[0] == 0


# Places.


@every_maker
def test_slots_that_nobody_holds_lie_in_the_padding(make):
    """Free, parked, padding and -1 all have place 0; live slots have places of their own, at their offset in a page."""
    allocator = make()
    size = allocator.page_size
    rows = pages_of(allocator, 4)
    with allocator.defer_frees():
        allocator.free(rows[1])
        allocator.free(rows[2])
        places = allocator.physical_slots(rows)
        assert not places[1:3].any()
        live = places[[0, 3]]
        assert (live > 0).all()
        assert (live % size == rows[[0, 3]] % size).all()
        assert live.unique().numel() == 2 * size
        everything = torch.arange(-1, allocator.size + size)
        assert (allocator.physical_slots(everything) >= 0).all()
        assert allocator.physical_slots([-1, 0, size - 1]).tolist() == [0, 0, 0]
    for bad in (-2, 10 * allocator.size):
        with pytest.raises(ForeignPage, match=f"slot {bad} "):
            allocator.physical_slots([size, bad])


@every_maker
def test_places_are_written_where_the_caller_wants_them(make):
    """`out` is filled in place, in any strides, the slots themselves too; one of another shape or type is refused."""
    allocator = make()
    rows = pages_of(allocator, 3)
    expected = allocator.physical_slots(rows)
    wide = torch.full((3, 2 * allocator.page_size), -7)
    out = wide[:, ::2]
    assert allocator.physical_slots(rows, out=out) is out
    assert (out == expected).all()
    assert (wide[:, 1::2] == -7).all()
    for bad in (torch.zeros(1, dtype=torch.int64), torch.zeros_like(rows, dtype=torch.int32)):
        with pytest.raises(InvalidSize, match=r"Pass int64"):
            allocator.physical_slots(rows, out=bad)
        assert not bad.any()
    assert allocator.physical_slots(rows, out=rows) is rows
    assert (rows == expected).all()


def test_places_of_the_window_side_are_asked_for_by_full_slots():
    """A slot with a window side has a place there; one that has lost it, and -1, are in the padding."""
    allocator = with_all()
    rows = pages_of(allocator, 4)
    allocator.free_swa(rows[:2])
    places = allocator.physical_window_slots(rows)
    assert not places[:2].any()
    assert (places[2:] > 0).all()
    assert (places[2:] % 2 == rows[2:] % 2).all()
    assert allocator.physical_window_slots([-1, 0, 1]).tolist() == [0, 0, 0]
    out = torch.empty_like(rows)
    assert allocator.physical_window_slots(rows, out=out) is out
    assert (out == places).all()
    with pytest.raises(ForeignPage):
        allocator.physical_window_slots([allocator.size + 2])


# Frees.


@grouped_or_not
@pytest.mark.parametrize("way", FREES.values(), ids=FREES)
def test_every_way_to_free_ends_in_the_same_books(way, grouped):
    """Whole, in stretches, by either side first, at once or in a group: as a static allocator with room for all."""
    made = [with_all(order="lowest"), SWAAllocator(with_all().size, with_all().swa_size, 2, order="lowest")]
    ends = []
    for allocator in made:
        row = allocator.alloc(12)
        allocator.alloc(6)
        allocator.free_swa(row[:4])
        if grouped:
            with allocator.defer_frees():
                way(allocator, row)
        else:
            way(allocator, row)
        allocator.audit()
        ends.append(books(allocator)[:3])
    assert ends[0] == ends[1]


def test_windows_freed_twice_are_freed_once():
    """`free_swa` again, on the same slots or on freed ones, does nothing, in or out of a group."""
    allocator = with_all()
    row = allocator.alloc(12)
    allocator.free_swa(row[:8])
    before = chain_state(allocator.chain), snapshot(allocator)
    allocator.free_swa(row[:8])
    assert (chain_state(allocator.chain), snapshot(allocator)) == before
    with allocator.defer_frees():
        allocator.free_swa(row)
        allocator.free_swa(row)
        allocator.free(row)
        allocator.free_swa(row)
    allocator.audit()
    assert allocator.available_size() == with_all().available_size()


@pytest.mark.parametrize("make", [MAKERS["tokens and states"], with_all])
def test_states_and_tokens_wait_in_one_group(make):
    """Both are parked in the allocator's one list, come back at its end, and a state parked twice is a double free."""
    allocator = make()
    room = allocator.available_size(), allocator.states.available_size()
    states, row = allocator.states.alloc(2, 9), allocator.alloc(8)
    assert allocator.states.owners() == {9: 2}
    with allocator.defer_frees():
        allocator.states.free(states[:1])
        allocator.free(row)
        assert {release.pool for release in allocator.free_group} == set(allocator.pools.values())
        assert allocator.states.parked_size() == 1
        with pytest.raises(DoubleFree):
            allocator.states.free(states)
        allocator.audit()
        allocator.states.free(states[1:])
    allocator.audit()
    assert (allocator.available_size(), allocator.states.available_size()) == room
    with pytest.raises(DoubleFree):
        allocator.states.free([1])
    with pytest.raises(ForeignPage):
        allocator.states.free([0])
    assert allocator.states.alloc(0).tolist() == []
    with pytest.raises(InvalidSize, match="-1 states"):
        allocator.states.alloc(-1)


@every_maker
def test_clearing_inside_a_group_leaves_an_empty_arena(make):
    """Whatever is held or parked, `clear` makes everything free, and the end of the dropped group is nothing."""
    allocator = make()
    room = allocator.available_size()
    row = allocator.alloc(8 * allocator.page_size)
    allocator.free_group_begin()
    allocator.free(row[: 2 * allocator.page_size])
    if allocator.states:
        allocator.states.free(allocator.states.alloc(1))
        allocator.states.alloc(1)
    allocator.clear()
    allocator.free_group_end()
    allocator.audit()
    assert allocator.available_size() == room
    assert not stamped_pages(allocator) if allocator.states else not allocator.owners()


@every_maker
def test_a_refused_stretch_leaves_the_others_where_they_are(make):
    """Stretches of which the last is already free: none is freed, ids and places are as before."""
    allocator = make()
    rows = pages_of(allocator, 4)
    allocator.free(rows[3])
    before = chain_state(allocator.chain), snapshot(allocator)
    with pytest.raises(DoubleFree):
        allocator.free_segments([(row, 0) for row in rows])
    assert (chain_state(allocator.chain), snapshot(allocator)) == before
    allocator.audit()


# Chains and arenas.


def test_allocators_that_share_a_chain_clear_their_own_pool_alone():
    """Two pools behind two allocators: what one clears or fills, the other keeps; room is shared."""
    specs = [EntrySpec("a", 4, 2, Place.LOW, align=1), EntrySpec("b", 3, 1, Place.HIGH, align=1)]
    chain = PoolChain(ByteArena(100), specs)
    low, high = (MultiEndedAllocator(chain, name) for name in "ab")
    assert (low.page_size, high.page_size) == (2, 1)
    kept, room = high.alloc(10), low.available_size()
    low.alloc(room)
    assert high.available_size() <= 2
    low.clear()
    assert low.available_size() == room
    assert high.owners() == {0: 10}
    assert (high.physical_slots(kept) > 0).all()
    low.audit()
    high.audit()
    with pytest.raises(LayoutError, match="no pool 'c'"):
        MultiEndedAllocator(chain, "c")


def test_ids_may_be_scarcer_than_bytes():
    """A chain with few virtual pages for a pool: those are all there is to take."""
    spec = EntrySpec("only", 4, align=1)
    allocator = MultiEndedAllocator(PoolChain(ByteArena(100), [spec], num_virtual={"only": 5}), "only")
    assert allocator.size == allocator.available_size() == 5
    assert allocator.alloc(6) is None
    assert allocator.alloc(5).tolist() == [1, 2, 3, 4, 5]


def test_specs_say_what_entries_are_and_the_allocator_where_they_lie():
    """Size, alignment and zeroing are the spec's; name, place and page size are the allocator's."""
    state = EntrySpec("mine", 64, 8, Place.HIGH, zero_on_take=True)
    allocator = UnifiedMambaAllocator(4096, page_size=4, full=EntrySpec("other", 32), state=state)
    assert list(allocator.chain.pools) == ["state", "full"]
    kept = allocator.chain.pools["state"].spec
    assert kept == EntrySpec("state", 64, 1, Place.LOW, zero_on_take=True)
    allocator.chain.arena.storage.fill_(9)
    place = int(allocator.states.physical_slots(allocator.states.alloc(1)))
    assert not allocator.chain.arena.pages(kept)[place].any()


@pytest.mark.parametrize("make", [two_sides, with_all])
def test_an_arena_without_bytes_keeps_the_same_books(make):
    """For simulation: the same slots and sizes, and nothing to read."""
    allocator, other = make(storage=False), make()
    assert allocator.alloc(10).tolist() == other.alloc(10).tolist()
    assert allocator.available_size() == other.available_size()
    allocator.audit()
    assert allocator.chain.arena.storage is None


def test_sizes_that_make_no_arena_are_refused():
    """No bytes, no page size, an entry of nothing, an arena below two pages of a pool, an order that there is not."""
    with pytest.raises(InvalidSize, match="total_bytes"):
        UnifiedSWAAllocator(0, page_size=1, full=2, window=1)
    with pytest.raises(InvalidSize, match="page_size"):
        UnifiedSWAAllocator(100, page_size=0, full=2, window=1)
    with pytest.raises(InvalidSize, match="entry_bytes"):
        UnifiedSWAAllocator(100, page_size=1, full=0, window=1)
    with pytest.raises(LayoutError, match="'state'"):
        UnifiedMambaAllocator(100, page_size=1, full=2, state=60)
    with pytest.raises(InvalidSize, match="order"):
        UnifiedSWAAllocator(100, page_size=1, full=2, window=1, order="random")


def test_negative_demands_are_refused():
    """`fits` answers for 0 or more tokens and states, and rounds tokens up to pages."""
    allocator = with_all()
    assert allocator.fits()
    room = allocator.available_size()
    assert allocator.fits(room - 1)
    assert not allocator.fits(room + 1)
    for wanted in ({"num_tokens": -1}, {"num_window_tokens": -1}, {"num_states": -1}):
        with pytest.raises(InvalidSize, match="-1"):
            allocator.fits(**wanted)
    lone = MAKERS["tokens and states"]()
    assert lone.fits(lone.available_size())
    assert not lone.fits(lone.available_size(), num_states=1)


# Damage.


def take_behind(allocator):
    allocator.chain.take("full", np.array([allocator.num_pages], dtype=np.int64))


def release_behind(allocator):
    allocator.chain.release("full", np.array([3], dtype=np.int64))


def release_state_behind(allocator):
    allocator.chain.release("state", np.array([1], dtype=np.int64))


def forget_group(allocator):
    allocator.free_group = None


def lose_window(allocator):
    allocator.window_pages[3] = 0


@pytest.mark.parametrize("damage", [take_behind, release_behind, release_state_behind, forget_group, lose_window])
def test_damage_between_ids_and_places_does_not_pass_an_audit(damage):
    """Pages taken, freed or parked behind the allocator's back, a group or a mapping lost: the audit says so."""
    allocator = with_all()
    row = allocator.alloc(12)
    allocator.states.alloc(1)
    allocator.free_group_begin()
    allocator.free(row[:4])
    allocator.audit()
    damage(allocator)
    with pytest.raises(AuditError):
        allocator.audit()
