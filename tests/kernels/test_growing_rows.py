import numpy as np
import torch
import torch_twins
from hypothesis import given
from hypothesis import strategies as st

from kvstead.kernels import host
from kvstead.kernels.host import FAULT_NONE, FREE, LIVE, PADDING


def ints(values):
    return np.array(values, dtype=np.int64)


def both(name, *args):
    """The kernel's answer and its last array, once the twin has said and left the same."""
    arrays = [arg.copy() if isinstance(arg, np.ndarray) else arg for arg in args]
    tensors = [torch.from_numpy(arg.copy()) if isinstance(arg, np.ndarray) else arg for arg in args]
    result = getattr(host, name)(*arrays)
    assert getattr(torch_twins, name)(*tensors) == result
    left = [array.tolist() for array in arrays if isinstance(array, np.ndarray)]
    assert [tensor.tolist() for tensor in tensors if isinstance(tensor, torch.Tensor)] == left
    return result, left[-1]


@st.composite
def growing_rows(draw, page_size, growth):
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
def test_rows_that_may_grow_do(data, page_size):
    """Rows in live pages of their own fill those to any point, or past their end in new pages, without a fault."""
    state, prefix, seq, last = data.draw(growing_rows(page_size, st.integers(0, 2 * page_size + 1)))
    (fault, row, num_slots, num_pages), _ = both("extend_demand", state, prefix, seq, last, page_size)
    assert (fault, row) == (FAULT_NONE, seq.size)
    new_pages = data.draw(st.permutations(range(20, 20 + num_pages)))
    expected = token_by_token(prefix, seq, last, page_size, new_pages)
    assert num_slots == len(expected)
    out = np.empty(num_slots, dtype=np.int64)
    assert both("extend_slots", prefix, seq, last, page_size, ints(new_pages), out)[1] == expected


@given(st.data(), st.integers(1, 5))
def test_rows_that_may_grow_by_one_do(data, page_size):
    """The same for one token a row: first the slots inside pages, then the new pages."""
    state, prefix, seq, last = data.draw(growing_rows(page_size, st.just(1)))
    (fault, row, num_slots, num_pages), slots = both(
        "decode_slots", state, seq, last, page_size, np.empty(seq.size, dtype=np.int64)
    )
    assert (fault, row, num_slots) == (FAULT_NONE, seq.size, seq.size)
    new_pages = data.draw(st.permutations(range(20, 20 + num_pages)))
    slots = both("open_pages", ints(new_pages), page_size, ints(slots))[1]
    assert slots == token_by_token(prefix, seq, last, page_size, new_pages)


@given(st.data(), st.integers(1, 5))
def test_one_bad_row_undoes_the_claims_of_all_before_it(data, page_size):
    """A row whose last page is free, or a row's before it, is named, and no page of the others stays claimed."""
    state, prefix, seq, last = data.draw(growing_rows(page_size, st.integers(1, page_size)))
    inside = np.flatnonzero(prefix % page_size)
    if inside.size == 0:
        return
    bad = int(data.draw(st.sampled_from(inside.tolist())))
    before = [row for row in inside.tolist() if row < bad]
    page = last[data.draw(st.sampled_from(before))] // page_size if before else int(np.flatnonzero(state == FREE)[0])
    last[bad] = page * page_size + (prefix[bad] - 1) % page_size
    left = state.copy()
    fault, row, _, _ = host.extend_demand(left, prefix, seq, last, page_size)
    assert (fault, row) == (host.FAULT_SHARED if before else host.FAULT_NOT_LIVE, bad)
    assert left.tolist() == state.tolist()
    twin = torch_twins.extend_demand(*(torch.from_numpy(rows) for rows in (left, prefix, seq, last)), page_size)
    assert twin[:2] == (fault, row)
    assert left.tolist() == state.tolist()
