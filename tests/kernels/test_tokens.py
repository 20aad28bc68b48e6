import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from kvstead.kernels import tokens

INT32 = st.integers(-(2**31), 2**31 - 1)


@given(st.integers(0, 200), st.integers(0, 200), st.integers(0, 200), st.integers(0, 140), st.integers(0, 2**31 - 1))
def test_common_prefix_counts_to_the_first_difference(length, longer_a, longer_b, start, seed):
    """Two keys agree up to where they part, wherever the comparison starts and whichever ends first."""
    rng = np.random.default_rng(seed)
    shared = rng.integers(-5, 5, length)
    a = np.concatenate([rng.integers(0, 9, start), shared, np.full(longer_a, 1)]).astype(np.int32)
    b = np.concatenate([shared, np.full(longer_b, 2)]).astype(np.int32)
    assert tokens.common_prefix(a, start, b) == length


@given(st.lists(INT32, max_size=150))
def test_narrow_keeps_ids_that_fit(ids):
    """Every int32 id survives."""
    out = np.empty(len(ids), dtype=np.int32)
    assert tokens.narrow(np.array(ids, dtype=np.int64), out) == -1
    assert out.tolist() == ids


@given(
    st.lists(INT32, max_size=80),
    st.one_of(st.integers(2**31, 2**63 - 1), st.integers(-(2**63), -(2**31) - 1)),
    st.lists(INT32, max_size=5),
)
def test_narrow_names_the_first_id_that_does_not_fit(ids, wide, rest):
    """The index is that of the first id outside int32."""
    row = np.array([*ids, wide, *rest, wide], dtype=np.int64)
    assert tokens.narrow(row, np.empty(row.size, dtype=np.int32)) == len(ids)


def slots_of(pages, page_size):
    return (np.array(pages, dtype=np.int64)[:, None] * page_size + np.arange(page_size)).reshape(-1)


@given(st.permutations(range(1, 9)), st.integers(0, 8), st.integers(1, 5))
def test_hold_pages_marks_whole_pages(order, count, page_size):
    """Free pages of the pool become held, and their ids come back in row order."""
    held = np.zeros(9, dtype=np.uint8)
    out = np.empty(count, dtype=np.int64)
    assert tokens.hold_pages(held, slots_of(order[:count], page_size), page_size, out) == (tokens.FAULT_NONE, 0)
    assert out.tolist() == order[:count]
    assert np.flatnonzero(held).tolist() == sorted(order[:count])


@given(st.permutations(range(1, 9)), st.integers(0, 7), st.integers(1, 5))
def test_hold_pages_undoes_its_marks_on_a_fault(order, num_good, page_size):
    """A foreign, held, repeated or misaligned page is named by its index, and nothing is held that was not before."""
    held = np.zeros(9, dtype=np.uint8)
    good, taken = order[:num_good], order[7]
    held[taken] = 1
    before = held.tolist()
    rows = [(slots_of([*good, page], page_size), tokens.FAULT_FOREIGN) for page in (0, -1, 9)]
    rows += [(slots_of([*good, page], page_size), tokens.FAULT_HELD) for page in (taken, *good)]
    if page_size > 1:
        late = slots_of([*good, taken], page_size)
        late[num_good * page_size :] += 1
        torn = slots_of([*good, taken], page_size)
        torn[-1] += 1
        rows += [(late, tokens.FAULT_OFFSET), (torn, tokens.FAULT_OFFSET)]
    for slots, fault in rows:
        out = np.empty(num_good + 1, dtype=np.int64)
        assert tokens.hold_pages(held, slots, page_size, out) == (fault, num_good)
        assert held.tolist() == before
