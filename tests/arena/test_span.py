"""Spans against sets of pages: everything that a small one can do, and large ones at random."""

from itertools import chain, combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from span_model import HIGH, LOW, SpanModel

from kvstead.arena import Span
from kvstead.arena.span import inward
from kvstead.errors import AuditError

PLACES = (LOW, 0, HIGH)


def ints(values):
    return np.array(list(values), dtype=np.int64)


def release(span, pages):
    """Make used pages holes, through tables in which id p + 1 is bound to page p: whether the span has shrunk."""
    limit = span.extent.limit
    p2v = np.array([0, *range(2, limit + 1), -1])  # page 0 is the sink
    v2p = np.array([0, -1, *range(1, limit), -1])
    bad, shrunk = span.release(v2p, p2v, ints(pages) + 1)
    assert bad == -1
    assert np.flatnonzero(v2p == -1).tolist() == sorted([1, limit + 1, *(page + 1 for page in pages)])
    assert np.flatnonzero(p2v == -1).tolist() == sorted([limit, *pages])
    return shrunk


def subsets(items):
    items = list(items)
    return chain.from_iterable(combinations(items, length) for length in range(len(items) + 1))


def span_with(first, limit, place, used):
    """A span and its model in which exactly these pages are used."""
    model = SpanModel(first, limit, place, used)
    span = Span(first, limit, place, 3)
    lo, hi = model.edges or (first, first)
    span.take(hi - lo, lo, hi)
    release(span, [page for page in range(lo, hi) if page not in model.used])
    return span, model


def agree(span, model):
    """Edges, holes and counts are the model's."""
    span.audit()
    extent = span.extent
    assert extent.lo == extent.hi if model.edges is None else (extent.lo, extent.hi) == model.edges
    assert span.holes().tolist() == model.holes
    assert extent.num_used == len(model.used)
    return True


def states(first, limit):
    """Every set of used pages at every place."""
    return ((place, used) for place in PLACES for used in subsets(range(first, limit)))


@pytest.mark.parametrize(("first", "limit"), [(1, 7), (1, 2), (3, 5)])
def test_any_used_pages_can_be_released(first, limit):
    """From every state, any used pages become holes, or leave the span if they lie at an edge that may move."""
    for place, used in states(first, limit):
        for pages in subsets(used):
            span, model = span_with(first, limit, place, used)
            size = span.extent.hi - span.extent.lo
            model.used -= set(pages)
            shrunk = release(span, pages)
            assert agree(span, model)
            assert shrunk == (span.extent.hi - span.extent.lo < size)


@pytest.mark.parametrize(("first", "limit"), [(1, 7), (1, 2), (3, 5)])
def test_holes_are_taken_from_the_own_end_and_edges_grow(first, limit):
    """From every state, by any number of holes and with any edges further out: these pages come, and no other."""
    for place, used in states(first, limit):
        lo, hi = SpanModel(first, limit, place, used).edges or (3, 3)
        for low in range(first, lo + 1) if place != LOW else [first]:
            for high in range(hi, limit + 1) if place != HIGH else [limit]:
                for num_holes in range(len(SpanModel(first, limit, place, used).holes) + 1):
                    grown = set(range(low, high)) - set(range(lo, hi))
                    if num_holes < len(SpanModel(first, limit, place, used).holes) and grown:
                        continue  # holes go first
                    span, model = span_with(first, limit, place, used)
                    taken = model.holes[: -num_holes - 1 : -1] if place == HIGH else model.holes[:num_holes]
                    pages = span.take(num_holes + len(grown), low, high).tolist()
                    assert pages[:num_holes] == taken
                    assert sorted(pages[num_holes:]) == sorted(grown)
                    model.used |= set(pages)
                    assert agree(span, model)


