"""Copies of states are made of what is spare, and only of what is known to be computed."""

import pytest

from eviction_in_tokens import evict
from tiny_model import tiny_manager, tiny_state_layout

PAGE_SIZE = 4


def computed_row(manager, num_tokens):
    """A row whose prompt of so many tokens is computed."""
    row = manager.match([1] * num_tokens).row
    manager.extend([row], [num_tokens])
    manager.commit([row], [num_tokens], [0])
    return row


@pytest.mark.parametrize("num_rows", [1, 2, 3])
def test_copy_without_room_is_no_shortage(num_rows):
    """All states are taken and a copy finds no slot: the memory has not been short until a request is refused."""
    options = {"num_states": num_rows, "state_interval": PAGE_SIZE}
    manager = tiny_manager(256, PAGE_SIZE, layout=tiny_state_layout(), **options)
    rows = [computed_row(manager, 2 * PAGE_SIZE) for _ in range(num_rows)]
    manager.checkpoint(rows)
    assert (manager.num_state_copies, manager.first_shortage) == (0, None)
    assert manager.match([2]) is None
    assert 0 < manager.first_shortage < 1


@pytest.mark.parametrize("num_guessed", [1, PAGE_SIZE - 1, PAGE_SIZE])
def test_state_behind_guessed_tokens_is_not_kept(num_guessed):
    """Slots for guesses may reach a place where a copy is due; a copy is made once its tokens are known."""
    manager = tiny_manager(256, PAGE_SIZE, layout=tiny_state_layout(), num_states=8, state_interval=PAGE_SIZE)
    end = 3 * PAGE_SIZE
    row = computed_row(manager, end - num_guessed - 1)
    manager.extend([row], [end])
    manager.checkpoint([row])
    assert manager.num_state_copies == 0
    manager.append(row, [1] * num_guessed)
    manager.commit([row], [end], [0])
    manager.audit()
    manager.finish(row)
    assert manager.match([1] * end + [2]).num_cached == 0


def test_nodes_are_not_joined_without_end_where_states_go():
    """Each state that goes alone would join its node to the next one; a prompt of 32,768 tokens stays in pieces."""
    manager = tiny_manager(1 << 16, 16, layout=tiny_state_layout(), num_states=40, max_length=1 << 15)
    tokens, length = [1] * (1 << 15), 0
    row = manager.match(tokens).row
    while length < len(tokens):
        length += 1024
        manager.extend([row], [length])
        manager.commit([row], [length], [0])
        manager.checkpoint([row])
    assert manager.tree.num_states == 32
    evict(manager.tree, 0, 0, 32)
    manager.audit()
    assert {node.tokens.size for node in manager.tree.root.below()} == {8192}
