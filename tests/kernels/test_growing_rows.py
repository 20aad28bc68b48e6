"""Kernels of rows that grow against their torch twins, and against rows that grow token by token."""

import numpy as np
import pytest
import torch
import torch_twins
from hypothesis import given
from hypothesis import strategies as st
from twin_answers import ANY_NUMBER, answer, ints, states

from kvstead.kernels import growing_rows
from kvstead.kernels.host import (
    FAULT_FOREIGN,
    FAULT_LENGTHS,
    FAULT_NONE,
    FAULT_NOT_LIVE,
    FAULT_OFFSET,
    FAULT_SHARED,
    FREE,
    LIVE,
    PADDING,
    PARKED,
)


@st.composite
def sound_rows(draw, page_size, growth):
    """Rows that hold pages of their own: the pages' states, then prefix, length and last slot of each row."""
    num_rows = draw(st.integers(1, 6))
    last_pages = draw(st.permutations(range(1, 9)))
    state = np.array([PADDING, *[FREE] * 8], dtype=np.uint8)
    rows = []
    for page in last_pages[:num_rows]:
        prefix = draw(st.integers(0, 3 * page_size))
        state[page] = LIVE
        last = page * page_size + (prefix - 1) % page_size if prefix else -1
        rows.append((prefix, prefix + draw(growth), last))
    return state, *(ints(column) for column in zip(*rows, strict=True))


def token_by_token(prefix_lens, seq_lens, last_locs, page_size, new_pages):
    """The new slots: the next one of the page, or the first one of the next new page."""
    pages = iter(new_pages)
    slots = []
    for prefix, seq, last in zip(prefix_lens.tolist(), seq_lens.tolist(), last_locs.tolist(), strict=True):
        slot = last
        for position in range(prefix, seq):
            slot = next(pages) * page_size if position % page_size == 0 else slot + 1
            slots.append(slot)
    assert next(pages, None) is None
    return slots


@given(st.data(), st.integers(1, 5))
def test_sound_rows_grow(data, page_size):
    """Rows in live pages of their own fill those to any point, or past their end in new pages, without a fault."""
    state, prefix, seq, last = data.draw(sound_rows(page_size, st.integers(0, 2 * page_size + 1)))
    (fault, row, num_slots, num_pages), _ = answer("extend_demand", state, prefix, seq, last, page_size)
    assert (fault, row) == (FAULT_NONE, seq.size)
    new_pages = data.draw(st.permutations(range(20, 20 + num_pages)))
    expected = token_by_token(prefix, seq, last, page_size, new_pages)
    assert num_slots == len(expected)
    out = np.empty(num_slots, dtype=np.int64)
    _, arrays = answer("extend_slots", prefix, seq, last, page_size, ints(new_pages), out)
    assert arrays[-1].tolist() == expected


@given(st.data(), st.integers(1, 5))
def test_sound_rows_grow_by_one(data, page_size):
    """The same holds for one token a row: first the slots inside pages, then the new pages."""
    state, prefix, seq, last = data.draw(sound_rows(page_size, st.just(1)))
    out = np.empty(seq.size, dtype=np.int64)
    (fault, row, num_slots, num_pages), arrays = answer("decode_slots", state, seq, last, page_size, out)
    assert (fault, row, num_slots) == (FAULT_NONE, seq.size, seq.size)
    new_pages = data.draw(st.permutations(range(20, 20 + num_pages)))
    _, arrays = answer("open_pages", ints(new_pages), page_size, arrays[-1])
    assert arrays[-1].tolist() == token_by_token(prefix, seq, last, page_size, new_pages)


@given(st.data(), st.integers(1, 5))
def test_one_bad_row_undoes_the_claims_of_all_before_it(data, page_size):
    """A row whose last page is free, or a row's before it, is named, and no page of the others stays claimed."""
    state, prefix, seq, last = data.draw(sound_rows(page_size, st.integers(1, page_size)))
    inside = np.flatnonzero(prefix % page_size)
    if inside.size == 0:
        return
    bad = int(data.draw(st.sampled_from(inside.tolist())))
    before = [row for row in inside.tolist() if row < bad]
    page = last[data.draw(st.sampled_from(before))] // page_size if before else int(np.flatnonzero(state == FREE)[0])
    last[bad] = page * page_size + (prefix[bad] - 1) % page_size
    left = state.copy()
    fault, row, _, _ = growing_rows.extend_demand(left, prefix, seq, last, page_size)
    assert (fault, row) == (FAULT_SHARED if before else FAULT_NOT_LIVE, bad)
    assert left.tolist() == state.tolist()
    twin = torch_twins.extend_demand(*(torch.from_numpy(rows) for rows in (left, prefix, seq, last)), page_size)
    assert twin[:2] == (fault, row)
    assert left.tolist() == state.tolist()


@st.composite
def batches(draw, num_states, page_size, growth):
    """Rows that are to grow: (prefix, seq, last slot); most slots fit the length."""
    rows = []
    for _ in range(draw(st.integers(0, 6))):
        prefix = draw(st.integers(0, 3 * page_size))
        seq = prefix + draw(st.integers(0, growth) if growth > 1 else st.just(1))
        page = draw(st.integers(0 if draw(st.booleans()) else 1, num_states))
        last = page * page_size + (prefix - 1) % page_size if prefix else -1
        rows.append([prefix, seq, last])
    if rows and draw(st.integers(0, 3)) == 0:
        draw(st.sampled_from(rows))[draw(st.integers(0, 2))] = draw(ANY_NUMBER)
    return [ints([row[column] for row in rows]) for column in range(3)]


