"""Kernels of the window side against plain Python."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvstead.kernels import windows
from kvstead.kernels.host import FREE, LIVE, PADDING, PARKED

NUM_PAGES = 8
EDGES = st.sampled_from([2**63 - 1, -(2**63), 2**62, 2**32, -(2**31)])
PAGE_SIZES = st.integers(1, 4)


def int64(values):
    return np.array(values, dtype=np.int64)


def room(length):
    return np.full(length, -7, dtype=np.int64)


@st.composite
def mappings(draw):
    """Page states, and distinct window pages linked to some of the live pages."""
    kinds = draw(st.lists(st.sampled_from([LIVE, LIVE, LIVE, FREE, PARKED]), min_size=NUM_PAGES, max_size=NUM_PAGES))
    linked = draw(st.permutations(range(1, NUM_PAGES + 3)))
    bare = draw(st.sets(st.integers(0, NUM_PAGES - 1)))
    held = [linked[i] if kind == LIVE and i not in bare else 0 for i, kind in enumerate(kinds)]
    return np.array([PADDING, *kinds], dtype=np.uint8), int64([0, *held, -1])


def any_pages(*, edges=True):
    """Pages in and close to the pool, most of them in it."""
    inside = st.integers(1, NUM_PAGES)
    return st.lists(st.one_of(inside, inside, inside, st.integers(-1, NUM_PAGES + 2), *([EDGES] if edges else [])))


def slot_in(draw, page, page_size):
    return page * page_size + draw(st.integers(0, page_size - 1))


@given(mappings(), st.permutations(range(1, NUM_PAGES + 1)), st.data())
def test_map_pages_links_the_last_ones(mapping, pages, data):
    """Pages from `start` on get the window pages in order; no other entry changes."""
    _, window_pages = mapping
    start = data.draw(st.integers(0, NUM_PAGES))
    linked = list(range(20, 20 + NUM_PAGES - start))
    expected = window_pages.tolist()
    for page, window in zip(pages[start:], linked, strict=True):
        expected[page] = window
    windows.map_pages(window_pages, int64(pages), int64(linked), start)
    assert window_pages.tolist() == expected


@given(mappings(), any_pages())
def test_unmap_pages_takes_each_window_page_once_or_names_a_page(mapping, pages):
    """Window pages come out in order, each once, and leave zeros; a page outside the pool refuses the call."""
    _, window_pages = mapping
    before = window_pages.tolist()
    out = room(len(pages))
    result = windows.unmap_pages(window_pages, int64(pages), out)
    foreign = [not 1 <= page <= NUM_PAGES for page in pages]
    if any(foreign):
        assert result == (0, foreign.index(True))
        assert window_pages.tolist() == before
        assert out.tolist() == [-7] * len(pages)
        return
    linked = [before[page] for page in dict.fromkeys(pages) if before[page]]
    assert result == (len(linked), -1)
    assert out.tolist() == linked + [-7] * (len(pages) - len(linked))
    assert window_pages.tolist() == [0 if at in pages else window for at, window in enumerate(before)]


@given(PAGE_SIZES, any_pages(edges=False), st.data())
def test_pages_of_slots_names_neighbours_once(page_size, pages, data):
    """Slots that follow one another in a page stand for it once, wherever in it they lie."""
    slots = []
    expected = []
    for page in pages:
        slots += [slot_in(data.draw, page, page_size) for _ in range(data.draw(st.integers(1, 3)))]
        if expected[-1:] != [page]:
            expected.append(page)
    out = room(len(slots))
    assert windows.pages_of_slots(int64(slots), page_size, out) == len(expected)
    assert out[: len(expected)].tolist() == expected


@given(PAGE_SIZES, any_pages(edges=False), st.data())
def test_pages_of_segment_wants_consecutive_slots(page_size, pages, data):
    """A stretch of whole pages, the last in part, gives their ids; the first page with one slot wrong is named."""
    row = [page * page_size + offset for page in pages for offset in range(page_size)]
    row = row[: max(0, len(row) - data.draw(st.integers(0, page_size - 1)))]
    out = room(len(pages))
    assert windows.pages_of_segment(int64(row), page_size, out) == -1
    assert out.tolist() == pages
    if row:
        at = data.draw(st.integers(0, len(row) - 1))
        wrong = row[at] + data.draw(st.integers(1, 9)) * data.draw(st.sampled_from([1, -1]))
        if at % page_size == 0 and wrong % page_size == 0 and (at + 1 == len(row) or page_size == 1):
            return  # another whole page
        row[at] = wrong
        assert windows.pages_of_segment(int64(row), page_size, out) == at // page_size


@given(mappings(), PAGE_SIZES, any_pages(edges=False), st.data())
def test_window_slots_keeps_offsets(mapping, page_size, pages, data):
    """A window slot has the offset of its slot, 0 is none, -1 stays; an id outside the pool is named."""
    _, window_pages = mapping
    slots = [slot_in(data.draw, page, page_size) for page in pages]
    slots += data.draw(st.lists(st.one_of(st.just(-1), st.integers(0, page_size - 1)), max_size=2))
    slots += data.draw(st.lists(EDGES, max_size=1))
    slots = data.draw(st.permutations(slots))
    out = room(len(slots))
    bad = windows.window_slots(window_pages, int64(slots), page_size, out)
    foreign = [not -1 <= slot < (NUM_PAGES + 1) * page_size for slot in slots]
    assert bad == (foreign.index(True) if any(foreign) else -1)
    for slot, found in list(zip(slots, out.tolist(), strict=True))[: bad if bad >= 0 else None]:
        page, offset = divmod(slot, page_size)
        window = window_pages[page] if slot >= 0 else 0
        assert found == (-1 if slot < 0 else window * page_size + offset if window else 0)


@given(mappings(), PAGE_SIZES, st.data())
def test_bare_rows_and_slots_are_found(mapping, page_size, data):
    """The first row that grows in a page without a window page is named; rows that stay or open a page do not count."""
    _, window_pages = mapping
    prefix, seq, last, slots = [], [], [], []
    for page in data.draw(st.lists(st.integers(1, NUM_PAGES))):
        prefix.append(data.draw(st.integers(0, 2 * page_size)))
        seq.append(prefix[-1] + data.draw(st.integers(0, 3)))
        inside = seq[-1] > prefix[-1] and prefix[-1] % page_size != 0
        last.append(page * page_size + (prefix[-1] - 1) % page_size if prefix[-1] else -1)
        slots.append(last[-1] + 1 if inside else -1)
    bare = [slot >= 0 and window_pages[slot // page_size] == 0 for slot in slots]
    expected = bare.index(True) if any(bare) else -1
    assert windows.bare_row(window_pages, int64(prefix), int64(seq), int64(last), page_size) == expected
    assert windows.bare_slot(window_pages, int64(slots), page_size) == expected


def move_fault(state, held, moves, src, dst, page_size):
    """What is wrong with one pair, given the pages paired before it."""
    giver, taker = src // page_size, dst // page_size
    checks = [
        (windows.MOVE_FOREIGN_SRC, not 1 <= giver <= NUM_PAGES),
        (windows.MOVE_FOREIGN_DST, not 1 <= taker <= NUM_PAGES),
        (windows.MOVE_OFFSET, src % page_size != dst % page_size),
        (0, moves.get(giver) == taker),
        (windows.MOVE_OFFSET, bool({giver, taker} & {*moves, *moves.values()})),
        (windows.MOVE_SRC_BARE, not 1 <= giver <= NUM_PAGES or held[giver] == 0),
        (windows.MOVE_DST_DEAD, not 1 <= taker <= NUM_PAGES or state[taker] != LIVE),
        (windows.MOVE_DST_TAKEN, not 1 <= taker <= NUM_PAGES or held[taker] != 0),
    ]
    return next((fault for fault, wrong in checks if wrong), 0)


@st.composite
def move_cases(draw):
    """Pairs of slots, most of pages with and without window pages, some pages several times, at most one odd."""
    state, window_pages = draw(mappings())
    page_size = draw(PAGE_SIZES)
    givers = draw(st.permutations(np.flatnonzero(window_pages[:-1]).tolist()))
    takers = draw(st.permutations(np.flatnonzero((window_pages[:-1] == 0) & (state == LIVE)).tolist()))
    pairs = []
    for giver, taker in list(zip(givers, takers, strict=False))[: draw(st.integers(0, NUM_PAGES))]:
        offsets = draw(st.lists(st.integers(0, page_size - 1), min_size=1, max_size=3))
        pairs += [(giver * page_size + offset, taker * page_size + offset) for offset in offsets]
    pairs = draw(st.permutations(pairs))
    odd = draw(st.sampled_from(["none", "pages", "slots"]))
    if odd == "pages":
        pairs.insert(
            draw(st.integers(0, len(pairs))), tuple(draw(st.integers(1, NUM_PAGES)) * page_size for _ in range(2))
        )
    elif odd == "slots":
        anything = st.one_of(st.integers(-2, (NUM_PAGES + 2) * page_size), EDGES)
        known = st.sampled_from([slot for pair in pairs for slot in pair]) if pairs else anything
        pairs.insert(draw(st.integers(0, len(pairs))), tuple(draw(st.one_of(anything, known)) for _ in range(2)))
    return state, window_pages, page_size, pairs


@given(move_cases())
def test_move_windows_moves_all_or_names_a_pair(case):
    """Window pages go to the pages that they are paired with and leave nothing behind; with one bad pair none moves."""
    state, window_pages, page_size, pairs = case
    before = window_pages.tolist()
    states = state.tolist()
    src, dst = int64([pair[0] for pair in pairs]), int64([pair[1] for pair in pairs])
    result = windows.move_windows(state, window_pages, src, dst, page_size, room(3 * len(pairs)))
    assert state.tolist() == states
    moves = {}
    for at, (one, other) in enumerate(pairs):
        fault = move_fault(states, before, moves, one, other, page_size)
        if fault:
            assert result == (fault, at)
            assert window_pages.tolist() == before
            return
        moves[one // page_size] = other // page_size
    assert result == (0, len(moves))
    expected = list(before)
    for giver, taker in moves.items():
        expected[giver], expected[taker] = 0, before[giver]
    assert window_pages.tolist() == expected


@pytest.mark.parametrize(
    ("src", "dst", "fault"),
    [
        (1, 6, windows.MOVE_FOREIGN_SRC),
        (10, 6, windows.MOVE_FOREIGN_SRC),
        (2, -2, windows.MOVE_FOREIGN_DST),
        (2, 10, windows.MOVE_FOREIGN_DST),
        (2, 7, windows.MOVE_OFFSET),
        (4, 2, windows.MOVE_OFFSET),
        (6, 6, windows.MOVE_SRC_BARE),
        (2, 8, windows.MOVE_DST_DEAD),
        (2, 2, windows.MOVE_DST_TAKEN),
    ],
)
def test_move_windows_tells_faults_apart(src, dst, fault):
    """Pages of two: 1 and 2 have window pages, 3 has lost its own, 4 is parked; of two pairs one is refused."""
    state = np.array([PADDING, LIVE, LIVE, LIVE, PARKED], dtype=np.uint8)
    window_pages = int64([0, 7, 8, 0, 0, -1])
    good = (4, 6) if fault == windows.MOVE_OFFSET else (src, dst)
    pairs = [good, (src, dst)]
    found = windows.move_windows(state, window_pages, *(int64(side) for side in zip(*pairs, strict=True)), 2, room(6))
    assert found == (fault, pairs.index((src, dst)))
    assert window_pages.tolist() == [0, 7, 8, 0, 0, -1]