@pytest.mark.parametrize("place", PLACES)
def test_a_release_of_an_unbound_id_changes_nothing(place):
    """The first bad id is found by its index; edges, holes and tables stay as they were."""
    span, model = span_with(1, 9, place, (3, 4, 6))
    v2p, p2v = np.array([0, 3, 4, 6, -1, -1]), np.array([0, -1, -1, 1, 2, -1, 3, -1, -1, -1])
    before = v2p.tolist(), p2v.tolist()
    for at, v_pages in ((1, [1, 4, 2]), (2, [1, 2, 1]), (0, [0]), (0, [-1, 1]), (1, [2, 5])):
        assert span.release(v2p, p2v, ints(v_pages)) == (at, False)
        assert (v2p.tolist(), p2v.tolist()) == before
        assert agree(span, model)


def retreats(first, limit, place, used):
    """Every (side, pages) by which a span can retreat: into its holes, and a middle one also out the other side."""
    model = SpanModel(first, limit, place, used)
    if not used:
        return
    lo, hi = model.edges
    for side in (LOW, HIGH):
        if side == place:
            continue
        for num_pages in range(1, limit - first + 1):
            if place and num_pages > len(model.holes):
                continue
            fresh = model.retreat(side, num_pages)[2]
            if (lo - fresh >= first) if side == HIGH else (hi + fresh <= limit):
                yield side, num_pages


@pytest.mark.parametrize(("first", "limit"), [(1, 9), (3, 5)])
def test_a_retreat_moves_what_it_must(first, limit):
    """From every state, on both sides, by any number of pages for which there is room.

    Only the used pages of the band move, to holes outside it, farthest first, then to fresh pages; sources and
    destinations share no page; the band is clear then.
    """
    count = 0
    for place, used in states(first, limit):
        for side, num_pages in retreats(first, limit, place, used):
            span, model = span_with(first, limit, place, used)
            edge = span.extent.edge(side)
            src, dst, fresh = model.retreat(side, num_pages)
            assert span.fresh_for(side, num_pages) == fresh
            found = [pages.tolist() for pages in span.retreat(side, num_pages)]
            assert found == [src, dst]
            assert not set(src) & set(dst)
            assert len(set(dst)) == len(dst)
            model.move(src, dst)
            assert agree(span, model)
            assert side * (edge - side * num_pages - span.extent.edge(side)) >= 0
            count += 1
    assert count == {9: 3076, 5: 4}[limit]


def test_the_affordable_band_is_the_longest():
    """In every state, for every number of copies: no longer band has so few used pages and goes into holes."""
    for place, used in states(1, 8):
        span, model = span_with(1, 8, place, used)
        for side, max_used in ((side, copies) for side in (LOW, HIGH) if side != place for copies in range(8)):
            num_pages, num_used = span.affordable(side, max_used)
            bands = range(len(model.holes) + 1)
            assert num_pages == max(n for n in bands if not n or len(model.band(side, n) & model.used) <= max_used)
            assert num_used == (len(model.band(side, num_pages) & model.used) if num_pages else 0)
            assert not num_pages or span.fresh_for(side, num_pages) == 0


@given(st.data(), st.sampled_from(PLACES), st.sampled_from([1, 60, 4090]))
def test_spans_of_many_words_do_as_the_model(data, place, first):
    """Spans that cross words and levels of the bitmap do as the model, call after call."""
    limit = first + 300
    span, model = Span(first, limit, place), SpanModel(first, limit, place)
    for _ in range(data.draw(st.integers(1, 12))):
        lo, hi = model.edges or (first + 150, first + 150)
        kind = data.draw(st.sampled_from(["take", "release", "retreat"]))
        if kind == "take":
            low = lo if place == LOW else data.draw(st.integers(max(first, lo - 90), lo))
            high = hi if place == HIGH else data.draw(st.integers(hi, min(limit, hi + 90)))
            grown = (lo - low) + (high - hi)
            num_holes = len(model.holes) if grown else data.draw(st.integers(0, len(model.holes)))
            pages = span.take(grown + num_holes, low, high).tolist()
            assert len(set(pages)) == len(pages)
            assert not model.used & set(pages)
            model.used |= set(pages)
        elif kind == "release":
            pages = data.draw(st.permutations(sorted(model.used)))[: data.draw(st.integers(0, 200))]
            release(span, pages)
            model.used -= set(pages)
        elif model.used:
            side = data.draw(st.sampled_from([LOW, HIGH])) if not place else -place
            num_pages = data.draw(st.integers(0, len(model.holes)))
            src, dst, _ = model.retreat(side, num_pages)
            found = [pages.tolist() for pages in span.retreat(side, num_pages)]
            assert found == [src, dst]
            model.move(src, dst)
        assert agree(span, model)


