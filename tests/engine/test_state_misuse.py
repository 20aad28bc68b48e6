"""Calls of a manager with states that are misuse: each is refused, and changes nothing."""

import pytest

from kvstead.errors import OpenGroup, StaleRow
from tiny_model import tiny_layout, tiny_manager, tiny_state_layout


@pytest.mark.parametrize("position", [0, 1])
@pytest.mark.parametrize("stale", [-1, 0, 2, 16, 17, 99])
def test_checkpoint_of_a_row_that_is_not_out_is_refused(stale, position):
    """No row is copied for it, not even the good one beside it."""
    manager = tiny_manager(64, 4, layout=tiny_state_layout(), num_states=4, state_interval=4)
    row = manager.match([1] * 9).row
    manager.finish(manager.match([2]).row)
    manager.extend([row], [8])
    rows = [row, stale] if position else [stale, row]
    with pytest.raises(StaleRow, match=f"row {stale} is not handed out"):
        manager.checkpoint(rows)
    assert manager.num_state_copies == 0
    manager.checkpoint([row])
    assert manager.num_state_copies == 1
    manager.audit()


@pytest.mark.parametrize("stale", [-1, 0, 1, 16, 17, 99])
@pytest.mark.parametrize("layout", [tiny_layout(), tiny_state_layout()], ids=lambda layout: layout.name)
def test_chunk_of_a_row_that_is_not_out_ends_nowhere(layout, stale):
    """Whatever the model keeps."""
    manager = tiny_manager(64, 4, layout=layout)
    manager.finish(manager.match([2]).row)
    with pytest.raises(StaleRow, match=f"row {stale} is not handed out"):
        manager.chunk_end(stale, 7)


def test_checkpoint_that_was_refused_in_a_group_is_still_due_behind_it():
    """A copy for which a cached state would have to go is not made in the group, but by the next call."""
    manager = tiny_manager(64, 4, layout=tiny_state_layout(), num_states=2, state_interval=4)
    for tokens in ([1] * 9, [2] * 9):
        row = manager.match(tokens).row
        manager.extend([row], [4])
        manager.commit([row], [4], [0])
        if tokens[0] == 1:
            manager.finish(row)
    with manager.defer_frees(), pytest.raises(OpenGroup):
        manager.checkpoint([row])
    assert manager.num_state_copies == 0
    manager.checkpoint([row])
    assert manager.num_state_copies == 1
    manager.audit()
