import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvstead.errors import AuditError
from kvstead.kernels.host import FREE, PADDING
from kvstead.pages import FreeList, PageTable


@given(st.integers(1, 20), st.data())
def test_audit_wants_the_padding_at_page_zero(num_pages, data):
    """One padding page in all is not enough: it has to be page 0, for the table's own audit and for the list's."""
    page = data.draw(st.integers(1, num_pages))
    pool = FreeList(num_pages)
    for table in (PageTable(num_pages), pool.table):
        table.state[0], table.state[page] = FREE, PADDING
        with pytest.raises(AuditError, match="page states are"):
            table.audit()
    with pytest.raises(AuditError, match="page states are"):
        pool.audit()
