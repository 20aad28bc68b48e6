import numpy as np
import pytest
import torch
import torch_twins
from hypothesis import currently_in_test_context, event, given
from hypothesis import strategies as st

from kvstead.kernels import host
from kvstead.kernels.host import (
    FAULT_FOREIGN,
    FAULT_LENGTHS,
    FAULT_NONE,
    FAULT_NOT_LIVE,
    FAULT_OFFSET,
    FAULT_SHARED,
    FREE,
    LIVE,
    PADDING,
    PARKED,
)

EDGES = st.sampled_from([2**63 - 1, 2**63 - 2, -(2**63), -(2**63) + 1])
ANY_NUMBER = st.one_of(st.integers(-3, 60), st.integers(-3, 60), EDGES)


def ints(values):
    return np.array(values, dtype=np.int64)


def answer(name, *args):
    """What kernel and twin both say, and the arrays as both leave them; what they left of a refusal is not compared.

    The first array is never changed by a refusal.
    """
    arrays = [arg.copy() if isinstance(arg, np.ndarray) else arg for arg in args]
    tensors = [torch.from_numpy(arg.copy()) if isinstance(arg, np.ndarray) else arg for arg in args]
    with np.errstate(over="ignore"):  # compiled loops wrap around silently, and so they shall as plain Python
        result = getattr(host, name)(*arrays)
    twin = getattr(torch_twins, name)(*tensors)
    if refused(name, result):
        assert stumbled(name, twin) == stumbled(name, result)
        assert arrays[0].tolist() == tensors[0].tolist() == args[0].tolist()
    else:
        assert twin == result
        for array, tensor in zip(arrays, tensors, strict=True):
            assert not isinstance(array, np.ndarray) or array.tolist() == tensor.tolist()
    if currently_in_test_context():
        event(f"{name}: {'refused' if refused(name, result) else 'done'}")
    return result, arrays


def refused(name, result):
    return {
        "move": lambda: result >= 0,
        "move_slots": lambda: result[1] >= 0,
        "move_segment": lambda: result[0] != FAULT_NONE,
        "extend_demand": lambda: result[0] != FAULT_NONE,
        "decode_slots": lambda: result[0] != FAULT_NONE,
    }.get(name, lambda: False)()


def stumbled(name, result):
    """The part of a refusal that says why and where."""
    return result[:2] if name in {"extend_demand", "decode_slots"} else result


@st.composite
def states(draw):
    """A page table; half of the pages or more are live."""
    kinds = draw(st.lists(st.sampled_from([LIVE, LIVE, LIVE, FREE, PARKED]), min_size=draw(st.sampled_from([6, 0]))))
    return np.array([PADDING, *kinds], dtype=np.uint8)


@st.composite
def page_lists(draw, state, wanted=LIVE):
    """Pages in the wanted state, in any order or one behind the other, with or without a bad one among them."""
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
    """A ring with room for so many pages, and where to start in it."""
    size = room + draw(st.integers(0, 4))
    return np.full(max(size, 1), -7, dtype=np.int64), draw(st.integers(0, max(size - 1, 0)))


@given(st.data(), st.sampled_from([(LIVE, FREE), (LIVE, PARKED), (PARKED, FREE), (PARKED, LIVE)]))
def test_move(data, change):
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
    """A page past the end is refused, whatever lies behind the states in memory and however its id adds up."""
    memory = np.full(64, LIVE, dtype=np.uint8)
    assert answer("move", memory[:5].copy(), ints([page]), LIVE, FREE, ints([0]), 0)[0] == 0
    state = memory[:5]
    with np.errstate(over="ignore"):
        assert host.move(state, ints([page]), LIVE, FREE, ints([0]), 0) == 0
    assert memory.tolist() == [LIVE] * 64


