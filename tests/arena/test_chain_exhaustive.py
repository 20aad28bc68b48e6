"""All of a tiny arena: every state that a chain can be in, and every call in each of them."""

from itertools import chain, combinations, product

import pytest
from all_layouts import HIGH, LOW, MIDDLE
from chain_pair import ChainPair, ints


def subsets(items):
    items = list(items)
    return chain.from_iterable(combinations(items, length) for length in range(len(items) + 1))


def layouts(sizes, total):
    """Every choice of used pages for each pool such that the pools lie in order."""
    sink = max(size for size, _ in sizes)

    def above(pools, byte):
        if not pools:
            yield ()
            return
        size = pools[0][0]
        for pages in subsets(range(-(-byte // size), total // size)):
            for others in above(pools[1:], (max(pages) + 1) * size if pages else byte):
                yield (pages, *others)

    return above(sizes, sink)


def put(sizes, total, used, *, eager, is_open):
    """A chain in which exactly these pages are used, by ids 1, 2, 3 ... from the bottom up."""
    pair = ChainPair(sizes, total, eager=eager)
    pair.is_open = is_open
    for name, pages in zip(pair.names, used, strict=True):
        pool = pair.chain.pools[name]
        if pages:
            extent = pool.span.extent
            lo = extent.first if pool.spec.place == LOW else min(pages)
            hi = extent.limit if pool.spec.place == HIGH else max(pages) + 1
            pool.span.take(hi - lo, lo, hi)
            unused = [page for page in range(lo, hi) if page not in pages]
            v_pages = ints(range(1, hi - lo + 1))
            pool.bind(v_pages, ints([*pages, *unused]))
            pool.span.release(pool.map.v2p, pool.map.p2v, v_pages[len(pages) :])
            pair.stamp(name, range(1, len(pages) + 1))
    return pair


def calls(pair):
    """Every take there could be, every release, and compactions of every budget that makes a difference."""
    for name in pair.names:
        limit = pair.chain.pools[name].span.extent.limit
        yield from (("take", name, count) for count in range(limit + 1))
        yield from (("release", name, list(v_pages)) for v_pages in subsets(pair.live[name]) if v_pages)
    yield from (("compact", budget) for budget in (None, 0, 1, 2, 3, 5))


def everything(sizes, total, *, most=None):
    """Every call in every state, lazy and eager, with the gate open and closed: how many."""
    count = 0
    for used in layouts(sizes, total):
        for eager, is_open in product((False, True), (True, False)):
            pair = put(sizes, total, used, eager=eager, is_open=is_open)
            pair.check()
            for call in list(calls(pair)):
                before = pair.state()
                name, *args = call
                getattr(pair, name)(*args)
                count += 1
                if pair.state() != before:
                    pair = put(sizes, total, used, eager=eager, is_open=is_open)
        if most is not None and count > most:
            break
    return count


TINY = [
    ([(1, LOW), (2, HIGH)], 7),
    ([(2, LOW), (1, HIGH)], 6),
    ([(2, MIDDLE), (1, MIDDLE)], 6),
    ([(3, LOW), (1, MIDDLE), (2, HIGH)], 8),
    ([(2, LOW), (3, MIDDLE), (2, HIGH)], 10),
]
SMALL = [
    ([(1, LOW), (2, HIGH)], 9),
    ([(2, LOW), (1, HIGH)], 8),
    ([(3, LOW), (2, HIGH)], 14),
    ([(1, LOW), (2, MIDDLE), (3, HIGH)], 9),
    ([(3, LOW), (1, MIDDLE), (2, HIGH)], 9),
    ([(2, LOW), (3, MIDDLE), (1, MIDDLE), (2, HIGH)], 9),
]


@pytest.mark.parametrize(("sizes", "total"), TINY)
def test_every_call_in_every_state(sizes, total):
    """With any pages of any pools used, each take, release and compaction keeps all rules of a chain."""
    assert everything(sizes, total) > 500


@pytest.mark.soak
@pytest.mark.parametrize(("sizes", "total"), SMALL)
def test_every_call_in_every_state_of_larger_arenas(sizes, total):
    """As above, up to fourteen bytes and four pools."""
    assert everything(sizes, total) > 500
