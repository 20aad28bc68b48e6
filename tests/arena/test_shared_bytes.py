"""Pools that share bytes by count: pages fit if they cost no more than is left, and every byte is accounted for."""

import numpy as np
import pytest
from chain_pair import ints

from kvstead.arena import SharedBytes, SharedPool
from kvstead.errors import AuditError, DoubleFree, ForeignPage, InvalidSize, LayoutError
from kvstead.kernels.host import PARKED
from kvstead.pages import FreeList


def shared(total=100, sink=10):
    pools = [SharedPool("full", 3, 4, 2), SharedPool("window", 5, 5, 2), SharedPool("state", 20, 24, 1)]
    return SharedBytes(total, pools, sink_bytes=sink)


def test_pages_cost_what_their_pool_says():
    """90 bytes above the sink: pages of 4, 5 and 24 bytes are counted against them, not the own bytes of the pages."""
    chain = shared()
    assert [chain.num_ids(name) for name in chain.pools] == [22, 18, 3]
    assert chain.take("state", ints([1, 2])).tolist() == [1, 2]
    assert chain.take("full", ints(range(1, 6))).size == 5
    assert chain.capacity(("full", "window")) == 22 // 9
    assert chain.capacity(("full",)) == 5
    assert chain.capacity(()) == 0
    assert chain.take("window", ints(range(1, 6))) is None
    assert chain.take("window", ints(range(1, 5))).size == 4
    assert chain.by_state() == (
        {"full": (15, 0), "window": (20, 0), "state": (40, 0)},
        2,
        10,
        5 * 1 + 2 * 4,
    )
    assert chain.by_state().total == 100
    assert [chain.num_used(name) for name in chain.pools] == [5, 4, 2]
    chain.audit()


def test_parked_pages_are_counted_until_they_are_free():
    """Pages that wait in a group are used and take their cost until they are unparked."""
    chain = shared()
    states = FreeList(chain.num_ids("state"), "lifo", chain.places("state"))
    full = FreeList(chain.num_ids("full"), "lifo", chain.places("full"))
    states.take(3)
    parked = states.leave(ints([1, 2]), PARKED)
    assert chain.by_state().pools["state"] == (60, 0)
    assert chain.num_used("state") == 3
    assert not chain.fits({"state": 1})
    assert (states.capacity(), full.capacity()) == (0, 4)
    assert full.take(5) is None
    assert full.num_free == 22
    states.unpark([parked])
    assert chain.by_state().pools["state"] == (20, 0)
    assert chain.fits({"state": 2})
    assert (states.capacity(), full.capacity()) == (2, 16)
    states.leave(ints([3]))
    assert chain.capacity(["state"]) == states.capacity() == 3
    states.audit()
    chain.audit()


def test_counted_pages_lie_at_their_ids():
    """Slots of live pages stay as they are, those of parked and free ones go to 0; a clear frees one pool alone."""
    chain = shared()
    states = FreeList(chain.num_ids("state"), "lifo", chain.places("state"))
    chain.take("full", ints([1]))
    states.take(3)
    states.leave(ints([1]), PARKED)
    states.leave(ints([2]))
    assert states.translate(ints([-1, 0, 4, 7, 8, 9, 14]), 4).tolist() == [0, 0, 0, 0, 0, 0, 14]
    with pytest.raises(ForeignPage, match="slot 16 "):
        states.translate(ints([14, 16]), 4)
    states.audit()
    states.clear()
    assert [chain.num_used(name) for name in chain.pools] == [1, 0, 0]
    assert states.take(3).tolist() == [1, 2, 3]
    states.audit()


def test_audit_compares_ids_with_counts():
    """A page counted past the free list of its pool is found, and the pool is named."""
    chain = shared()
    states = FreeList(chain.num_ids("state"), "lifo", chain.places("state"))
    states.take(2)
    states.leave(ints([2]), PARKED)
    states.audit()
    chain.take("state", ints([3]))
    with pytest.raises(AuditError, match=r"pool 'state': 2 ids are in use and 3 pages are counted"):
        states.audit()


