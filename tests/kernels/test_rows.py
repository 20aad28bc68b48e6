"""Kernels of the request table against plain Python."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvstead.kernels import host, rows

NUM_ROWS = 5
WIDTH = 7
ROW_IDS = st.lists(st.integers(-1, NUM_ROWS + 1), max_size=6)


def int64(values):
    return np.array(values, dtype=np.int64)


def states(live):
    """uint8 row states; row 0 is padding."""
    state = np.zeros(NUM_ROWS + 1, dtype=np.uint8)
    state[live] = host.LIVE
    state[0] = host.PADDING
    return state


LIVE_ROWS = st.sets(st.integers(1, NUM_ROWS)).map(sorted)
LENGTHS = st.lists(st.integers(0, WIDTH), min_size=NUM_ROWS + 1, max_size=NUM_ROWS + 1)


@given(LIVE_ROWS, LENGTHS, ROW_IDS, st.integers(1, 4))
def test_count_opening_names_the_first_bad_row(live, lengths, which, page_size):
    """Rows at a page boundary are counted; the first that is not out, full, foreign or named before is a fault."""
    state = states(live)
    before = state.copy()
    found = rows.count_opening(state, WIDTH, int64(lengths), int64(which), page_size)
    good = [row in live and lengths[row] < WIDTH and row not in which[:i] for i, row in enumerate(which)]
    if all(good):
        assert found == (sum(lengths[row] % page_size == 0 for row in which), -1)
    else:
        assert found == (0, good.index(False))
    assert state.tolist() == before.tolist()


@st.composite
def tables(draw):
    """Rows over a pool of 12 pages: page size, page states, slots, lengths, and the rows that are to grow."""
    page_size = draw(st.integers(1, 4))
    lengths = draw(LENGTHS)
    pages = draw(st.permutations(range(1, 13)))
    slots = np.full((NUM_ROWS + 1, WIDTH), -1, dtype=np.int64)
    state = np.zeros(13, dtype=np.uint8)
    state[0] = host.PADDING
    for row in range(1, NUM_ROWS + 1):
        lengths[row] = min(lengths[row], 2 * page_size, WIDTH - 1)
        for position in range(lengths[row]):
            slots[row, position] = pages[2 * (row - 1) + position // page_size] * page_size + position % page_size
            state[slots[row, position] // page_size] = host.LIVE
    which = draw(st.permutations(range(1, NUM_ROWS + 1)))[: draw(st.integers(0, NUM_ROWS))]
    return page_size, state, slots, int64(lengths), int64(which)


@given(tables())
def test_next_slots_fills_pages_and_counts_new_ones(case):
    """The slot behind a row's last one, or -1 at a page boundary; the states are left as they were."""
    page_size, state, slots, lengths, which = case
    before = state.copy()
    out = np.empty(which.size, dtype=np.int64)
    expected = [-1 if lengths[row] % page_size == 0 else slots[row, lengths[row] - 1] + 1 for row in which]
    verdict = rows.next_slots(state, slots, lengths, which, page_size, out)
    assert verdict == (host.FAULT_NONE, which.size, which.size, expected.count(-1))
    assert out.tolist() == expected
    assert state.tolist() == before.tolist()


@pytest.mark.parametrize(
    ("damage", "fault"),
    [
        ("offset", host.FAULT_OFFSET),
        ("foreign", host.FAULT_FOREIGN),
        ("padding", host.FAULT_FOREIGN),
        ("free", host.FAULT_NOT_LIVE),
        ("shared", host.FAULT_SHARED),
    ],
)
def test_next_slots_undoes_its_claims_on_a_fault(damage, fault):
    """A bad row is named by its index, and no page stays claimed."""
    page_size = 4
    state = np.array([host.PADDING, *[host.LIVE] * 5], dtype=np.uint8)
    slots = np.full((4, WIDTH), -1, dtype=np.int64)
    lengths = int64([0, 2, 4, 2])
    slots[1, :2], slots[2, :4], slots[3, :2] = [4, 5], [8, 9, 10, 11], [20, 21]
    slots[3, 1] = {"offset": 22, "foreign": 25, "padding": 1, "free": 21, "shared": 5}[damage]
    if damage == "free":
        state[5] = host.FREE
    before = state.copy()
    out = np.empty(3, dtype=np.int64)
    verdict = rows.next_slots(state, slots, lengths, int64([1, 2, 3]), page_size, out)
    assert verdict[:2] == (fault, 2)
    assert state.tolist() == before.tolist()


