"""The request table against a dict of lists."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvstead.errors import AuditError, InvalidSize, RowOverflow, StaleRow
from kvstead.pools import RequestTable

WIDTH = 5
OPERATIONS = st.lists(
    st.tuples(st.sampled_from(["take", "give", "append", "overwrite", "clear"]), st.integers(0, 5), st.integers(0, 7)),
    max_size=60,
)


@given(st.integers(0, 4), OPERATIONS)
def test_rows_are_what_was_written_to_them(num_rows, operations):
    """Live rows are distinct and hold what was appended; free rows are wiped, and generations only grow."""
    table = RequestTable(num_rows, WIDTH)
    model: dict[int, list[int]] = {}
    seen = set()
    for name, pick, number in operations:
        generation = table.generation.copy()
        row = sorted(model)[pick % len(model)] if model else 0
        slots = np.arange(number) + 10 * pick
        if name == "take":
            taken = table.take(number)
            assert (taken is None) == (number > num_rows - len(model))
            for new in [] if taken is None else taken.tolist():
                assert 0 < new <= num_rows
                assert new not in model
                assert (new, table.generation[new]) not in seen
                seen.add((new, int(table.generation[new])))
                model[new] = []
        elif name == "clear":
            table.clear()
            model.clear()
        elif row:
            change(table, model, name, row, slots, pick)
        check(table, model)
        assert (table.generation >= generation).all()


def change(table, model, name, row, slots, start):
    """Apply one operation to a live row."""
    held = model[row]
    if name == "give":
        table.give(row)
        del model[row]
    elif name == "append":
        if len(held) + slots.size > WIDTH:
            with pytest.raises(RowOverflow, match=f"row {row} has {len(held)} slots"):
                table.append(row, slots)
        else:
            table.append(row, slots)
            held += slots.tolist()
    elif start + slots.size > len(held):
        with pytest.raises(RowOverflow):
            table.overwrite(row, start, slots)
    else:
        table.overwrite(row, start, slots)
        held[start : start + slots.size] = slots.tolist()


def check(table, model):
    """Compare rows and counts with the model, and that free rows are stale and empty."""
    table.audit()
    assert table.num_free == table.num_rows - len(model)
    assert table.live_rows().tolist() == sorted(model)
    for row in range(table.num_rows + 2):
        if row in model:
            assert table.read(row).tolist() == model[row]
            assert table.read(row, len(model[row]) // 2).tolist() == model[row][len(model[row]) // 2 :]
            continue
        with pytest.raises(StaleRow):
            table.read(row)
        assert row > table.num_rows or table.lengths[row] == 0


def test_row_is_wiped_when_it_comes_back():
    """No slot of the request before is left in it."""
    table = RequestTable(1, 4)
    row = int(table.take()[0])
    table.append(row, np.array([7, 8, 9]))
    table.give(row)
    assert table.slots[row, :3].tolist() == [-1, -1, -1]


def test_row_and_generation_name_one_request_across_a_clear():
    """A row that is taken again, be it after `clear`, has another generation."""
    table = RequestTable(2, 4)
    pairs = []
    for _ in range(4):
        rows = table.take(2)
        pairs += [(int(row), int(table.generation[row])) for row in rows]
        table.clear()
    assert len(set(pairs)) == 8


@pytest.mark.parametrize("row", [-1, 0, 2, 3, 10**12])
def test_a_row_that_is_not_live_is_refused(row):
    """Every call refuses row 0, free rows and rows that do not exist, and changes nothing."""
    table = RequestTable(2, 4)
    assert table.take().tolist() == [1]
    table.append(1, np.array([4]))
    calls = [
        lambda: table.give(row),
        lambda: table.require_live(row),
        lambda: table.read(row),
        lambda: table.append(row, np.array([1])),
        lambda: table.overwrite(row, 0, np.array([1])),
        lambda: table.opening(np.array([1, row]), 1),
    ]
    for call in calls:
        with pytest.raises(StaleRow, match=f"row {row} is not handed out"):
            call()
    assert (table.read(1).tolist(), table.num_free) == ([4], 1)
    table.audit()


def test_row_0_is_never_handed_out():
    """Rows are 1 and up, lowest first in a new table."""
    assert RequestTable(3, 1).take(3).tolist() == [1, 2, 3]


@pytest.mark.parametrize(("start", "end"), [(-1, 1), (0, 3), (2, 1), (3, 3)])
def test_range_beyond_the_row_is_refused(start, end):
    """Only what was written can be read."""
    table = RequestTable(1, 4)
    table.take()
    table.append(1, np.array([5, 6]))
    with pytest.raises(RowOverflow, match="row 1 holds 2 slots"):
        table.read(1, start, end)


@given(st.lists(st.integers(0, WIDTH), max_size=4), st.integers(1, 4), st.data())
def test_opening_counts_rows_at_a_page_boundary(lengths, page_size, data):
    """A row whose length fills its pages counts; a full row or one named twice is refused."""
    table = RequestTable(4, WIDTH)
    rows = table.take(len(lengths))
    for row, length in zip(rows, lengths, strict=True):
        table.append(row, np.arange(length))
    order = np.array(data.draw(st.permutations(rows.tolist())), dtype=np.int64)
    if WIDTH in lengths:
        with pytest.raises(RowOverflow, match="5 wide"):
            table.opening(order, page_size)
        return
    assert table.opening(order, page_size) == sum(length % page_size == 0 for length in lengths)
    if order.size:
        with pytest.raises(InvalidSize, match="named twice"):
            table.opening(np.append(order, order[0]), page_size)
    table.audit()


@pytest.mark.parametrize(("num_rows", "width"), [(-1, 4), (4, -1)])
def test_negative_sizes_are_refused(num_rows, width):
    """A negative number of rows or width is refused."""
    with pytest.raises(InvalidSize, match="-1"):
        RequestTable(num_rows, width)


def test_a_table_may_have_no_rows_or_no_width():
    """Such a table hands out nothing, or rows that hold nothing."""
    assert RequestTable(0, 4).take() is None
    narrow = RequestTable(1, 0)
    narrow.take()
    with pytest.raises(RowOverflow):
        narrow.append(1, np.array([1]))


def test_audit_reports_slots_in_a_free_row():
    """A length that was not written by the table's methods is reported."""
    table = RequestTable(2, 4)
    table.audit()
    table.lengths[2] = 1
    with pytest.raises(AuditError, match=r"rows \[2\]"):
        table.audit()
