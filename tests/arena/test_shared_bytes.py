"""Pools that share bytes by count: what fits is what costs no more than is left, and every byte is accounted for."""

import numpy as np
import pytest
from chain_pair import ints

from kvstead.arena import SharedBytes, SharedPool
from kvstead.errors import AuditError, DoubleFree, InvalidSize, LayoutError


def shared(total=100, sink=10):
    pools = [SharedPool("full", 3, 4, 2), SharedPool("window", 5, 5, 2), SharedPool("state", 20, 24, 1)]
    return SharedBytes(total, pools, sink_bytes=sink)


def test_pages_cost_what_their_pool_says():
    """90 bytes above the sink: pages of 4, 5 and 24 bytes are counted against them, whatever their own bytes."""
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
        {"full": (15, 0, 0), "window": (20, 0, 0), "state": (40, 0, 0)},
        2,
        10,
        5 * 1 + 2 * 4,
    )
    assert chain.by_state().total == 100
    assert [chain.num_used(name) for name in chain.pools] == [5, 4, 2]
    chain.audit()


def test_parked_pages_are_counted_until_they_are_free():
    """What waits in a group takes its cost, and can be taken back."""
    chain = shared()
    chain.take("state", ints([1, 2, 3]))
    chain.park("state", ints([1, 2]))
    assert chain.by_state().pools["state"] == (20, 40, 0)
    assert chain.num_used("state") == 3
    assert not chain.fits({"state": 1})
    chain.restore("state", ints([2]))
    chain.unpark("state", ints([1]))
    assert chain.by_state().pools["state"] == (40, 0, 0)
    assert chain.fits({"state": 1})
    chain.release("state", ints([2, 3]))
    assert chain.capacity(["state"]) == 3
    chain.audit()


def test_nothing_moves():
    """There are no holes to close, no bytes and no places; one pool or all can be cleared."""
    chain = shared()
    chain.take("full", ints([1, 2]))
    chain.take("state", ints([1]))
    chain.park("state", ints([1]))
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
        chain.park("full", np.arange(int(rng.integers(0, used["full"] + 1))) + 1)
        live = used | {"full": used["full"] - chain.by_state().pools["full"].parked // 3}
        without = {name: int(rng.integers(0, live[name] + 1)) for name in costs}
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
        (lambda chain: chain.release("full", ints([1, 2])), DoubleFree, "2 pages of pool 'full' .* 1 are held"),
        (lambda chain: chain.park("state", ints([1])), DoubleFree, "1 pages of pool 'state' .* 0 are held"),
        (lambda chain: chain.fits({"full": -1}), InvalidSize, "-1 pages"),
        (lambda chain: chain.holds({"window": -1}), InvalidSize, "-1 pages"),
        (lambda chain: chain.shortfall({"window": -1}), InvalidSize, "-1 pages"),
        (lambda chain: chain.fits({}, without={"full": 2}), InvalidSize, "2 pages .* 1 are live"),
        (lambda chain: chain.fits({}, without={"full": -1}), InvalidSize, "-1 pages"),
        (lambda chain: chain.fits({}, without={"odd": 0}), LayoutError, "'odd'"),
        (lambda chain: chain.take("odd", ints([1])), LayoutError, "'odd'.*full, window, state"),
        (lambda chain: chain.compact(-1), InvalidSize, "-1"),
    ],
)
def test_refused_counts_change_nothing(call, error, words):
    """More pages given back than are held, negative numbers and unknown pools are named; the books stay."""
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
def test_sizes_that_share_nothing_are_refused(make, error, words):
    """No pools, two of one name, no room for a page, a page that costs less than it has."""
    with pytest.raises(error, match=words):
        make()


def test_audit_finds_counts_that_do_not_add_up():
    """A budget that somebody else changed does not pass."""
    chain = shared()
    chain.take("full", ints([1]))
    chain._live[0] = 2
    with pytest.raises(AuditError, match="left of 90"):
        chain.audit()
