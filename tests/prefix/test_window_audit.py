"""An audit that finds nothing wrong on the window side is worth something only if it finds what is wrong."""

import numpy as np
import pytest
from tree_setup import TreeSetup

from kvstead.errors import AuditError
from kvstead.model.window import Window

# The tree below, window 2 pages:  ab -- cd -- ef -- gh    "ab" and "xy" are tombstones, two locks end behind "ef" and
#                                    `- xy                  keep its windows; `live` is "gh", `dead` is "xy".


def bury_a_live_node(_bench, live, _dead):
    live.window.is_live = False


def wake_a_tombstone(_bench, _live, dead):
    dead.window.is_live = True


def add_a_lock_to_an_unlocked_node(_bench, live, _dead):
    live.window.locks += 1


def add_a_lock_to_a_tombstone(_bench, _live, dead):
    dead.window.locks = dead.locks + 1


def add_a_lock_where_none_reaches(_bench, live, _dead):
    live.parent.parent.window.locks += 1


def forget_the_locks_of_a_node(_bench, live, _dead):
    live.parent.window.locks = 0


def count_locks_below_zero(_bench, live, _dead):
    live.window.locks = -1


def miscount_evictable(setup, _live, _dead):
    setup.tree._window.evictable += 1


def miscount_protected(setup, _live, _dead):
    setup.tree._window.protected -= 1


def miscount_tombstones(setup, _live, _dead):
    setup.tree._window.dead += 1


def swap_two_counters(setup, _live, _dead):
    window = setup.tree._window
    window.evictable, window.protected = window.protected, window.evictable


def drop_a_node_from_the_queue(setup, live, _dead):
    setup.tree._window._queue.discard(live)


def queue_a_tombstone(setup, _live, dead):
    setup.tree._window._queue.add(dead)


def queue_a_locked_node(setup, live, _dead):
    setup.tree._window._queue.add(live.parent)


def queue_the_root(setup, _live, _dead):
    setup.tree._window._queue.add(setup.tree.root)


def free_a_window_behind_the_tree(setup, live, _dead):
    setup.allocator.free_window_pages(live.pages[-1:])


def free_a_locked_window_behind_the_tree(setup, live, _dead):
    setup.allocator.free_window_pages(live.parent.pages[:1])


def give_a_tombstone_a_window_behind_the_tree(setup, _live, dead):
    other = setup.compute(setup.page_size)
    setup.allocator.move_window(other, dead.pages[:1] * setup.page_size + np.arange(setup.page_size))


def forget_a_mapping(setup, live, _dead):
    setup.allocator.window_pages[live.pages[0]] = 0


@pytest.mark.parametrize("page_size", [1, 2, 4])
@pytest.mark.parametrize(
    "damage",
    [
        bury_a_live_node,
        wake_a_tombstone,
        add_a_lock_to_an_unlocked_node,
        add_a_lock_to_a_tombstone,
        add_a_lock_where_none_reaches,
        forget_the_locks_of_a_node,
        count_locks_below_zero,
        miscount_evictable,
        miscount_protected,
        miscount_tombstones,
        swap_two_counters,
        drop_a_node_from_the_queue,
        queue_a_tombstone,
        queue_a_locked_node,
        queue_the_root,
        free_a_window_behind_the_tree,
        free_a_locked_window_behind_the_tree,
        give_a_tombstone_a_window_behind_the_tree,
        forget_a_mapping,
    ],
)
def test_audit_sees_every_kind_of_window_damage(damage, page_size):
    """A sound tree passes; one thing changed on its window side behind its back is reported."""
    setup = TreeSetup(24, page_size, window=Window(2 * page_size))
    dead = setup.cache("abxy", dead=range(4)).node
    live = setup.cache("abcdefgh", dead=range(2)).node
    for _ in range(2):
        setup.tree.lock(setup.match("abcdef").node)
    assert setup.window_counts() == (4 * page_size, 2 * page_size, 4 * page_size)
    assert (live.parent.window.locks, live.parent.parent.window.locks) == (2, 0)
    setup.audit()
    damage(setup, live, dead)
    with pytest.raises(AuditError, match="only through its own operations"):
        setup.tree.audit()


def test_audit_sees_a_lock_in_front_of_its_window():
    """Where a lock's window part has moved on, a lock too many in front of it is seen."""
    setup = TreeSetup(8, window=Window(2))
    setup.cache("abcdef")
    upper, lower = setup.match("abcd").node, setup.match("abcdef").node
    for node in (upper, lower, lower):
        setup.tree.lock(node)
    for _ in range(2):
        setup.tree.loosen(lower, 4, 6)
    setup.audit()
    assert (upper.window.locks, upper.locks, lower.window.locks) == (1, 3, 0)
    upper.window.locks = 2
    with pytest.raises(AuditError, match="but 1 reach it"):
        setup.tree.audit()
