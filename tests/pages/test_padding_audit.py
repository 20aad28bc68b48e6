import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvstead.errors import AuditError
from kvstead.kernels.host import FREE, PADDING
from kvstead.pages import FreeList, PageTable


@given(st.integers(1, 20), st.data())
def test_padding_that_moved_is_found_though_the_counts_are_right(num_pages, data):
    """One padding page in all is not enough: it is page 0, or the table's own audit and the list's speak up."""
    page = data.draw(st.integers(1, num_pages))
    pool = FreeList(num_pages)
    for table in (PageTable(num_pages), pool.table):
        table.state[0], table.state[page] = FREE, PADDING
        with pytest.raises(AuditError, match="page states are"):
            table.audit()
    with pytest.raises(AuditError, match="page states are"):
        pool.audit()
