"""An audit of states is worth something only if it finds what is wrong."""

import numpy as np
import pytest
from scenario import decode, open_row, prompt_of

from kvstead.engine import KVCacheManager
from kvstead.errors import AuditError
from kvstead.kernels import host
from tiny_model import tiny_manager, tiny_state_layout

PAGE_SIZE = 2


def cached_node(manager):
    """A node with a state that no row has locked."""
    return next(node for node in manager.tree.root.below() if node.state is not None and not node.locks)


def lose_a_state(manager, _rows):
    manager.allocator.states.pages.take(1)


def lose_a_copy(manager, rows):
    manager.row_states.kept[rows[1]] = 0


def lose_a_copy_and_its_count(manager, rows):
    manager.row_states.kept[rows[1]] = 0
    manager.row_states.num_kept -= 1


def forget_the_state_of_a_row(manager, rows):
    manager.row_states.slot[rows[0]] = 0


def free_the_state_of_a_row(manager, rows):
    manager.allocator.states.free(manager.row_states.slot[rows[:1]])


def free_a_copy(manager, rows):
    manager.allocator.states.free(manager.row_states.kept[rows[1:]])


def free_a_cached_state(manager, _rows):
    manager.allocator.states.free(np.array([cached_node(manager).state.slot]))


def share_the_state_of_two_rows(manager, rows):
    states = manager.row_states
    manager.allocator.states.free(states.slot[rows[:1]])
    states.slot[rows[0]] = states.slot[rows[1]]


def run_on_a_cached_state(manager, rows):
    states = manager.row_states
    manager.allocator.states.free(states.slot[rows[:1]])
    states.slot[rows[0]] = cached_node(manager).state.slot


def name_the_state_of_a_row_twice(manager, rows):
    manager.row_states.slot[rows[0]] = manager.row_states.slot[rows[1]]


def keep_the_row_s_own_state_as_its_copy(manager, rows):
    states = manager.row_states
    manager.allocator.states.free(states.kept[rows[1:]])
    states.kept[rows[1]] = states.slot[rows[1]]


def take_a_state_for_no_row(manager, _rows):
    manager.row_states.slot[3] = manager.allocator.states.pages.take(1)[0]


def miscount_copies(manager, _rows):
    manager.row_states.num_kept += 1


def hold_a_cached_state(manager, _rows):
    manager.tree.hold_state(cached_node(manager))


def hold_a_cached_state_in_secret(manager, _rows):
    cached_node(manager).state.holds += 1


def take_a_state_out_of_the_tree(manager, _rows):
    cached_node(manager).state = None


def point_a_node_elsewhere(manager, _rows):
    cached_node(manager).state.slot = int(manager.allocator.states.pages.take(1)[0])


def write_a_slot_s_state(manager, rows):
    manager.allocator.states.page_states()[manager.row_states.slot[rows[0]]] = host.FREE


def miscount_free_states(manager, _rows):
    manager.allocator.states.pages.table.num_free += 1


DAMAGES = [
    lose_a_state,
    lose_a_copy,
    lose_a_copy_and_its_count,
    forget_the_state_of_a_row,
    free_the_state_of_a_row,
    free_a_copy,
    free_a_cached_state,
    share_the_state_of_two_rows,
    run_on_a_cached_state,
    name_the_state_of_a_row_twice,
    keep_the_row_s_own_state_as_its_copy,
    take_a_state_for_no_row,
    miscount_copies,
    hold_a_cached_state,
    hold_a_cached_state_in_secret,
    take_a_state_out_of_the_tree,
    point_a_node_elsewhere,
    write_a_slot_s_state,
    miscount_free_states,
]


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("span", [0, 4])
@pytest.mark.parametrize("pool_layout", ["static", "unified", "ideal"])
def test_audit_sees_every_kind_of_damage_to_states(pool_layout, span, damage):
    """A sound memory passes; one thing changed behind its back is reported, however the states lie."""
    options = {"page_size": PAGE_SIZE, "max_requests": 4, "max_length": 64, "state_interval": 4, "storage": False}
    layout = tiny_state_layout(span)
    if pool_layout == "static":
        windows = {"num_window_slots": 64} if span else {}
        manager = tiny_manager(64, layout=layout, num_states=8, **windows, **options)
    else:
        manager = KVCacheManager(layout, 8000, pool_layout=pool_layout, **options)
    manager.finish(open_row(manager, prompt_of(6, first=3)))
    rows = [open_row(manager, prompt_of(5, first=first)) for first in (0, 1)]  # one alone, one with a copy
    for length in (6, 7):
        decode(manager, rows[1])
        assert manager.table.lengths[rows[1]] == length
    assert manager.decode([rows[1]]) is not None
    manager.checkpoint(np.array(rows))
    assert manager.row_states.kept[rows].astype(bool).tolist() == [False, True]
    manager.audit()
    damage(manager, rows)
    with pytest.raises(AuditError):
        manager.audit()