@given(tables(), st.data())
def test_append_slots_writes_one_slot_behind_each_row(case, data):
    """Rows at a page boundary take the new pages in order, tagged; the other rows grow in their last page."""
    page_size, state, slots, lengths, which = case
    out = np.empty(which.size, dtype=np.int64)
    num_pages = rows.next_slots(state, slots, lengths, which, page_size, out)[3]
    pages = data.draw(st.permutations(range(13, 13 + num_pages)))
    tags = np.arange(which.size, dtype=np.int32) + 70
    owner = np.zeros(32, dtype=np.int32)
    expected, left = slots.copy(), list(pages)
    expected_owner = {}
    for row, tag in zip(which.tolist(), tags.tolist(), strict=True):
        length = lengths[row]
        if length % page_size == 0:
            expected_owner[left[0]] = tag
            expected[row, length] = left.pop(0) * page_size
        else:
            expected[row, length] = slots[row, length - 1] + 1
    grown = lengths.copy()
    grown[which] += 1
    rows.append_slots(owner, slots, lengths, which, tags, int64(pages), page_size, out)
    assert slots.tolist() == expected.tolist()
    assert lengths.tolist() == grown.tolist()
    assert out.tolist() == [expected[row, lengths[row] - 1] for row in which]
    assert {page: owner[page] for page in np.flatnonzero(owner).tolist()} == expected_owner


@given(LIVE_ROWS, LENGTHS, LENGTHS, LENGTHS, st.data())
def test_commit_rows_moves_all_rows_or_none(live, allocated, computed, known, data):
    """Computed lengths move within what is allocated and known; a token is noted behind the last known one."""
    known = [max(1, length) for length in known]
    which = data.draw(st.one_of(ROW_IDS, st.permutations(live)))
    ends = [
        data.draw(st.one_of(st.integers(-1, WIDTH + 1), st.just(known[row] if 0 <= row <= NUM_ROWS else 0)))
        for row in which
    ]
    new = [data.draw(st.sampled_from([0, 5, 2**31 - 1, -1, 2**31, -(2**63)])) for _ in which]
    tokens = np.full((NUM_ROWS + 1, WIDTH + 1), -7, dtype=np.int32)
    arrays = states(live), int64(allocated), int64(computed), tokens, int64(known)
    expected = [array.copy() for array in arrays]
    bad = -1
    for i, (row, end, token) in enumerate(zip(which, ends, new, strict=True)):
        is_good = row in live and row not in which[:i] and computed[row] <= end <= min(allocated[row], known[row])
        if not is_good or (end == known[row] and not 0 <= token < 2**31):
            bad = i
            break
    if bad < 0:
        for row, end, token in zip(which, ends, new, strict=True):
            expected[2][row] = end
            if end == known[row]:
                expected[3][row, end] = token
                expected[4][row] += 1
    assert rows.commit_rows(*arrays, int64(which), int64(ends), int64(new)) == bad
    for array, wanted in zip(arrays, expected, strict=True):
        assert array.tolist() == wanted.tolist()


@given(st.permutations(range(1, NUM_ROWS + 1)), st.data())
def test_commit_rows_takes_a_legal_step(which, data):
    """Every row moves to its end, and only those that were computed to their last known token learn the next one."""
    which = which[: data.draw(st.integers(1, NUM_ROWS))]
    known = [data.draw(st.integers(1, WIDTH - 1)) for _ in range(NUM_ROWS + 1)]
    ends = [data.draw(st.one_of(st.just(known[row]), st.integers(0, known[row]))) for row in which]
    tokens = np.full((NUM_ROWS + 1, WIDTH + 1), -7, dtype=np.int32)
    allocated, computed, num_tokens = int64(known), int64([0] * (NUM_ROWS + 1)), int64(known)
    row_states = states(range(1, NUM_ROWS + 1))
    before = row_states.copy()
    new = int64(range(100, 100 + len(which)))
    bad = rows.commit_rows(row_states, allocated, computed, tokens, num_tokens, int64(which), int64(ends), new)
    assert bad == -1
    for row, end, token in zip(which, ends, new.tolist(), strict=True):
        learns = end == known[row]
        assert computed[row] == end
        assert num_tokens[row] == known[row] + learns
        assert tokens[row, known[row]] == (token if learns else -7)
    assert row_states.tolist() == before.tolist()
    assert (tokens != -7).sum() == sum(end == known[row] for row, end in zip(which, ends, strict=True))
