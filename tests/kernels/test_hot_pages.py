"""Kernels of the hot side against plain Python, token by token."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from kvstead.kernels import hot_pages

NUM_PAGES = 6


def int64(values):
    return np.array(values, dtype=np.int64)


@st.composite
def pools(draw):
    """A mapping, its lengths, and rows that grow: soundly, in pages of their own."""
    ratio = draw(st.integers(1, 4))
    page_size = ratio * draw(st.integers(1, 3))
    linked = draw(st.permutations(range(1, NUM_PAGES + 3)))[:NUM_PAGES]
    device_pages = [0, *(page * draw(st.booleans()) for page in linked), -1]
    lens = [draw(st.integers(1, page_size // ratio)) for _ in device_pages]
    rows, fresh_pages = [], iter(range(NUM_PAGES + 1, 99))
    for page in draw(st.lists(st.integers(1, NUM_PAGES), unique=True)):
        prefix = draw(st.integers(0, 2)) * page_size + draw(st.integers(0, page_size - 1))
        seq = prefix + draw(st.integers(0, 2 * page_size + 1))
        pages, slots = {prefix // page_size: page} if prefix % page_size else {}, []
        for at in range(prefix, seq):
            if at // page_size not in pages:
                pages[at // page_size] = next(fresh_pages)
            slots.append(pages[at // page_size] * page_size + at % page_size)
        last = page * page_size + (prefix - 1) % page_size if prefix else -1
        rows.append((prefix, seq, last, slots))
    room = next(fresh_pages)
    return page_size, ratio, device_pages[:-1] + [0] * (room - NUM_PAGES) + [-1], lens + [0] * (room - NUM_PAGES), rows


@given(pools())
def test_growing_rows_get_the_device_pages_that_they_need(case):
    """One for every page in which a block ends and that has none; a row behind a gap is named; lengths follow."""
    page_size, ratio, device_pages, lens, rows = case
    mapping, lengths = int64(device_pages), int64(lens)
    columns = [int64([row[part] for row in rows]) for part in range(3)]
    row, needed = hot_pages.hot_demand(mapping, lengths, *columns, page_size, ratio)
    assert mapping.tolist() == device_pages

    there = dict(enumerate(lens))
    linked = {page: device for page, device in enumerate(device_pages) if device > 0}
    fresh = list(range(50, 99))
    for at, (prefix, seq, last, slots) in enumerate(rows):
        own = last // page_size
        if seq // ratio > prefix // ratio and prefix % page_size:
            held = there[own] if own in linked else 0
            if held < prefix % page_size // ratio:
                assert (row, needed) == (at, 0)
                return
        for position, slot in enumerate(slots, prefix):
            if (position + 1) % ratio == 0:
                page = slot // page_size
                if page not in linked:
                    linked[page], there[page] = fresh.pop(0), 0
                there[page] = max(there[page], slot % page_size // ratio + 1)
    assert (row, needed) == (-1, 49 - len(fresh))

    holders = np.zeros(99, dtype=np.int32)
    slots = int64([slot for row in rows for slot in row[3]])
    new = int64(range(50, 50 + needed))
    hot_pages.warm_rows(mapping, lengths, holders, *columns[:2], slots, new, page_size, ratio)
    assert {page: device for page, device in enumerate(mapping.tolist()) if device > 0} == linked
    assert [lengths[page] for page in linked] == [there[page] for page in linked]
    assert {page: holders[linked[page]] for page in linked if linked[page] >= 50} == {
        page: page for page in linked if linked[page] >= 50
    }


@given(pools(), st.data())
def test_device_slots_are_those_of_blocks_that_end(case, data):
    """0 for a token that ends no block on the device, -1 for -1, and the first slot beyond the pool is named."""
    page_size, ratio, device_pages, lens, _ = case
    end = (len(device_pages) - 1) * page_size
    slots = data.draw(st.lists(st.integers(-2, end)))
    out = np.full(len(slots), -7, dtype=np.int64)
    bad = hot_pages.hot_slots(int64(device_pages), int64(lens), int64(slots), page_size, ratio, out)
    wrong = [not -1 <= slot < end for slot in slots]
    assert bad == (wrong.index(True) if any(wrong) else -1)
    for slot, found in zip(slots[: bad if bad >= 0 else None], out.tolist(), strict=False):
        entry, rest = divmod(slot % page_size + 1, ratio)
        device = device_pages[slot // page_size]
        there = slot >= 0 and device > 0 and rest == 0 and entry <= lens[slot // page_size]
        assert found == (device * (page_size // ratio) + entry - 1 if there else min(slot, 0))
