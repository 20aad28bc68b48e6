"""Slots for states beside tokens, in pools of their own: one group, one `clear`, one audit for all."""

import pytest
from allocator_pair import ORDERS, snapshot

from kvstead.allocators import PagedAllocator, PureSWAAllocator, SWAAllocator, TokenAllocator
from kvstead.errors import AuditError, DoubleFree, ForeignPage, InvalidSize

MAKERS = {
    "one pool": lambda **keywords: PagedAllocator(24, 2, **keywords),
    "two sides": lambda **keywords: SWAAllocator(24, 16, 2, **keywords),
    "windows alone": lambda **keywords: PureSWAAllocator(24, 2, **keywords),
}
every_maker = pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)


@every_maker
@pytest.mark.parametrize("order", ORDERS)
def test_states_come_from_a_pool_of_their_own(make, order):
    """As many as were asked for, ids from 1 upward; tokens take none of them, and they take no tokens."""
    allocator = make(num_states=3, order=order)
    states = allocator.states
    room = allocator.available_size()
    assert (states.size, states.available_size()) == (3, 3)
    assert states.alloc(4) is None
    assert states.alloc(2, 5).tolist() == [1, 2]
    assert (states.available_size(), allocator.available_size()) == (1, room)
    assert states.owners() == {5: 2}
    assert states.page_states().tolist() == [3, 1, 1, 0]
    allocator.alloc(room)
    assert states.alloc(1).tolist() == [3]
    allocator.audit()


@every_maker
def test_states_lie_where_they_are_named(make):
    """The place of a live state is its slot; 0 for free and parked ones, padding and -1; no other id is known."""
    allocator = make(num_states=3)
    slots = allocator.states.alloc(3)
    assert allocator.states.physical_slots(slots).tolist() == slots.tolist() == [1, 2, 3]
    with allocator.defer_frees():
        allocator.states.free(slots[1:2])
        assert allocator.states.physical_slots([[-1, 0, 1], [2, 3, 2]]).tolist() == [[0, 0, 1], [0, 3, 0]]
    out = slots.clone()
    assert allocator.states.physical_slots(slots, out=out) is out
    for bad in (-2, 4):
        with pytest.raises(ForeignPage, match=f"slot {bad} "):
            allocator.states.physical_slots([1, bad])


@every_maker
def test_states_and_tokens_are_parked_in_one_group(make):
    """Both come back when the group ends, a state parked twice is a double free, and the audit counts both."""
    allocator = make(num_states=4)
    room = allocator.available_size()
    states, row = allocator.states.alloc(2), allocator.alloc(8)
    with allocator.defer_frees():
        allocator.states.free(states[:1])
        allocator.free(row)
        assert (allocator.states.parked_size(), allocator.states.available_size()) == (1, 2)
        assert {release.pool for release in allocator.free_group} == set(allocator.pools.values())
        before = snapshot(allocator)
        for bad, error in (([2, 1], DoubleFree), ([2, 2], DoubleFree), ([2, 0], ForeignPage), ([2, 9], ForeignPage)):
            with pytest.raises(error):
                allocator.states.free(bad)
            assert snapshot(allocator) == before
        allocator.audit()
        allocator.states.free(states[1:])
    allocator.audit()
    assert (allocator.available_size(), allocator.states.available_size()) == (room, 4)
    with pytest.raises(DoubleFree):
        allocator.states.free(states)


@every_maker
def test_clearing_frees_states_too(make):
    """Held and parked states are free again, in a group or not; the end of the dropped group is nothing."""
    allocator = make(num_states=4)
    states = allocator.states.alloc(3)
    allocator.free_group_begin()
    allocator.states.free(states[:1])
    allocator.clear()
    allocator.free_group_end()
    assert allocator.states.available_size() == 4
    assert allocator.states.alloc(4).tolist() == [1, 2, 3, 4]
    allocator.audit()


def lose_group(allocator):
    allocator.free_group = None


def free_behind(allocator):
    allocator.states.page_states()[2] = 0


@every_maker
@pytest.mark.parametrize("damage", [lose_group, free_behind])
def test_damaged_states_do_not_pass_an_audit(make, damage):
    """The audit finds a group that is gone while a state is parked, and a state freed without the allocator."""
    allocator = make(num_states=4)
    states = allocator.states.alloc(3)
    allocator.free_group_begin()
    allocator.states.free(states[:1])
    allocator.audit()
    damage(allocator)
    with pytest.raises(AuditError):
        allocator.audit()


@every_maker
def test_states_are_there_if_asked_for(make):
    """None without a number, a pool of nothing for 0, and an error for less; a token allocator has none."""
    assert make().states is None
    assert TokenAllocator(4).states is None
    assert make(num_states=0).states.alloc(1) is None
    with pytest.raises(InvalidSize, match="num_states is -1"):
        make(num_states=-1)
