"""What the scenarios of reported faults have in common: prompts, rows that are computed, and runs to the end."""

import numpy as np
import pytest

from kvstead.pages.amounts import Amounts

PAGE, WINDOW_PAGE = Amounts(full=1), Amounts(window=1)


def prompt_of(length, first=0):
    """Tokens that share no prefix with those of another `first`."""
    return np.concatenate([[first], np.arange(length - 1) % 5]).astype(np.int64)


def open_row(manager, tokens, num_computed=None):
    """A row with the leading tokens computed (all of them if not given); the token behind the last is 1."""
    lease = manager.match(tokens)
    end = len(tokens) if num_computed is None else num_computed
    assert manager.extend([lease.row], [end]) is not None
    manager.commit([lease.row], [end], [1])
    return lease.row


def compute(manager, row, end):
    """Go on with a prompt up to `end` tokens, as a chunk that is planned and then processed."""
    assert manager.extend([row], [end]) is not None
    manager.commit([row], [end], [1])


def decode(manager, row):
    """One more token, as a step that is planned and then processed."""
    assert manager.decode([row]) is not None
    manager.commit([row], [int(manager.table.lengths[row])], [1])


def run(scheduler, runner, most=500):
    """Step until nothing is left to do; returns the number of steps."""
    for step in range(most):
        if scheduler.is_idle:
            return step
        scheduler.step(runner)
        scheduler.manager.audit()
        runner.poison_free_slots()
    return pytest.fail("the scheduler does not come to an end")


def peeked(manager, tokens, **keywords):
    """What a look sees: cached tokens, and the pages of each side that could be had beside them."""
    seen = manager.peek(tokens, **keywords)
    return (
        seen.num_cached,
        manager.capacity.most(PAGE, seen.evictable),
        manager.capacity.most(WINDOW_PAGE, seen.evictable),
    )