@given(st.integers(0, 200), st.integers(1, 40))
def test_bytes_are_rounded_inward(byte, page_bytes):
    """HIGH bounds round down, LOW bounds up, onto the pool's own grid."""
    assert inward(byte, HIGH, page_bytes) == byte // page_bytes
    assert inward(byte, LOW, page_bytes) == -(-byte // page_bytes)


@pytest.mark.parametrize("place", PLACES)
def test_a_cleared_span_is_new(place):
    """After any use it is empty at its own end again."""
    span, model = span_with(2, 300, place, range(20, 290, 3))
    span.clear()
    model.used = set()
    assert agree(span, model)
    assert (span.extent.lo, span.extent.hi) == ((300, 300) if place == HIGH else (2, 2))


def test_a_span_refuses_to_leave_its_range():
    """A retreat for which there are neither holes nor fresh pages is our own mistake."""
    span, _ = span_with(1, 8, 0, {2, 3, 5})
    with pytest.raises(AssertionError, match="no room to retreat by 6 pages"):
        span.retreat(HIGH, 6)
    span, _ = span_with(1, 8, 0, {2, 3, 5})
    with pytest.raises(AssertionError, match="2 of 1 holes are wanted"):
        span.take(2, 2, 6)


def flip(word, bit):
    def corrupt(span):
        span.words[word] ^= np.uint64(1 << bit)

    return corrupt


def shift(name, by):
    def corrupt(span):
        setattr(span.extent, name, getattr(span.extent, name) + by)

    return corrupt


# Ids 2 to 299, used from 70 (or 2, or to 300) with a hole at 80, 90, 100.
DAMAGE = {
    "a hole lost": (flip(1, 80 - 64), "counts 3 holes"),
    "a hole too many": (flip(1, 81 - 64), "counts 3 holes"),
    "a hole outside": (flip(0, 0), "counts 3 holes"),
    "a count too high": (shift("num_holes", 1), "counts 4 holes"),
    "an edge past the limit": (shift("hi", 200), "lies outside"),
    "an edge below the first": (shift("lo", -70), "lies outside"),
    "a stale summary": (flip(5, 3), "stale"),
}


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize(("damage", "words"), DAMAGE.values(), ids=DAMAGE)
def test_audit_finds_a_damaged_span(place, damage, words):
    """Bits, counts and edges that other code wrote are found."""
    used = set(range(2 if place == LOW else 70, 300 if place == HIGH else 200)) - {80, 90, 100}
    span, _ = span_with(2, 300, place, used)
    span.audit()
    damage(span)
    with pytest.raises(AuditError, match=words):
        span.audit()


@pytest.mark.parametrize(("place", "name", "by"), [(LOW, "lo", 1), (HIGH, "hi", -1)])
def test_audit_finds_an_end_that_left_its_place(place, name, by):
    """An end's own edge does not move."""
    span, _ = span_with(2, 20, place, range(2, 20))
    shift(name, by)(span)
    with pytest.raises(AuditError, match="anchored"):
        span.audit()


@pytest.mark.parametrize(("name", "by"), [("lo", -1), ("hi", 1)])
def test_audit_finds_an_untrimmed_edge(name, by):
    """A hole at an edge that may move should have left the span."""
    span, _ = span_with(2, 20, 0, range(5, 10))
    shift(name, by)(span)
    span.words[0] |= np.uint64(1 << (4 if by < 0 else 10))
    span.extent.num_holes += 1
    with pytest.raises(AuditError, match="not trimmed"):
        span.audit()
