"""Copies of states that earn their place, by what the traffic makes of each kind."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from kvstead.engine.copy_record import CopyKind, CopyRecord
from kvstead.prefix import Node

END_OR_INTERVAL = {CopyKind.PROMPT, CopyKind.INTERVAL}


def record_of(made, used):
    """A record with so many copies made and used of each kind."""
    record = CopyRecord()
    record.num_made[:], record.num_used[:] = made, used
    return record


COUNTS = st.lists(st.integers(0, 4000), min_size=4, max_size=4)


@given(made=COUNTS, used=COUNTS, has_grid=st.booleans())
def test_what_is_used_is_made_and_what_is_not_is_not(made, used, has_grid):
    """One use in 1,024 copies suffices, 32 are free; of a prompt's end and its interval the more used one is made."""
    record = record_of(made, used)
    worth = {kind for kind in CopyKind if record.is_worth(kind, has_grid=has_grid)}
    earned = {kind for kind in CopyKind if made[kind] < 32 + 1024 * used[kind]}
    assert worth - END_OR_INTERVAL == earned - END_OR_INTERVAL
    if not has_grid:
        assert worth >= END_OR_INTERVAL
        return
    (best,), (other,) = worth & END_OR_INTERVAL, END_OR_INTERVAL - worth
    rate = {kind: (used[kind] + 1) / (made[kind] + 1) for kind in END_OR_INTERVAL}
    assert rate[best] >= rate[other]


def a_node():
    """Where a copy may stand."""
    return Node(None, b"", np.empty(0, np.int32), np.empty(0, np.int64), 0, 0)


def test_use_is_counted_for_the_kind_of_the_latest_copy_there():
    """A node whose end got another copy stands for that one."""
    record, node = CopyRecord(), a_node()
    record.make(node, CopyKind.ANSWER)
    record.use(node)
    record.make(node, CopyKind.BRANCH)
    record.use(node)
    record.use(node)
    assert record.num_made.tolist() == [1, 0, 0, 1]
    assert record.num_used.tolist() == [2, 0, 0, 1]


def test_old_copies_count_less():
    """What was unused for long is made again soon after the traffic has changed: a count never grows without end."""
    record, node = CopyRecord(), a_node()
    for _ in range(10_000):
        record.make(node, CopyKind.ANSWER)
    assert 2048 <= record.num_made[CopyKind.ANSWER] < 4096
    for _ in range(4):
        record.use(node)
    assert record.is_worth(CopyKind.ANSWER, has_grid=False)


def test_one_request_in_sixteen_tries_all_kinds():
    """A probe comes at a fixed pace."""
    record = CopyRecord()
    assert [number for number in range(1, 49) if record.begins_probe()] == [16, 32, 48]
