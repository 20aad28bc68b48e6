import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from kvstead.kernels import device_ops, device_rows

LENGTH = st.integers(0, 40)
ROWS = st.lists(st.tuples(LENGTH, LENGTH).map(sorted), max_size=6)


def plan(prefix, seq, page_size, num_free=10**6):
    out = np.empty((device_rows.ROW_COLUMNS, len(seq)), dtype=np.int64)
    lengths = np.array(prefix, dtype=np.int64), np.array(seq, dtype=np.int64)
    return device_rows.plan_rows(*lengths, page_size, num_free, out), out


@given(ROWS, st.integers(1, 9))
def test_a_plan_says_where_every_new_slot_lies(rows, page_size):
    """Row, position, and for positions in new pages which of these it is, come out of the five figures of a row."""
    prefix, seq = [row[0] for row in rows], [row[1] for row in rows]
    (bad, num_slots, num_pages), (ends, starts, to_position, to_page, opens_at) = plan(prefix, seq, page_size)
    assert bad == -1
    index, opened = 0, 0
    for row, (begin, end) in enumerate(rows):
        assert starts[row] == index
        for position in range(begin, end):
            assert np.searchsorted(ends, index, side="right") == row
            assert index + to_position[row] == position
            opened += position % page_size == 0
            is_new = position // page_size * page_size >= begin
            assert (index >= opens_at[row]) == is_new
            if is_new:
                assert position // page_size + to_page[row] == opened - 1
            index += 1
    assert (index, opened) == (num_slots, num_pages)


def test_a_plan_names_the_first_bad_row():
    """The first row of a negative length, or that shrinks, is named; later ones do not matter."""
    assert plan([0, -1, -2], [3, 2, 2], 4)[0] == (1, 0, 0)
    assert plan([0, 5, -1], [3, 4, 2], 4)[0] == (1, 0, 0)


def test_pages_are_counted_up_to_one_too_many():
    """No sum of lengths overflows to a number that fits."""
    top = 2**63 - 1
    for seq in ([2**62] * 4, [top] * 3, [5, top, 0]):
        assert plan([0] * len(seq), seq, 1, num_free=7)[0][2] == 8
    assert plan([0, 0], [4, 3], 1, num_free=7)[0][2] == 7


@given(st.lists(st.integers(1, 40), max_size=8), st.integers(1, 9))
def test_rows_open_a_page_where_their_new_token_begins_one(seq, page_size):
    """The rows whose last token lies at offset 0, in order."""
    out = np.empty(len(seq), dtype=np.int64)
    bad, count = device_rows.plan_decode(np.array(seq, dtype=np.int64), page_size, out)
    assert bad == -1
    assert out[:count].tolist() == [row for row, length in enumerate(seq) if (length - 1) % page_size == 0]
    if seq:
        shorter = np.array([*seq, 0], dtype=np.int64)
        assert device_rows.plan_decode(shorter, page_size, np.empty(len(seq) + 1, np.int64)) == (len(seq), 0)


@given(st.lists(st.integers(-9, 90), max_size=40), st.integers(1, 5), st.sampled_from([torch.int32, torch.int64]))
def test_pages_stand_in_the_order_first_seen(slots, page_size, dtype):
    """Each page once, where its first slot stands; an id outside the pool stays; the marks are clean again."""
    marks = torch.full((22,), device_ops.FAR, dtype=torch.int32)
    pages, count = device_ops.first_seen(torch.tensor(slots, dtype=dtype), page_size, marks)
    expected = []
    for page in (slot // page_size for slot in slots):
        if page not in expected or not 0 <= page <= 20:
            expected.append(page)
    assert pages[: count.sum()].tolist() == expected
    assert bool((marks == device_ops.FAR).all())