def slots_by_token(prefix_lens, seq_lens, last_locs, page_size, pages):
    """What a row grows by, token by token; and which row each new page went to."""
    pages = list(pages)
    slots, opened_by = [], []
    for row, (prefix, seq, last) in enumerate(zip(prefix_lens, seq_lens, last_locs, strict=True)):
        slot = int(last)
        for position in range(prefix, seq):
            if position % page_size == 0:
                slot = int(pages.pop(0)) * page_size
                opened_by.append(row)
            else:
                slot += 1
            slots.append(slot)
    return slots, opened_by


@given(st.data(), st.integers(1, 5))
def test_a_batch_grows_as_if_token_by_token(data, page_size):
    """A batch is counted, given its slots and tagged as if every row had grown by itself, token by token."""
    state = data.draw(states())
    prefix, seq, last = data.draw(batches(state.size, page_size, 3 * page_size))
    (fault, _, num_slots, num_pages), arrays = answer("extend_demand", state, prefix, seq, last, page_size)
    assert arrays[0].tolist() == state.tolist()
    if fault != FAULT_NONE or num_pages >= state.size:
        return
    pages = ints(data.draw(st.permutations(range(100, 100 + num_pages))))
    expected, opened_by = slots_by_token(prefix, seq, last, page_size, pages)
    out = np.empty(num_slots, dtype=np.int64)
    assert answer("extend_slots", prefix, seq, last, page_size, pages, out)[1][-1].tolist() == expected
    assert len(opened_by) == num_pages
    tags = np.arange(seq.size, dtype=np.int32) * 3 - 1
    owner = np.zeros(100 + num_pages, dtype=np.int32)
    owner_after = answer("tag_rows", owner, prefix, seq, page_size, pages, tags)[1][0]
    assert owner_after[pages].tolist() == [row * 3 - 1 for row in opened_by]
    assert not owner_after[:100].any()


@given(st.data(), st.integers(1, 5))
def test_decode_is_extend_by_one(data, page_size):
    """Decoding finds the fault, the slots and the pages that extending each row by one token finds."""
    state = data.draw(states())
    _, seq, last = data.draw(batches(state.size, page_size, 1))
    out = np.empty(seq.size, dtype=np.int64)
    verdict, arrays = answer("decode_slots", state, seq, last, page_size, out)
    with np.errstate(over="ignore"):
        as_extend = growing_rows.extend_demand(state.copy(), seq - 1, seq, last, page_size)
    assert arrays[0].tolist() == state.tolist()
    assert verdict[:2] == as_extend[:2]
    if verdict[0] != FAULT_NONE:
        return
    assert verdict == as_extend
    pages = ints(data.draw(st.permutations(range(100, 100 + verdict[3]))))
    slots = answer("open_pages", pages, page_size, arrays[-1])[1][-1]
    assert slots.tolist() == slots_by_token(seq - 1, seq, last, page_size, pages)[0]


# Page size 4: page 1 free, 2 and 3 live, 4 parked.
STATE = np.array([PADDING, FREE, LIVE, LIVE, PARKED], dtype=np.uint8)
FAULTS = {
    "shrinks": (FAULT_LENGTHS, (5, 4, 8)),
    "negative": (FAULT_LENGTHS, (-1, 1, -1)),
    "offset does not follow": (FAULT_OFFSET, (5, 6, 9)),
    "empty row behind a slot": (FAULT_OFFSET, (0, 1, 8)),
    "padding": (FAULT_FOREIGN, (1, 2, 0)),
    "negative slot": (FAULT_FOREIGN, (1, 2, -4)),
    "past the end": (FAULT_FOREIGN, (1, 2, 20)),
    "last slot there is": (FAULT_FOREIGN, (3, 4, 2**63 - 2)),
    "free page": (FAULT_NOT_LIVE, (1, 2, 4)),
    "parked page": (FAULT_NOT_LIVE, (1, 2, 16)),
    "page of another row": (FAULT_SHARED, (2, 3, 9)),
}


@pytest.mark.parametrize(("fault", "row"), FAULTS.values(), ids=FAULTS)
def test_each_fault_of_a_growing_row_has_its_number(fault, row):
    """Each fault is told by its own number, with the index of the row, and every claim is undone."""
    rows = [ints(column) for column in zip((1, 2, 8), (0, 1, -1), row, (1, 2, 12), strict=True)]
    verdict, arrays = answer("extend_demand", STATE, *rows, 4)
    assert verdict[:2] == (fault, 2)
    assert arrays[0].tolist() == STATE.tolist()
    if row[1] != row[0] + 1:
        return
    verdict, arrays = answer("decode_slots", STATE, *rows[1:], 4, np.empty(4, dtype=np.int64))
    assert verdict[:2] == (fault, 2)
    assert arrays[0].tolist() == STATE.tolist()


@pytest.mark.parametrize("page_size", [1, 2, 3, 4, 16])
@pytest.mark.parametrize("seq", [2**62, 2**63 - 1])
def test_demand_does_not_overflow(seq, page_size):
    """Rows too long for any pool ask for more pages than there are, also when their sum leaves 64 bits."""
    for num_rows in range(1, 9):
        rows = [ints([value] * num_rows) for value in (0, seq, -1)]
        (fault, _, _, num_pages), _ = answer("extend_demand", STATE, *rows, page_size)
        assert fault == FAULT_NONE
        assert num_pages >= STATE.size


def test_decode_refuses_the_lowest_length():
    """The lowest int64, of which one cannot be subtracted, is refused as a length."""
    out = np.empty(1, dtype=np.int64)
    verdict, _ = answer("decode_slots", STATE, ints([-(2**63)]), ints([-1]), 1, out)
    assert verdict[:2] == (FAULT_LENGTHS, 0)
