"""What a chain says about room before pages are freed, tried in every state of tiny arenas."""

import random
from itertools import product

import pytest
from all_layouts import HIGH, LOW, MIDDLE, some_layout
from chain_pair import ListedChainPair, ints
from test_chain_exhaustive import TINY, layouts, put

from kvstead.errors import InvalidSize, LayoutError

every_tiny_arena = pytest.mark.parametrize(("sizes", "total"), TINY)


def room_for(sizes, total, counts):
    """Whether so many pages of each pool can lie in order, by trying all layouts."""
    pools = tuple((*size, count) for size, count in zip(sizes, counts, strict=True))
    return some_layout(pools, total, max(size for size, _ in sizes))


def counts_up_to(most):
    return product(*[range(count + 1) for count in most])


def named(names, counts):
    return dict(zip(names, counts, strict=True))


def every_state(sizes, total):
    """A chain in each state that there is, with its pools' names and used pages."""
    for used in layouts(sizes, total):
        pair = put(sizes, total, used, eager=False, is_open=True)
        yield pair, pair.names, [len(pages) for pages in used]


def demands(sizes, total):
    """Every number of pages of each pool, to one more than it could hold; of three pools, two at most."""
    most = [total // size for size, _ in sizes]
    return list(counts_up_to(most if len(sizes) < 3 else [min(2, count) for count in most]))


@every_tiny_arena
def test_fits_without_some_pages_as_if_all_layouts_were_tried(sizes, total):
    """In every state, without any number of used pages of each pool, the answer is that of trying all layouts."""
    seen = set()
    for pair, names, used in every_state(sizes, total):
        if tuple(used) in seen:
            continue
        seen.add(tuple(used))
        for without, demand in product(counts_up_to(used), demands(sizes, total)):
            counts = [have - less + more for have, less, more in zip(used, without, demand, strict=True)]
            said = pair.chain.fits(named(names, demand), moves=True, without=named(names, without))
            assert said == room_for(sizes, total, counts)


@every_tiny_arena
def test_pages_assumed_to_be_freed_make_the_room_of_pages_freed(sizes, total):
    """Some pages of every state are freed: what fits then was said before, exactly if pages may move, else in part.

    While nothing may move, a pool has room for as many as it gives up, and a pool gets what it was promised alone.
    """
    rng = random.Random(total)
    told = {True: 0, False: 0}
    wanted = demands(sizes, total)
    for pair, names, _ in every_state(sizes, total):
        freed = {name: [v for v in pair.live[name] if rng.random() < 0.5] for name in names}
        asked = [named(names, demand) for demand in rng.sample(wanted, min(12, len(wanted)))]
        asked = [{name: demand[name] for name in rng.sample(names, len(names))} for demand in asked]
        without = {name: len(v_pages) for name, v_pages in freed.items()}
        before = [[pair.chain.fits(demand, moves, without=without) for moves in (True, False)] for demand in asked]
        for name, v_pages in freed.items():
            pair.chain.release(name, ints(v_pages))
        for demand, (moved, unmoved) in zip(asked, before, strict=True):
            assert moved == pair.chain.fits(demand, moves=True)
            no_middle = all(place for _, place in sizes) or sum(map(bool, demand.values())) == 1
            assert not unmoved or moved
            assert unmoved or any(count > without[name] for name, count in demand.items())
            assert not (unmoved and no_middle) or pair.chain.fits(demand, moves=False)
            told[unmoved] += 1
    assert min(told.values()) > 20


@every_tiny_arena
def test_nothing_fits_before_the_shortfall_is_freed(sizes, total):
    """It is 0 if and only if there is room; else freeing any pages of fewer bytes leaves the demand without room."""
    num_short = 0
    for is_open in (True, False):
        for pair, names, used in every_state(sizes, total):
            pair.is_open = is_open
            for demand in demands(sizes, total):
                short = pair.chain.shortfall(named(names, demand))
                fits = pair.chain.fits(named(names, demand))
                assert short >= 0
                assert (short == 0) == fits
                num_short += short > 1
                for without in counts_up_to(used) if is_open and short else ():
                    freed = sum(count * size for count, (size, _) in zip(without, sizes, strict=True))
                    counts = [have - less + more for have, less, more in zip(used, without, demand, strict=True)]
                    assert freed >= short or not room_for(sizes, total, counts)
    assert num_short > 50


@every_tiny_arena
def test_holds_does_not_depend_on_used_pages(sizes, total):
    """In every state, `holds` answers as if all layouts of the demand alone were tried."""
    empty = {demand: room_for(sizes, total, demand) for demand in demands(sizes, total)}
    assert set(empty.values()) == {True, False}
    for pair, names, _ in every_state(sizes, total):
        for demand, expected in empty.items():
            assert pair.chain.holds(named(names, demand)) == expected


def scene():
    pair = ListedChainPair([(8, LOW), (4, MIDDLE), (8, HIGH)], 8 * 12)
    pair.take("a", 3)
    pair.take("b", 2)
    pair.park("a", [1])
    return pair


def test_used_pages_alone_can_be_assumed_to_be_freed():
    """Three pages, of which one is parked; a fourth, a negative number and an unknown pool are refused."""
    chain = scene().chain
    assert chain.fits({"a": 1}, without={"a": 3, "b": 2})
    for without, error, words in (
        ({"a": 4}, InvalidSize, "4 pages of pool 'a' .* 3 are used"),
        ({"b": -1}, InvalidSize, "-1 pages of pool 'b'"),
        ({"d": 1}, LayoutError, "no pool 'd'"),
    ):
        with pytest.raises(error, match=words):
            chain.fits({"a": 1}, without=without)
    for ask in (chain.holds, chain.shortfall):
        with pytest.raises(InvalidSize, match="-2 pages"):
            ask({"a": -2})
        with pytest.raises(LayoutError, match="no pool 'd'"):
            ask({"d": 0})


def test_a_chain_says_what_its_pools_are():
    """It knows the used pages of each, live or parked, their ids and sizes, and where they lie."""
    chain = scene().chain
    assert [chain.num_used(name) for name in "abc"] == [3, 2, 0]
    assert [chain.num_ids(name) for name in "abc"] == [11, 22, 11]
    assert chain.page_size("b") == 1
    assert chain.page_map("a") is chain.pools["a"].map
    assert chain.places("a") is chain.pools["a"]
    assert chain.device.type == "cpu"
    for ask in (chain.num_used, chain.num_ids, chain.page_size, chain.page_map, chain.places):
        with pytest.raises(LayoutError, match="no pool 'd'"):
            ask("d")


def test_callers_that_write_themselves_are_ordered_behind_the_last_forward_pass():
    """`order` calls the fence, once; what had changed hands by then needs no other."""
    pair = scene()
    pair.ids["b"].leave(ints(pair.live["b"]))
    pair.events.clear()
    pair.chain.order()
    assert pair.events == ["fence"]
    pair.ids["b"].take(1)
    assert pair.events == ["fence"]
    pair.chain.order()
    assert pair.events == ["fence", "fence"]
