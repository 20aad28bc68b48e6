"""An audit that finds nothing wrong is worth something only if it finds what is wrong."""

import numpy as np
import pytest
from tree_setup import TreeSetup

from kvstead.errors import AuditError
from kvstead.prefix import Namespace


def swap_key(_bench, node):
    node.key = node.tokens[-1:].tobytes()


def hang_elsewhere(_bench, node):
    node.parent.children[b"elsewhere"] = node.parent.children.pop(node.key)


def forget_parent(setup, node):
    node.parent = setup.tree.root


def change_a_token(_bench, node):
    node.tokens[0] += 1


def lose_a_token(_bench, node):
    node.tokens = node.tokens[:-1]


def lose_all_tokens(_bench, node):
    node.tokens = node.tokens[:0]


def widen_tokens(_bench, node):
    node.tokens = node.tokens.astype(np.int64)


def move_the_end(setup, node):
    node.end += setup.page_size


def name_the_space_deep_down(_bench, node):
    key = (Namespace(), node.key)
    node.parent.children[key] = node.parent.children.pop(node.key)
    node.key = key


def count_pins_below_zero(_bench, node):
    node.pins = node.locks = -1


def use_the_child_alone(_bench, node):
    node.access += 100


def favour_the_child(_bench, node):
    node.priority += 1


def lose_a_page(_bench, node):
    node.pages = node.pages[:-1]


def share_a_page(_bench, node):
    node.pages[0] = node.parent.pages[0]


def forget_a_lock(_bench, node):
    node.locks += 1


def miscount_evictable(setup, _node):
    setup.tree._full.evictable += 1


def miscount_protected(setup, _node):
    setup.tree._full.protected -= 1


def hold_another_page(setup, _node):
    setup.tree._full._held[-1] = 1


def drop_a_leaf_from_the_queue(setup, node):
    setup.tree._full._queue.discard(node)


def queue_an_inner_node(setup, node):
    setup.tree._full._queue.add(node.parent)


@pytest.mark.parametrize("page_size", [2, 4])
@pytest.mark.parametrize(
    "damage",
    [
        swap_key,
        hang_elsewhere,
        forget_parent,
        change_a_token,
        lose_a_token,
        lose_all_tokens,
        widen_tokens,
        move_the_end,
        name_the_space_deep_down,
        count_pins_below_zero,
        use_the_child_alone,
        favour_the_child,
        lose_a_page,
        share_a_page,
        forget_a_lock,
        miscount_evictable,
        miscount_protected,
        hold_another_page,
        drop_a_leaf_from_the_queue,
        queue_an_inner_node,
    ],
)
def test_audit_sees_every_kind_of_damage(damage, page_size):
    """A sound tree passes; one thing changed behind its back is reported."""
    setup = TreeSetup(12, page_size)
    setup.cache("ab")
    setup.cache("abx")
    node = setup.cache("abcd").node
    setup.tree.lock(node.parent)
    setup.tree.audit()
    damage(setup, node)
    with pytest.raises(AuditError, match="only through its own operations"):
        setup.tree.audit()
