import numpy as np
import pytest
from free_list_model import ORDERS
from hypothesis import given
from hypothesis import strategies as st

from kvstead.errors import FreeGroupError
from kvstead.kernels.host import PARKED
from kvstead.pages import FreeList, Release, free_group


def test_begin_opens_an_empty_list():
    """No group is None; an open one is a new list, and the list is the whole state."""
    group = free_group.begin(None)
    assert group == []
    assert free_group.begin(None) is not group


@pytest.mark.parametrize("num_releases", [0, 2])
def test_a_nested_begin_keeps_what_is_parked(num_releases):
    """A second begin is refused, also while nothing is parked, and the list keeps its releases."""
    pool = FreeList(4)
    pool.take(4)
    group = free_group.begin(None)
    group.extend(Release(pool, pool.leave(np.array([page]), PARKED)) for page in range(1, num_releases + 1))
    kept = list(group)
    with pytest.raises(FreeGroupError, match=f"holds {num_releases} releases.*do not nest"):
        free_group.begin(group)
    assert group == kept
    free_group.end(group)
    assert pool.num_free == num_releases


def test_the_end_of_an_empty_group_changes_nothing():
    """Nothing happens where no group is open, or an empty one."""
    free_group.end(None)
    free_group.end([])


@given(st.sampled_from(ORDERS), st.data())
def test_grouped_frees_leave_the_lists_as_ungrouped_ones_do(order, data):
    """Any calls on two pools, parked together and ended once, leave the lists as if each had taken effect at once."""
    grouped = [FreeList(8, order), FreeList(5, order)]
    at_once = [FreeList(8, order), FreeList(5, order)]
    live = [pool.take(pool.num_pages).tolist() for pool in (*grouped, *at_once)]
    group = free_group.begin(None)
    for _ in range(data.draw(st.integers(0, 6))):
        which = data.draw(st.integers(0, 1))
        pages = data.draw(st.permutations(live[which]))[: data.draw(st.integers(0, 3))]
        live[which] = [page for page in live[which] if page not in pages]
        group.append(Release(grouped[which], grouped[which].leave(np.array(pages, dtype=np.int64), PARKED)))
        at_once[which].leave(np.array(pages, dtype=np.int64))
    assert [pool.num_free for pool in grouped] == [0, 0]
    assert [pool.num_parked for pool in grouped] == [pool.num_free for pool in at_once]
    free_group.end(group)
    for ours, theirs in zip(grouped, at_once, strict=True):
        assert ours.contents().tolist() == theirs.contents().tolist()
        assert ours.table.state.tolist() == theirs.table.state.tolist()
        ours.audit()
