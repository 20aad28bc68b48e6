"""An audit of the memory is worth something only if it finds what is wrong."""

import numpy as np
import pytest

from kvstead.errors import AuditError
from kvstead.kernels import host
from tiny_model import tiny_manager

PAGE_SIZE = 2


def lose_a_page(manager, _rows):
    manager.allocator.pools["full"].take(1)


def free_a_page_that_is_held(manager, rows):
    manager.allocator.pools["full"].leave(manager.table.slots[rows[0], :1] // PAGE_SIZE)


def park_a_page_that_is_held(manager, rows):
    manager.allocator.pools["full"].leave(manager.table.slots[rows[1], 4:5] // PAGE_SIZE, host.PARKED)


def write_a_page_state(manager, rows):
    manager.allocator.page_states()[manager.table.slots[rows[0], 0] // PAGE_SIZE] = host.FREE


def miscount_free_pages(manager, _rows):
    manager.allocator.pools["full"].table.num_free += 1


def drop_a_page_from_a_node(manager, rows):
    node = manager.lock_of(rows[0])
    node.pages = node.pages[:-1]


def swap_pages_of_a_node(manager, rows):
    node = manager.lock_of(rows[0])
    node.pages = node.pages[::-1].copy()


def miscount_evictable(manager, _rows):
    manager.tree._full.evictable -= 1


def leave_a_lock(manager, rows):
    manager.tree.lock(manager.lock_of(rows[0]))


def leave_a_lock_on_the_root(manager, _rows):
    manager.tree.lock(manager.tree.root)


def forget_a_lock(manager, rows):
    manager.tree.unlock(manager.lock_of(rows[0]))


def lock_elsewhere(manager, rows):
    manager.rows.node[rows[0]] = manager.tree.root


def swap_shared_slots(manager, rows):
    manager.table.slots[rows[0], [0, 1, 2, 3]] = manager.table.slots[rows[0], [2, 3, 0, 1]]


def keep_the_duplicates(manager, rows):
    first, second = rows
    manager.table.slots[first, :4] = manager.table.slots[second, :4]


def shift_an_own_slot(manager, rows):
    manager.table.slots[rows[1], 5] += PAGE_SIZE


def shift_all_own_slots(manager, rows):
    manager.table.slots[rows[1], :6] += 1


def name_a_page_twice(manager, rows):
    row = rows[1]
    manager.allocator.pools["full"].leave(manager.table.slots[row, 4:5] // PAGE_SIZE)
    manager.table.slots[row, 4:6] = manager.table.slots[row, 2:4]


def share_a_page_of_two_rows(manager, rows):
    first, second = rows
    manager.allocator.pools["full"].leave(manager.table.slots[second, :1] // PAGE_SIZE)
    manager.table.slots[second, :2] = manager.table.slots[first, 4:6]


def shorten_a_row(manager, rows):
    manager.table.lengths[rows[1]] -= PAGE_SIZE


def write_to_a_row_that_is_in(manager, _rows):
    manager.table.lengths[4] = 2


def give_a_row_back_alone(manager, rows):
    manager.table.give(rows[1])


def list_a_row_twice(manager, _rows):
    manager.table._free_rows.table.num_free -= 1


def compute_too_much(manager, rows):
    manager.computed[rows[1]] = 9


def compute_less_than_is_shared(manager, rows):
    manager.computed[rows[0]] = 1


def forget_known_tokens(manager, rows):
    manager.num_tokens[rows[1]] = 3


def share_part_of_a_page(manager, rows):
    manager.protected[rows[0]] += 1


def share_too_little(manager, rows):
    manager.protected[rows[0]] -= PAGE_SIZE


DAMAGES = [
    lose_a_page,
    free_a_page_that_is_held,
    park_a_page_that_is_held,
    write_a_page_state,
    miscount_free_pages,
    drop_a_page_from_a_node,
    swap_pages_of_a_node,
    miscount_evictable,
    leave_a_lock,
    leave_a_lock_on_the_root,
    forget_a_lock,
    lock_elsewhere,
    swap_shared_slots,
    keep_the_duplicates,
    shift_an_own_slot,
    shift_all_own_slots,
    name_a_page_twice,
    share_a_page_of_two_rows,
    shorten_a_row,
    write_to_a_row_that_is_in,
    give_a_row_back_alone,
    list_a_row_twice,
    compute_too_much,
    compute_less_than_is_shared,
    forget_known_tokens,
    share_part_of_a_page,
    share_too_little,
]


@pytest.mark.parametrize("damage", DAMAGES)
def test_audit_sees_every_kind_of_damage(damage):
    """A sound memory passes; one thing changed behind its back is reported."""
    manager = tiny_manager(32, PAGE_SIZE, max_requests=4)
    rows = []
    for first in (0, 1):  # one row that shares two pages of three, one that shares none
        tokens = np.array([first, 1, 2, 3, 4])
        row = manager.match(tokens).row
        manager.extend([row], [6])
        manager.commit([row], [5], [1])
        rows.append(row)
    manager.cache(rows[0])
    done = manager.match([9, 9, 9]).row
    manager.extend([done], [3])
    manager.commit([done], [3], [1])
    manager.finish(done)
    manager.audit()
    damage(manager, rows)
    with pytest.raises(AuditError):
        manager.audit()
