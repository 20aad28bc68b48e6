"""An audit of the window side is worth something only if it finds what is wrong."""

import numpy as np
import pytest

from kvstead.errors import AuditError
from kvstead.kernels import host
from tiny_model import tiny_manager, tiny_window_layout

PAGE_SIZE = 2


def page_of(manager, row, position):
    """The full page at a position of a row."""
    return manager.table.slots[row, position : position + 1] // PAGE_SIZE


def node_at(manager, row, end):
    """The node of the row's locked path that ends at a position."""
    node = manager.lock_of(row)
    while node.end > end:
        node = node.parent
    return node


def lose_a_window_page(manager, _rows):
    manager.allocator.pools["window"].take(1)


def free_a_window_page_that_is_held(manager, rows):
    manager.allocator.pools["window"].leave(manager.allocator.window_pages[page_of(manager, rows[1], 4)])


def drop_a_window_of_a_row(manager, rows):
    manager.allocator.free_window_pages(page_of(manager, rows[1], 4))


def drop_a_window_of_a_locked_prefix(manager, rows):
    manager.allocator.free_window_pages(page_of(manager, rows[0], 6))


def drop_a_window_of_a_cached_prefix(manager, _rows):
    node = next(node for node in manager.tree.root.below() if node.window.is_live and not node.locks)
    manager.allocator.free_window_pages(node.pages)


def forget_a_mapping(manager, rows):
    manager.allocator.window_pages[page_of(manager, rows[1], 4)] = 0


def map_two_pages_to_one(manager, rows):
    pages = manager.allocator.window_pages
    pages[page_of(manager, rows[1], 4)] = pages[page_of(manager, rows[1], 6)]


def map_a_page_that_is_free(manager, _rows):
    free = np.flatnonzero(manager.allocator.page_states() == host.FREE)[:1]
    manager.allocator.window_pages[free] = manager.allocator.pools["window"].take(1)


def spoil_the_last_entry_of_the_mapping(manager, _rows):
    manager.allocator.window_pages[-1] = 0


def map_padding(manager, _rows):
    manager.allocator.window_pages[0] = manager.allocator.pools["window"].take(1)[0]


def write_a_window_page_state(manager, rows):
    page = manager.allocator.window_pages[page_of(manager, rows[1], 4)]
    manager.allocator.window_page_states()[page] = host.FREE


def miscount_free_window_pages(manager, _rows):
    manager.allocator.pools["window"].table.num_free += 1


def keep_a_window_that_fell_behind(manager, rows):
    pages = manager.allocator.window_pages
    assert pages[page_of(manager, rows[1], 0)] == 0
    pages[page_of(manager, rows[1], 0)] = manager.allocator.pools["window"].take(1)


def start_a_window_too_early(manager, rows):
    manager.window_start[rows[1]] -= PAGE_SIZE


def start_a_window_too_late(manager, rows):
    manager.window_start[rows[1]] += PAGE_SIZE


def start_a_window_inside_a_page(manager, rows):
    manager.window_start[rows[1]] += 1


def start_a_locked_window_too_early(manager, rows):
    manager.window_start[rows[0]] -= PAGE_SIZE


def call_a_tombstone_live(manager, rows):
    node_at(manager, rows[0], 4).window.is_live = True


def call_a_live_node_a_tombstone(manager, rows):
    manager.lock_of(rows[0]).window.is_live = False


def miscount_evictable_windows(manager, _rows):
    manager.tree._window.evictable -= 1


def miscount_tombstones(manager, _rows):
    manager.tree._window.dead += 1


def leave_a_window_lock(manager, rows):
    manager.lock_of(rows[0]).window.locks += 1


def forget_a_window_lock(manager, rows):
    manager.lock_of(rows[0]).window.locks -= 1


def let_a_window_lock_go(manager, rows):
    manager.tree.loosen(manager.lock_of(rows[0]), int(manager.window_start[rows[0]]), 8)


def lock_a_window_without_a_row(manager, rows):
    manager.tree.lock(manager.lock_of(rows[0]))


def take_a_window_out_of_the_queue(manager, _rows):
    manager.tree._window._queue.pop()


DAMAGES = [
    lose_a_window_page,
    free_a_window_page_that_is_held,
    drop_a_window_of_a_row,
    drop_a_window_of_a_locked_prefix,
    drop_a_window_of_a_cached_prefix,
    forget_a_mapping,
    map_two_pages_to_one,
    map_a_page_that_is_free,
    spoil_the_last_entry_of_the_mapping,
    map_padding,
    write_a_window_page_state,
    miscount_free_window_pages,
    keep_a_window_that_fell_behind,
    start_a_window_too_early,
    start_a_window_too_late,
    start_a_window_inside_a_page,
    start_a_locked_window_too_early,
    call_a_tombstone_live,
    call_a_live_node_a_tombstone,
    miscount_evictable_windows,
    miscount_tombstones,
    leave_a_window_lock,
    forget_a_window_lock,
    let_a_window_lock_go,
    lock_a_window_without_a_row,
    take_a_window_out_of_the_queue,
]


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("pure", [False, True])
def test_audit_sees_every_kind_of_damage_to_windows(pure, damage):
    """A sound memory passes; one thing changed behind its back is reported."""
    sides = {"num_slots": 64} if pure else {"num_slots": 64, "num_window_slots": 48}
    layout = tiny_window_layout(4, pure=pure)
    manager = tiny_manager(page_size=PAGE_SIZE, layout=layout, max_requests=4, **sides)
    rows = []
    for first in (0, 1):  # one row that shares four pages of five, one that shares none; both windows begin at 4
        row = manager.match(np.array([first, 1, 2, 3, 4, 5, 6, 7, 8])).row
        manager.extend([row], [10])
        manager.commit([row], [9], [1])
        rows.append(row)
    manager.window_room()  # what falls behind is given back
    manager.cache(rows[0])
    done = manager.match([9, 9, 9]).row
    manager.extend([done], [3])
    manager.commit([done], [3], [1])
    manager.finish(done)
    manager.audit()
    assert manager.window_start[rows].tolist() == [4, 4]
    assert manager.tree.num_tombstone_tokens == 4
    damage(manager, rows)
    with pytest.raises(AuditError):
        manager.audit()
