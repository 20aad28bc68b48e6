"""An audit that finds nothing wrong with states is worth something only if it finds what is wrong."""

import pytest
from tree_setup import TreeSetup

from kvstead.errors import AuditError
from kvstead.prefix import StatePart

# The tree below:  ab -- cd -- ef      "ab", "cd" and "q" have states, that of "cd" is held twice, "ef" has none;
#                  q                   `free` is "ab", `held` is "cd", `bare` is "ef".


def lose_a_state(_bench, free, _held, _bare):
    free.state = None


def lose_a_held_state(_bench, _free, held, _bare):
    held.state = None


def move_a_state(_bench, free, _held, _bare):
    free.state.slot = 9


def put_one_state_twice(_bench, free, _held, bare):
    bare.state = free.state


def put_a_state_behind_the_tree(_bench, _free, _held, bare):
    bare.state = StatePart(9, 0, 0)


def put_a_state_at_the_root(setup, _free, _held, _bare):
    setup.tree.root.state = StatePart(9, 0, 0)


def swap_states(_bench, free, held, _bare):
    free.state, held.state = held.state, free.state


def hold_without_a_lock(_bench, _free, held, _bare):
    held.state.holds += 1


def forget_a_hold(_bench, _free, held, _bare):
    held.state.holds -= 1


def forget_all_holds(_bench, _free, held, _bare):
    held.state.holds = 0


def count_holds_below_zero(_bench, free, _held, _bare):
    free.state.holds = -1


def let_the_path_go(setup, _free, held, _bare):
    setup.tree._full.unlock(held)


def forget_a_slot(setup, free, _held, _bare):
    setup.tree._states._slots.remove(free.state.slot)


def own_another_slot(setup, _free, _held, _bare):
    setup.tree._states._slots.add(9)


def drop_a_state_from_the_queue(setup, free, _held, _bare):
    setup.tree._states._queue.discard(free)


def queue_a_held_state(setup, _free, held, _bare):
    setup.tree._states._queue.add(held)


@pytest.mark.parametrize("page_size", [1, 2, 4])
@pytest.mark.parametrize(
    "damage",
    [
        lose_a_state,
        lose_a_held_state,
        move_a_state,
        put_one_state_twice,
        put_a_state_behind_the_tree,
        put_a_state_at_the_root,
        swap_states,
        hold_without_a_lock,
        forget_a_hold,
        forget_all_holds,
        count_holds_below_zero,
        let_the_path_go,
        forget_a_slot,
        own_another_slot,
        drop_a_state_from_the_queue,
        queue_a_held_state,
    ],
)
def test_audit_sees_every_kind_of_state_damage(damage, page_size):
    """A sound tree passes; one thing changed about its states behind its back is reported."""
    setup = TreeSetup(16, page_size, num_states=3)
    free, held = setup.keep("ab"), setup.keep("abcd")
    setup.keep("q")
    bare = setup.cache("abcdef").node
    for _ in range(2):
        setup.tree.hold_state(held)
    setup.audit()
    damage(setup, free, held, bare)
    with pytest.raises(AuditError, match="only through its own operations"):
        setup.tree.audit()
