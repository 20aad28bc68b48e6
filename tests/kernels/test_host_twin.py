"""Kernels of page states and segments against their torch twins."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from twin_answers import ANY_NUMBER, answer, ints, states

from kvstead.kernels import host
from kvstead.kernels.host import FAULT_NONE, FREE, LIVE, PADDING, PARKED


@st.composite
def page_lists(draw, state, wanted=LIVE):
    """Pages in the wanted state, in any order or consecutive, with or without a bad one among them."""
    good = np.flatnonzero(state == wanted).tolist()
    pages = draw(st.lists(st.sampled_from(good), unique=True, max_size=8)) if good else []
    if draw(st.booleans()):
        pages = sorted(pages)
    if draw(st.booleans()):
        first = draw(st.integers(0, state.size))
        pages = list(range(first, first + draw(st.integers(0, state.size))))
    if draw(st.booleans()):
        pages.insert(draw(st.integers(0, len(pages))), draw(st.one_of(ANY_NUMBER, st.sampled_from([0, *pages]))))
    return pages


@st.composite
def rings(draw, room):
    """A ring for that many pages or more, and where to start in it."""
    size = room + draw(st.integers(0, 4))
    return np.full(max(size, 1), -7, dtype=np.int64), draw(st.integers(0, max(size - 1, 0)))


@given(st.data(), st.sampled_from([(LIVE, FREE), (LIVE, PARKED), (PARKED, FREE), (PARKED, LIVE)]))
def test_move_changes_all_pages_or_none(data, change):
    """Pages change state and are written around the ring, all or none; the first bad one is named."""
    state = data.draw(states())
    pages = data.draw(page_lists(state, change[0]))
    ring, start = data.draw(rings(len(pages)))
    bad, (after, _, _, _, listed, _) = answer("move", state, ints(pages), *change, ring, start)
    if bad < 0:
        assert np.flatnonzero(after != state).tolist() == sorted(pages)
        assert [int(listed[(start + i) % ring.size]) for i in range(len(pages))] == pages
    else:
        page = pages[bad]
        assert not 0 <= page < state.size or state[page] != change[0] or page in pages[:bad]


@pytest.mark.parametrize("pages", [[2, 3, 4, 5], [5, 4, 3, 2], [3, 2, 5, 4], [4]])
def test_move_wraps_around_the_ring(pages):
    """From wherever they start, pages are written on over the end of the ring, one behind the other or not."""
    state = np.array([PADDING, *[LIVE] * 6], dtype=np.uint8)
    for size in range(len(pages), len(pages) + 3):
        for start in range(size):
            ring = np.full(size, -7, dtype=np.int64)
            bad, (*_, listed, _) = answer("move", state, ints(pages), LIVE, FREE, ring, start)
            assert bad == -1
            assert np.roll(listed, -start).tolist() == pages + [-7] * (size - len(pages))


@pytest.mark.parametrize("page", [2**63 - 1, 2**63 - 4, -(2**63), -1, 5])
def test_move_never_looks_outside_the_states(page):
    """A page past the end is refused, no matter what lies behind the states in memory or whether its id overflows."""
    memory = np.full(64, LIVE, dtype=np.uint8)
    assert answer("move", memory[:5].copy(), ints([page]), LIVE, FREE, ints([0]), 0)[0] == 0
    state = memory[:5]
    with np.errstate(over="ignore"):
        assert host.move(state, ints([page]), LIVE, FREE, ints([0]), 0) == 0
    assert memory.tolist() == [LIVE] * 64


@given(st.data())
def test_write_ring_wraps_around(data):
    """Ids are written from the start on and over the end of the ring; all other entries stay."""
    pages = data.draw(st.lists(st.integers(0, 2**40), max_size=8))
    ring, start = data.draw(rings(len(pages)))
    _, (written, _, _) = answer("write_ring", ring, start, ints(pages))
    assert np.roll(written, -start).tolist() == pages + [-7] * (ring.size - len(pages))


@given(st.data())
def test_take_hands_out_listed_and_fresh_pages(data):
    """Listed pages (around the ring) and fresh ones come out in either order, live and tagged."""
    num_listed, num_fresh = data.draw(st.tuples(st.integers(0, 6), st.integers(0, 6)))
    listed = data.draw(st.permutations(range(1, num_listed + 1)))
    ring, head = data.draw(rings(num_listed))
    ring[(head + np.arange(num_listed)) % ring.size] = listed
    state = np.zeros(num_listed + num_fresh + 3, dtype=np.uint8)
    fresh = num_listed + 1
    tag = data.draw(st.integers(-(2**31), 2**31 - 1))
    new = list(range(fresh, fresh + num_fresh))
    for listed_at, expected in ((0, listed + new), (num_fresh, new + listed)):
        owner = np.zeros(state.size, dtype=np.int32)
        out = np.zeros(num_listed + num_fresh, dtype=np.int64)
        _, after = answer("take", state, owner, ring, head, num_listed, listed_at, fresh, tag, out)
        assert after[-1].tolist() == expected
        assert np.flatnonzero(after[0] == LIVE).tolist() == sorted(expected)
        assert after[1].tolist() == [tag if page in expected else 0 for page in range(state.size)]


@st.composite
def slot_lists(draw, state, page_size):
    """Some slots of some pages, page by page, shuffled, or anything; or all of them in order, from some slot on."""
    pages = draw(page_lists(state))
    some = st.lists(st.integers(0, page_size - 1), min_size=1, max_size=page_size)
    in_order = draw(st.booleans())
    slots = [
        page * page_size + offset
        for page in pages
        for offset in (range(page_size) if in_order else draw(some))
        if abs(page) < 2**32
    ]
    if in_order:
        slots = slots[draw(st.integers(0, page_size - 1)) :]
        if slots and draw(st.booleans()):
            slots[draw(st.integers(0, len(slots) - 1))] = draw(ANY_NUMBER)
    elif draw(st.booleans()):
        slots = draw(st.permutations(slots))
    if draw(st.booleans()):
        slots = [*slots, draw(ANY_NUMBER)]
    return slots


@given(st.data(), st.integers(1, 5), st.sampled_from([FREE, PARKED]))
def test_move_slots_moves_each_page_once(data, page_size, change):
    """Slots stand for their pages, each once, in the order first seen; the first bad slot is named."""
    state = data.draw(states())
    slots = data.draw(slot_lists(state, page_size))
    out = np.zeros(min(len(slots), state.size), dtype=np.int64)
    (count, bad), (after, *_, pages) = answer("move_slots", state, ints(slots), page_size, change, out)
    if bad < 0:
        assert pages[:count].tolist() == list(dict.fromkeys(slot // page_size for slot in slots))
        assert np.flatnonzero(after != state).tolist() == sorted(pages[:count].tolist())


@given(st.data(), st.integers(1, 5), st.sampled_from([0, 1]))
def test_free_slots_writes_the_pages_into_the_ring(data, page_size, shift):
    """The pages of slots are free, and lie in the ring behind an index or, with a shift of 1, in front of it."""
    state = data.draw(states())
    slots = data.draw(slot_lists(state, page_size))
    out = np.zeros(min(len(slots), state.size), dtype=np.int64)
    ring, at = data.draw(rings(out.size))
    (count, bad), arrays = answer("free_slots", state, ints(slots), page_size, out, ring, at, shift)
    after, pages, written = arrays[0], arrays[3][:count].tolist(), arrays[4]
    if bad < 0:
        assert pages == list(dict.fromkeys(slot // page_size for slot in slots))
        assert np.flatnonzero(after != state).tolist() == sorted(pages)
        assert (after[pages] == FREE).all()
        assert np.roll(written, shift * count - at).tolist() == pages + [-7] * (ring.size - count)
    else:
        assert written.tolist() == ring.tolist()


@st.composite
def segments(draw, state, page_size):
    """The slots of a row from a page boundary on, the last page perhaps in part; or with one slot off."""
    pages = [page for page in draw(page_lists(state)) if abs(page) < 2**32]
    slots = [page * page_size + offset for page in pages for offset in range(page_size)]
    slots = slots[: len(slots) - draw(st.integers(0, page_size - 1))]
    if slots and draw(st.booleans()):
        slots[draw(st.integers(0, len(slots) - 1))] = draw(ANY_NUMBER)
    return slots


@given(st.data(), st.integers(1, 5), st.sampled_from([FREE, PARKED]))
def test_move_segment_moves_all_pages_or_none(data, page_size, change):
    """A segment's pages move as `move` moves them; a page that is torn or not live is named with its fault."""
    state = data.draw(states())
    slots = data.draw(segments(state, page_size))
    ring, start = data.draw(rings(-(-len(slots) // page_size)))
    (fault, _), arrays = answer("move_segment", state, ints(slots), page_size, change, ring, start)
    if fault == FAULT_NONE:
        pages = [slot // page_size for slot in slots[::page_size]]
        assert np.flatnonzero(arrays[0] != state).tolist() == sorted(pages)
        assert [int(arrays[-2][(start + i) % ring.size]) for i in range(len(pages))] == pages


@given(st.lists(st.integers(0, 2**40), max_size=20), st.integers(1, 7))
def test_expand_pages_lists_every_slot(pages, page_size):
    """Every page yields its slots in order."""
    out = np.empty(len(pages) * page_size, dtype=np.int64)
    _, (_, _, slots) = answer("expand_pages", ints(pages), page_size, out)
    assert slots.tolist() == [page * page_size + offset for page in pages for offset in range(page_size)]
