"""`spans.release` against sets of pages. The arena's tests of `Span` and `PageMap` cover the other kernels of spans."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from kvstead.arena import Span
from kvstead.kernels import spans
from kvstead.kernels.spans import HIGH, LOW

EDGES = st.sampled_from([0, -1, -2, 2**63 - 1, -(2**63)])


def ints(values):
    return np.array(list(values), dtype=np.int64)


def edges_of(used, lo, hi, place):
    """Where a span ends once holes at edges that may move have left it."""
    if not used:
        return (lo, lo) if place == LOW else (hi, hi)
    return (lo if place == LOW else min(used)), (hi if place == HIGH else max(used) + 1)


@st.composite
def bound_spans(draw):
    """A span with used pages and holes, in words and levels of the bitmap, and which id each used page is bound to."""
    place = draw(st.sampled_from([LOW, 0, HIGH]))
    first = draw(st.sampled_from([1, 60, 4090]))
    used = sorted(draw(st.sets(st.integers(first, first + 140), min_size=1, max_size=40)))
    span = Span(first, first + 141, place)
    lo, hi = edges_of(used, first, first + 141, place)
    holes = ints(sorted(set(range(lo, hi)) - set(used)))
    span.take(hi - lo, lo, hi)
    for level, start in enumerate(span.starts.tolist()):
        for index in {page // 64**level for page in holes.tolist()}:
            span.words[start + index // 64] |= np.uint64(1 << index % 64)
    ids = draw(st.permutations(range(1, len(used) + 4)))[: len(used)]
    v2p, p2v = np.full(len(used) + 5, -1), np.full(first + 142, -1)
    v2p[0] = p2v[0] = 0
    spans.bind(v2p, p2v, ints(ids), ints(used))
    return span, dict(zip(ids, used, strict=True)), v2p, p2v


def release(span, lo, hi, v2p, p2v, v_pages):
    """The kernel's answer for a span from `lo` to `hi`."""
    return spans.release(v2p, p2v, ints(v_pages), span.words, span.starts, lo, hi, span.extent.place)


@given(bound_spans(), st.data())
def test_released_pages_become_holes_and_edges_leave(case, data):
    """Ids and pages no longer know each other, the others stay bound, and the span is trimmed where it may move."""
    span, bound, v2p, p2v = case
    lo, hi = span.extent.lo, span.extent.hi
    v_pages = data.draw(st.lists(st.sampled_from(sorted(bound)), unique=True))
    if data.draw(st.booleans()):  # a whole edge, or everything
        v_pages = sorted(bound, key=bound.get)[: data.draw(st.integers(0, len(bound)))]
    bad, new_lo, new_hi = release(span, lo, hi, v2p, p2v, v_pages)
    kept = {v: page for v, page in bound.items() if v not in v_pages}
    assert bad == -1
    if kept or span.extent.place:
        assert (new_lo, new_hi) == edges_of(kept.values(), lo, hi, span.extent.place)
    else:
        assert new_lo == new_hi
    owners = {page: v for v, page in kept.items()}
    assert v2p.tolist() == [0, *(kept.get(v, -1) for v in range(1, v2p.size))]
    assert p2v.tolist() == [0, *(owners.get(page, -1) for page in range(1, p2v.size))]
    span.extent.lo, span.extent.hi = new_lo, new_hi
    span.extent.num_holes = new_hi - new_lo - len(kept)
    span.audit()
    assert span.holes().tolist() == sorted(set(range(new_lo, new_hi)) - set(kept.values()))


@given(bound_spans(), st.data())
def test_a_release_with_a_bad_id_changes_nothing(case, data):
    """The first id that is out of range, not bound or named again is found; tables, holes and edges stay."""
    span, bound, v2p, p2v = case
    good = data.draw(st.lists(st.sampled_from(sorted(bound)), unique=True, max_size=6))
    unbound = sorted(set(range(1, v2p.size - 1)) - bound.keys())
    wrong = data.draw(st.one_of(EDGES, st.just(v2p.size - 1), st.sampled_from([*unbound, *good])))
    at = len(good) if wrong in good else data.draw(st.integers(0, len(good)))
    before = [array.tolist() for array in (v2p, p2v, span.words)]
    lo, hi = span.extent.lo, span.extent.hi
    assert release(span, lo, hi, v2p, p2v, [*good[:at], wrong, *good[at:]]) == (at, lo, hi)
    assert [array.tolist() for array in (v2p, p2v, span.words)] == before