@given(st.data())
def test_take(data):
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
def test_move_slots(data, page_size, change):
    """Slots stand for their pages, each once, in the order first seen; the first bad slot is named."""
    state = data.draw(states())
    slots = data.draw(slot_lists(state, page_size))
    out = np.zeros(min(len(slots), state.size), dtype=np.int64)
    (count, bad), (after, *_, pages) = answer("move_slots", state, ints(slots), page_size, change, out)
    if bad < 0:
        assert pages[:count].tolist() == list(dict.fromkeys(slot // page_size for slot in slots))
        assert np.flatnonzero(after != state).tolist() == sorted(pages[:count].tolist())


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
def test_move_segment(data, page_size, change):
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
def test_expand_pages(pages, page_size):
    """Every page yields its slots in order."""
    out = np.empty(len(pages) * page_size, dtype=np.int64)
    _, (_, _, slots) = answer("expand_pages", ints(pages), page_size, out)
    assert slots.tolist() == [page * page_size + offset for page in pages for offset in range(page_size)]


@st.composite
def batches(draw, num_states, page_size, growth):
    """Rows that are to grow: (prefix, seq, last slot); for the most part the slot fits the length."""
    rows = []
    for _ in range(draw(st.integers(0, 6))):
        prefix = draw(st.integers(0, 3 * page_size))
        seq = prefix + draw(st.integers(0, growth) if growth > 1 else st.just(1))
        page = draw(st.integers(0 if draw(st.booleans()) else 1, num_states))
        last = page * page_size + (prefix - 1) % page_size if prefix else -1
        rows.append([prefix, seq, last])
    if rows and draw(st.integers(0, 3)) == 0:
        draw(st.sampled_from(rows))[draw(st.integers(0, 2))] = draw(ANY_NUMBER)
    return [ints([row[column] for row in rows]) for column in range(3)]


def slots_by_token(prefix_lens, seq_lens, last_locs, page_size, pages):
    """What a row grows by, token by token; and which row each new page went to."""
    pages = list(pages)
    slots, opened_by = [], []
    for row, (prefix, seq, last) in enumerate(zip(prefix_lens, seq_lens, last_locs, strict=True)):
        slot = int(last)
        for position in range(prefix, seq):
            if position % page_size == 0:
                slot = int(pages.pop(0)) * page_size
                opened_by.append(row)
            else:
                slot += 1
            slots.append(slot)
    return slots, opened_by


@given(st.data(), st.integers(1, 5))
def test_extend(data, page_size):
    """A batch is counted, given its slots and tagged as if every row had grown by itself, token by token."""
    state = data.draw(states())
    prefix, seq, last = data.draw(batches(state.size, page_size, 3 * page_size))
    (fault, _, num_slots, num_pages), arrays = answer("extend_demand", state, prefix, seq, last, page_size)
    assert arrays[0].tolist() == state.tolist()
    if fault != FAULT_NONE or num_pages >= state.size:
        return
    pages = ints(data.draw(st.permutations(range(100, 100 + num_pages))))
    expected, opened_by = slots_by_token(prefix, seq, last, page_size, pages)
    out = np.empty(num_slots, dtype=np.int64)
    assert answer("extend_slots", prefix, seq, last, page_size, pages, out)[1][-1].tolist() == expected
    assert len(opened_by) == num_pages
    tags = np.arange(seq.size, dtype=np.int32) * 3 - 1
    owner = np.zeros(100 + num_pages, dtype=np.int32)
    owner_after = answer("tag_rows", owner, prefix, seq, page_size, pages, tags)[1][0]
    assert owner_after[pages].tolist() == [row * 3 - 1 for row in opened_by]
    assert not owner_after[:100].any()


@given(st.data(), st.integers(1, 5))
def test_decode_is_extend_by_one(data, page_size):
    """Decoding finds the fault, the slots and the pages that extending each row by one token finds."""
    state = data.draw(states())
    _, seq, last = data.draw(batches(state.size, page_size, 1))
    out = np.empty(seq.size, dtype=np.int64)
    verdict, arrays = answer("decode_slots", state, seq, last, page_size, out)
    with np.errstate(over="ignore"):
        as_extend = host.extend_demand(state.copy(), seq - 1, seq, last, page_size)
    assert arrays[0].tolist() == state.tolist()
    assert verdict[:2] == as_extend[:2]
    if verdict[0] != FAULT_NONE:
        return
    assert verdict == as_extend
    pages = ints(data.draw(st.permutations(range(100, 100 + verdict[3]))))
    slots = answer("open_pages", pages, page_size, arrays[-1])[1][-1]
    assert slots.tolist() == slots_by_token(seq - 1, seq, last, page_size, pages)[0]


# Page size 4: page 1 free, 2 and 3 live, 4 parked.
STATE = np.array([PADDING, FREE, LIVE, LIVE, PARKED], dtype=np.uint8)
FAULTS = {
    "shrinks": (FAULT_LENGTHS, (5, 4, 8)),
    "negative": (FAULT_LENGTHS, (-1, 1, -1)),
    "offset does not follow": (FAULT_OFFSET, (5, 6, 9)),
    "empty row behind a slot": (FAULT_OFFSET, (0, 1, 8)),
    "padding": (FAULT_FOREIGN, (1, 2, 0)),
    "negative slot": (FAULT_FOREIGN, (1, 2, -4)),
    "past the end": (FAULT_FOREIGN, (1, 2, 20)),
    "last slot there is": (FAULT_FOREIGN, (3, 4, 2**63 - 2)),
    "free page": (FAULT_NOT_LIVE, (1, 2, 4)),
    "parked page": (FAULT_NOT_LIVE, (1, 2, 16)),
    "page of another row": (FAULT_SHARED, (2, 3, 9)),
}


@pytest.mark.parametrize(("fault", "row"), FAULTS.values(), ids=FAULTS)
def test_each_fault_of_a_growing_row(fault, row):
    """Each fault is told by its own number, with the index of the row, and every claim is undone."""
    rows = [ints(column) for column in zip((1, 2, 8), (0, 1, -1), row, (1, 2, 12), strict=True)]
    verdict, arrays = answer("extend_demand", STATE, *rows, 4)
    assert verdict[:2] == (fault, 2)
    assert arrays[0].tolist() == STATE.tolist()
    if row[1] != row[0] + 1:
        return
    verdict, arrays = answer("decode_slots", STATE, *rows[1:], 4, np.empty(4, dtype=np.int64))
    assert verdict[:2] == (fault, 2)
    assert arrays[0].tolist() == STATE.tolist()


@pytest.mark.parametrize("page_size", [1, 2, 3, 4, 16])
@pytest.mark.parametrize("seq", [2**62, 2**63 - 1])
def test_demand_does_not_overflow(seq, page_size):
    """Rows too long for any pool ask for more pages than there are, also when their sum leaves 64 bits."""
    for num_rows in range(1, 9):
        rows = [ints([value] * num_rows) for value in (0, seq, -1)]
        (fault, _, _, num_pages), _ = answer("extend_demand", STATE, *rows, page_size)
        assert fault == FAULT_NONE
        assert num_pages >= STATE.size


def test_decode_refuses_the_lowest_length():
    """A length one below which there is no number is no length."""
    out = np.empty(1, dtype=np.int64)
    verdict, _ = answer("decode_slots", STATE, ints([-(2**63)]), ints([-1]), 1, out)
    assert verdict[:2] == (FAULT_LENGTHS, 0)