def test_counted_pages_never_move():
    """There are no holes to close, no bytes and no places; one pool or all can be cleared."""
    chain = shared()
    chain.take("full", ints([1, 2]))
    chain.take("state", ints([1]))
    chain.release("full", ints([1]))
    chain.order()
    assert chain.compact() == chain.compact(0) == chain.bytes_moved == chain.num_moves == 0
    assert chain.page_map("full") is None
    assert (chain.page_size("full"), chain.page_size("state")) == (2, 1)
    assert chain.device.type == "cpu"
    chain.clear("state")
    assert [chain.num_used(name) for name in chain.pools] == [1, 0, 0]
    chain.clear()
    assert chain.by_state().gap == 90


@pytest.mark.parametrize("seed", range(20))
def test_answers_are_sums(seed):
    """`fits`, also without some pages, `holds` and `shortfall` are what adding up costs says, for any counts."""
    rng = np.random.default_rng(seed)
    costs = {"full": 4, "window": 5, "state": 24}
    for _ in range(20):
        chain = shared(int(rng.integers(34, 120)))
        for name in costs:
            chain.take(name, np.arange(int(rng.integers(0, chain.capacity((name,)) + 1))) + 1)
        used = {name: chain.num_used(name) for name in costs}
        without = {name: int(rng.integers(0, used[name] + 1)) for name in costs}
        demand = {name: int(rng.integers(0, 9)) for name in rng.permutation([*costs])}
        wanted = sum(costs[name] * count for name, count in demand.items())
        budget = chain.by_state().total - 10
        left = budget - sum(costs[name] * count for name, count in used.items())
        assert chain.fits(demand) == (wanted <= left)
        back = sum(costs[name] * count for name, count in without.items())
        assert chain.fits(demand, without=without) == (wanted <= left + back)
        assert chain.holds(demand) == (wanted <= budget)
        assert chain.shortfall(demand) == max(0, wanted - left)


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda chain: chain.release("full", ints([1, 2])), DoubleFree, "2 pages of pool 'full' .* 1 are used"),
        (lambda chain: chain.release("state", ints([1])), DoubleFree, "1 pages of pool 'state' .* 0 are used"),
        (lambda chain: chain.fits({"full": -1}), InvalidSize, "-1 pages"),
        (lambda chain: chain.holds({"window": -1}), InvalidSize, "-1 pages"),
        (lambda chain: chain.shortfall({"window": -1}), InvalidSize, "-1 pages"),
        (lambda chain: chain.fits({}, without={"full": 2}), InvalidSize, "2 pages .* 1 are used"),
        (lambda chain: chain.fits({}, without={"full": -1}), InvalidSize, "-1 pages"),
        (lambda chain: chain.fits({}, without={"odd": 0}), LayoutError, "'odd'"),
        (lambda chain: chain.take("odd", ints([1])), LayoutError, "'odd'.*full, window, state"),
        (lambda chain: chain.places("odd"), LayoutError, "'odd'"),
        (lambda chain: chain.compact(-1), InvalidSize, "-1"),
    ],
)
def test_refused_counts_change_nothing(call, error, words):
    """Releases of more pages than are used, negative numbers and unknown pools are named; the counts stay."""
    chain = shared()
    chain.take("full", ints([1]))
    before = chain.by_state()
    with pytest.raises(error, match=words):
        call(chain)
    assert chain.by_state() == before
    chain.audit()


@pytest.mark.parametrize(
    ("make", "error", "words"),
    [
        (lambda: shared(sink=-1), InvalidSize, "sink_bytes is -1"),
        (lambda: shared(total=33), LayoutError, "33 bytes .* 'state'"),
        (lambda: SharedBytes(10, []), LayoutError, "none"),
        (lambda: SharedBytes(10, [SharedPool("a", 1, 1, 1)] * 2), LayoutError, "a, a"),
        (lambda: SharedPool("a", 2, 1, 1), InvalidSize, "costs 1"),
        (lambda: SharedPool("a", 0, 1, 1), InvalidSize, "0 bytes"),
        (lambda: SharedPool("a", 1, 1, 0), InvalidSize, "0 entries"),
    ],
)
def test_pools_that_cannot_share_bytes_are_refused(make, error, words):
    """No pools, two of one name, no room for a page, a page that costs less than it has."""
    with pytest.raises(error, match=words):
        make()


def test_audit_finds_counts_that_do_not_add_up():
    """A budget that other code changed does not pass."""
    chain = shared()
    chain.take("full", ints([1]))
    chain._used[0] = 2
    with pytest.raises(AuditError, match="left of 90"):
        chain.audit()
