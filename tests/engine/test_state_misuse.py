"""Calls of a manager with states that nobody should make: each is refused, and changes nothing."""

import pytest

from kvstead.errors import StaleRow
from tiny_model import tiny_manager, tiny_state_layout


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
