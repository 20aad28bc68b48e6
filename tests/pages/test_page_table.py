from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvstead.errors import AuditError, DoubleFree, ForeignPage, InvalidSize
from kvstead.kernels.host import FREE, LIVE, PADDING, PARKED
from kvstead.pages import FreeList, PageTable
from kvstead.pages.page_table import require_tag


@given(st.integers(0, 20))
def test_a_new_table_is_free_but_for_the_padding(num_pages):
    """Page 0 is padding from the start; all others are free and counted."""
    table = PageTable(num_pages)
    assert table.state.tolist() == [PADDING] + [FREE] * num_pages
    assert (table.num_free, table.num_live, table.num_parked) == (num_pages, 0, 0)
    assert table.owners() == {}
    table.audit()


@given(st.lists(st.tuples(st.sampled_from([FREE, LIVE, PARKED]), st.integers(-3, 3)), max_size=20))
def test_owners_count_live_pages_only(pages):
    """Free and parked pages keep their tag, but no owner is charged for them."""
    table = PageTable(len(pages))
    table.state[1:] = [state for state, _ in pages]
    table.owner[1:] = [tag for _, tag in pages]
    assert table.owners() == Counter(tag for state, tag in pages if state == LIVE)


@given(st.lists(st.sampled_from([FREE, LIVE, PARKED]), max_size=20), st.integers(0, 2), st.sampled_from([-1, 1]))
def test_audit_recounts(states, which, drift):
    """With true counts the audit is silent; with any of them off by one it names the counts."""
    table = PageTable(len(states))
    table.state[1:] = states
    names = ("num_free", "num_live", "num_parked")
    for name, state in zip(names, (FREE, LIVE, PARKED), strict=True):
        setattr(table, name, states.count(state))
    table.audit()
    setattr(table, names[which], getattr(table, names[which]) + drift)
    with pytest.raises(AuditError, match="the counts say"):
        table.audit()


@pytest.mark.parametrize(
    ("page", "error", "words"),
    [
        (0, ForeignPage, r"page 0 is the padding page .*1\.\.4.*leave padded positions out"),
        (-1, ForeignPage, r"page -1 is no page of this pool"),
        (5, ForeignPage, r"page 5 is no page of this pool"),
        (2**62, ForeignPage, r"is no page of this pool"),
        (1, DoubleFree, r"page 1 \(last owner 7\) is named twice in this call"),
        (2, DoubleFree, r"page 2 \(last owner 7\) is parked in the open group already"),
        (3, DoubleFree, r"page 3 \(last owner 7\) is free already.*Free each page once"),
        (4, DoubleFree, r"page 4 \(last owner 0\) is free already"),
    ],
)
def test_a_refusal_says_what_the_page_is_and_who_held_it(page, error, words):
    """Padding and ids outside are foreign; free, parked and repeated pages are double frees with their last owner."""
    free = FreeList(4)
    free.take(3, owner=7)
    free.park(np.array([2]))
    free.give(np.array([3]))
    with pytest.raises(error, match=words):
        free.table.refuse(page)


def test_clear_forgets_who_was_live():
    """After a clear nothing is live or parked, and the audit agrees."""
    free = FreeList(4)
    free.park(free.take(2))
    free.take(1)
    free.table.clear()
    assert free.table.state.tolist() == [PADDING] + [FREE] * 4
    free.table.audit()


@given(st.integers(-(2**40), 2**40))
def test_a_tag_fits_32_bits(tag):
    """Exactly the int32 numbers are tags."""
    if np.iinfo(np.int32).min <= tag <= np.iinfo(np.int32).max:
        require_tag(tag)
    else:
        with pytest.raises(InvalidSize, match=f"owner tag {tag} "):
            require_tag(tag)


@pytest.mark.parametrize("tag", [2**31, -(2**31) - 1])
def test_the_tags_at_the_edge(tag):
    """The first number past the end is refused, the last one before it is not."""
    require_tag(tag - 1 if tag > 0 else tag + 1)
    with pytest.raises(InvalidSize, match="does not fit 32 bits"):
        require_tag(tag)
