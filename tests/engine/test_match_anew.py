"""A request whose cached state cannot be kept beside a state of its own waits, or begins anew if it is alone."""

import pytest
from fake_memory import EMPTY, IdMemory

from kvstead.engine import KVCacheManager
from kvstead.engine.row_states import ONE_STATE
from kvstead.pages.amounts import STATE
from tiny_model import tiny_manager, tiny_state_layout

PREFIX = [1] * 8


def open_computed(manager, tokens):
    """A row for tokens, all but the last of which are computed."""
    row = manager.match(tokens).row
    manager.extend([row], [len(tokens) - 1])
    manager.commit([row], [len(tokens) - 1], [0])
    return row


def static(num_running):
    """As many states as rows that run, and one."""
    return tiny_manager(64, 4, layout=tiny_state_layout(), num_states=1 + num_running)


def unified(num_running):
    """Bytes for as many short rows, a cached prefix with its state, and less than another state."""
    layout = tiny_state_layout(state_rows=40)
    num_bytes = layout.state_bytes * (2 + num_running) + 64 * (2 + num_running) + layout.state_bytes // 2
    options = {"pool_layout": "unified", "page_size": 4, "max_requests": 16, "max_length": 64, "storage": False}
    return KVCacheManager(layout, num_bytes, **options)


@pytest.mark.parametrize("num_running", [0, 1, 3])
@pytest.mark.parametrize("make", [static, unified])
def test_lone_match_begins_anew_where_the_state_to_copy_is_the_only_one_that_could_go(make, num_running):
    """It gets the slot of the cached state, as an empty one; beside others it waits, and what is cached stays."""
    manager = make(num_running)
    memory = IdMemory(manager)
    manager.finish(open_computed(manager, [*PREFIX, 2]))
    running = [open_computed(manager, [5 + at, 5, 5]) for at in range(num_running)]
    seen = manager.peek([*PREFIX, 3])
    assert seen.num_cached == len(PREFIX)
    assert not manager.capacity.has(ONE_STATE, seen.evictable)
    lease = manager.match([*PREFIX, 3])
    if num_running:
        assert lease is None
        assert manager.tree.num_states == 1
        manager.abort(running.pop())
        lease = manager.match([*PREFIX, 3])
        assert lease.num_cached == len(PREFIX)
    else:
        assert (lease.num_cached, lease.num_dead) == (0, len(PREFIX))
        assert memory.read(STATE, memory.state_places([lease.row])) == [EMPTY]
        assert manager.tree.num_states == 0
    manager.audit()
    for row in (lease.row, *running):
        manager.abort(row)
    assert manager.flush()
    manager.audit()
