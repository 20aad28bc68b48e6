"""What holds for every pool, whatever its page size and order."""

from copy import deepcopy

import numpy as np
import pytest
import torch
from allocator_pair import ORDERS, PAGE_SIZES, Pair, snapshot
from hypothesis import given
from hypothesis import strategies as st

from kvstead.allocators import PagedAllocator, TokenAllocator
from kvstead.errors import InvalidSize, UseAfterFree

page_sizes = st.sampled_from(PAGE_SIZES)
orders = st.sampled_from(ORDERS)


def ceil(lengths, page_size):
    return -(-np.asarray(lengths) // page_size)


@st.composite
def started_rows(draw, max_rows=8):
    """A pool with rows of any lengths in it, some other pages freed: (allocator, lengths, last slots)."""
    page_size = draw(page_sizes)
    lengths = draw(st.lists(st.integers(0, 3 * page_size), max_size=max_rows))
    num_pages = int(ceil(lengths, page_size).sum()) if lengths else 0
    allocator = PagedAllocator((num_pages + 40) * page_size, page_size, order=draw(orders))
    holes = allocator.alloc(6 * page_size).reshape(6, page_size)
    zeros, lasts = [0] * len(lengths), [-1] * len(lengths)
    slots = allocator.alloc_extend(zeros, lengths, lasts)
    ends = np.cumsum(lengths, dtype=np.int64)
    lasts = [int(slots[end - 1]) if length else -1 for end, length in zip(ends, lengths, strict=True)]
    chosen = draw(st.lists(st.integers(0, 5), unique=True))
    allocator.free(holes[chosen])
    return allocator, lengths, lasts


def three_phases(free_pages, prefix_lens, seq_lens, last_locs, page_size):
    """The rest of the row's last page, then whole fresh pages, then the start of one more."""
    free_pages = list(free_pages)
    out = []
    for prefix, seq, last in zip(prefix_lens, seq_lens, last_locs, strict=True):
        boundary = int(ceil(prefix, page_size)) * page_size
        head = min(seq, boundary) - prefix
        out += [last + 1 + i for i in range(head)]
        if prefix + head == seq:
            continue
        for _ in range((seq - boundary) // page_size):
            base = free_pages.pop(0) * page_size
            out += list(range(base, base + page_size))
        if seq % page_size:
            base = free_pages.pop(0) * page_size
            out += list(range(base, base + seq % page_size))
    return out


@given(started_rows(), st.data())
def test_extend_follows_the_three_phase_formula(started, data):
    """Slots are distinct, lie at their position's offset, follow the formula, and take just the pages they open."""
    allocator, prefix, last = started
    page_size = allocator.page_size
    seq = [length + data.draw(st.integers(0, 3 * page_size)) for length in prefix]
    free_before = allocator._pool.contents()
    slots = allocator.alloc_extend(prefix, seq, last).numpy()
    assert slots.tolist() == three_phases(free_before, prefix, seq, last, page_size)
    assert len(set(slots.tolist())) == slots.size
    positions = [p for a, b in zip(prefix, seq, strict=True) for p in range(a, b)]
    assert (slots % page_size).tolist() == [p % page_size for p in positions]
    opened = int((ceil(seq, page_size) - ceil(prefix, page_size)).sum()) if seq else 0
    assert allocator._pool.contents().tolist() == free_before[opened:].tolist()


@given(started_rows(max_rows=5), st.integers(0, 10), st.data())
def test_extend_needs_exactly_its_pages(started, num_free, data):
    """With as many free pages as rows open the call succeeds; with one fewer it is None and nothing is touched."""
    allocator, prefix, last = started
    page_size = allocator.page_size
    seq = [length + data.draw(st.integers(0, 2 * page_size)) for length in prefix]
    needed = int((ceil(seq, page_size) - ceil(prefix, page_size)).sum()) if seq else 0
    allocator.alloc(allocator.available_size() - min(num_free, allocator.available_size() // page_size) * page_size)
    before = snapshot(allocator)
    slots = allocator.alloc_extend(prefix, seq, last)
    if needed <= num_free:
        assert slots is not None
        assert allocator.available_size() == (num_free - needed) * page_size
    else:
        assert slots is None
        assert snapshot(allocator) == before


@pytest.mark.parametrize("page_size", PAGE_SIZES)
def test_extend_of_any_number_of_rows_fits_exactly(page_size):
    """1 .. 257 rows, every third one not growing: the exact number of pages is enough, one fewer is not."""
    for num_rows in range(1, 258):
        prefix = np.arange(num_rows) % (page_size + 1)
        seq = prefix + np.where(np.arange(num_rows) % 3 == 0, 0, np.arange(num_rows) % (2 * page_size) + 1)
        first = int(ceil(prefix, page_size).sum())
        more = int((ceil(seq, page_size) - ceil(prefix, page_size)).sum())
        for num_pages in {first + more, max(first, first + more - 1)}:
            allocator = PagedAllocator(num_pages * page_size, page_size)
            slots = allocator.alloc_extend(np.zeros_like(prefix), prefix, np.full_like(prefix, -1)).numpy()
            last = np.where(prefix > 0, np.append(slots, 0)[np.cumsum(prefix) - 1], -1)
            grown = allocator.alloc_extend(prefix, seq, last)
            assert (grown is not None) == (num_pages == first + more)
            assert allocator.available_size() == (0 if grown is not None else (num_pages - first) * page_size)


@given(started_rows(), st.booleans())
def test_decode_is_extend_by_one(started, tagged):
    """The same slots, and the same state afterwards, tags included."""
    allocator, prefix, last = started
    other = deepcopy(allocator)
    seq = [length + 1 for length in prefix]
    owners = list(range(5, 5 + len(seq))) if tagged else None
    assert torch.equal(allocator.alloc_decode(seq, last, owners), other.alloc_extend(prefix, seq, last, owners))
    assert snapshot(allocator) == snapshot(other)


@given(started_rows())
def test_decoding_rows_of_a_table_is_decoding(started):
    """Rows of a table grow as rows handed in do: the same slots, tags and state, and the table holds them."""
    allocator, lengths, last = started
    other = deepcopy(allocator)
    rows = np.arange(len(lengths))[::-1] + 1
    table = np.full((len(lengths) + 1, max(lengths, default=0) + 1), -1)
    table_lengths = np.array([0, *lengths[::-1]])
    for row, length, slot in zip(rows, lengths, last, strict=True):
        table[row, max(length - 1, 0)] = slot
    tags = np.arange(5, 5 + len(lengths), dtype=np.int32)
    expected = other.alloc_decode([length + 1 for length in lengths], last, tags)
    before = table.copy()
    out = allocator.alloc_decode_rows(table, table_lengths, rows, tags)
    assert out.tolist() == expected.tolist()
    assert snapshot(allocator) == snapshot(other)
    assert table_lengths.tolist() == [0, *[length + 1 for length in lengths[::-1]]]
    before[rows, lengths] = out
    assert (table == before).all()


@pytest.mark.parametrize("page_size", [size for size in PAGE_SIZES if size > 1])
def test_rows_of_a_table_fail_as_a_whole(page_size):
    """A short pool is None, a row whose page is gone raises; table and allocator stay as they were."""
    allocator = PagedAllocator(3 * page_size, page_size)
    slots = allocator.alloc(2 * page_size).numpy()
    table = np.zeros((3, page_size + 1), dtype=np.int64)
    table[0, :page_size], table[1, 0] = slots[:page_size], slots[page_size]
    lengths = np.array([page_size, 1, 0])
    rows, tags = np.arange(3), np.zeros(3, dtype=np.int32)
    before = snapshot(allocator), table.tolist(), lengths.tolist()
    assert allocator.alloc_decode_rows(table, lengths, rows, tags) is None
    assert (snapshot(allocator), table.tolist(), lengths.tolist()) == before
    allocator.free(slots[page_size:])
    before = snapshot(allocator), table.tolist(), lengths.tolist()
    with pytest.raises(UseAfterFree, match="row 1 "):
        allocator.alloc_decode_rows(table, lengths, rows, tags)
    assert (snapshot(allocator), table.tolist(), lengths.tolist()) == before


@st.composite
def row_stretches(draw):
    """Rows of fresh pages in any order, and of each a stretch that starts on a page boundary: (pool, stretches)."""
    page_size, order = draw(page_sizes), draw(orders)
    pages = draw(st.permutations(range(1, 13)))
    cuts = sorted(draw(st.lists(st.integers(0, 12), max_size=3)))
    stretches = []
    for begin, end in zip([0, *cuts], [*cuts, 12], strict=True):
        slots = [page * page_size + offset for page in pages[begin:end] for offset in range(page_size)]
        start = draw(st.integers(0, len(slots) // page_size)) * page_size
        stop = draw(st.integers(start, len(slots)))
        stretches.append((slots[start:stop], start))
    return page_size, order, stretches


def full_pool(page_size, order):
    allocator = PagedAllocator(12 * page_size, page_size, order=order)
    allocator.alloc(allocator.size)
    return allocator


@given(row_stretches(), st.data())
def test_all_ways_to_free_are_one(drawn, data):
    """Freeing stretches as segments, all at once, or any slots that touch each of their pages leaves the same state."""
    page_size, order, stretches = drawn
    pools = [full_pool(page_size, order) for _ in range(4)]
    for slots, start in stretches:
        pools[0].free(slots)
        pools[1].free_segment(slots, start_pos=start)
        touched = [data.draw(st.sampled_from(slots[at : at + page_size])) for at in range(0, len(slots), page_size)]
        pools[3].free(touched)
    pools[2].free_segments(stretches)
    books = [snapshot(pool) for pool in pools]
    assert books == [books[0]] * 4


@given(row_stretches(), st.data())
def test_grouped_frees_end_where_ungrouped_ones_do(drawn, data):
    """Any frees, grouped or not, end in the same state; the pages are out of reach until the group ends."""
    page_size, order, stretches = drawn
    plain, grouped = full_pool(page_size, order), full_pool(page_size, order)
    with grouped.defer_frees():
        for slots, start in stretches:
            as_segment = data.draw(st.booleans())
            for pool in (plain, grouped):
                if as_segment:
                    pool.free_segment(slots, start_pos=start)
                else:
                    pool.free(slots)
        assert grouped.available_size() == 0
        assert grouped.parked_size() == plain.available_size()
        assert grouped.alloc(page_size) is None
    assert snapshot(grouped) == snapshot(plain)


@pytest.mark.parametrize("how", ["free", "free_segment", "free_segments"])
@pytest.mark.parametrize("page_size", PAGE_SIZES)
def test_the_row_may_be_overwritten_inside_the_group(page_size, how):
    """What is freed is what the row held at the call; the row is overwritten at once, and the group takes no notice."""
    allocator = PagedAllocator(8 * page_size, page_size)
    row = allocator.alloc(4 * page_size)
    stretch = row[page_size : 3 * page_size]
    with allocator.defer_frees():
        if how == "free":
            allocator.free(stretch)
        elif how == "free_segment":
            allocator.free_segment(stretch, start_pos=page_size)
        else:
            allocator.free_segments([(stretch, page_size)])
        row.fill_(page_size)
    assert sorted(allocator._pool.contents().tolist()) == [2, 3, 5, 6, 7, 8]
    assert allocator.page_states().tolist() == [3, 1, 0, 0, 1, 0, 0, 0, 0]


@given(started_rows(), st.booleans())
def test_a_cleared_pool_answers_as_a_new_one(started, grouped):
    """After `clear` all is free, no group is open, `end` does nothing, and the next answers are a new pool's."""
    allocator, _, last = started
    page_size = allocator.page_size
    if grouped:
        allocator.free_group_begin()
        allocator.free([slot for slot in last if slot >= 0])
    allocator.clear()
    allocator.free_group_end()
    new = PagedAllocator(allocator.size, page_size, order=allocator._pool.order)
    assert allocator.free_group is None
    assert allocator.owners() == {}
    for pool in (allocator, new):
        assert (pool.available_size(), pool.parked_size()) == (pool.size, 0)
        pool.audit()
    for num_pages in (3, 1, allocator.num_pages - 4):
        assert torch.equal(allocator.alloc(num_pages * page_size), new.alloc(num_pages * page_size))


def step(pool, op, number, held):
    """One call on a pool whose only row is `held`; the slots that came back, as a list."""
    last = held[-1] if held else -1
    cut = number % (len(held) + 1)
    if op == "alloc":
        slots = pool.alloc(number % 5)
    elif op == "extend":
        slots = pool.alloc_extend([len(held)], [len(held) + number % 5], [last])
    elif op == "decode":
        slots = pool.alloc_decode([len(held) + 1], [last])
    elif op == "free":
        slots = pool.free(held[cut:])
    else:
        slots = pool.free_segment(held[cut:], start_pos=cut)
    return None if slots is None else slots.tolist()


script_steps = st.tuples(st.sampled_from(["alloc", "extend", "decode", "free", "free_segment"]), st.integers(0, 2**20))


@given(orders, st.lists(script_steps, max_size=30))
def test_both_classes_answer_alike_at_page_size_one(order, script):
    """The same script on `TokenAllocator` and on `PagedAllocator` with pages of one token gives the same slots."""
    token, paged = TokenAllocator(12, order=order), PagedAllocator(12, 1, order=order)
    held = []
    for op, number in script:
        slots = step(token, op, number, held)
        assert step(paged, op, number, held) == slots
        assert snapshot(paged) == snapshot(token)
        if op.startswith("free"):
            del held[number % (len(held) + 1) :]
        held += slots or []


def test_token_pools_are_first_in_first_out_and_paged_ones_last_in_first_out():
    """Without an order named, a token pool reuses the slot freed first, a paged pool the page freed last."""
    token, paged = TokenAllocator(4), PagedAllocator(4, 1)
    for pool in (token, paged):
        pool.alloc(4)
        pool.free([3])
        pool.free([1])
    assert token.alloc(2).tolist() == [3, 1]
    assert paged.alloc(2).tolist() == [1, 3]


@given(page_sizes, orders, st.integers(0, 200))
def test_slots_that_fill_no_page_are_unusable(page_size, order, size):
    """A size that is no multiple of the page size is floored, and just that many slots come out."""
    allocator = PagedAllocator(size, page_size, order=order)
    usable = size - size % page_size
    assert (allocator.size, allocator.num_pages, allocator.available_size()) == (usable, size // page_size, usable)
    assert allocator.alloc(usable).tolist() == list(range(page_size, page_size + usable))
    assert allocator.alloc(page_size) is None


@given(page_sizes, st.integers(1, 300), st.data())
def test_lowest_hands_out_the_lowest(page_size, num_pages, data):
    """Whatever was freed in whatever order, the pages that come out are the lowest free ones, ascending."""
    allocator = PagedAllocator(num_pages * page_size, page_size, order="lowest")
    allocator.alloc(data.draw(st.integers(0, num_pages)) * page_size)
    for _ in range(3):
        live = np.flatnonzero(allocator.page_states() == 1).tolist()
        gone = data.draw(st.lists(st.sampled_from(live), unique=True)) if live else []
        allocator.free([page * page_size for page in gone])
        free = np.flatnonzero(allocator.page_states() == 0)
        num_taken = data.draw(st.integers(0, free.size))
        slots = allocator.alloc(num_taken * page_size)
        assert (slots[::page_size] // page_size).tolist() == free[:num_taken].tolist()


@pytest.mark.parametrize(
    ("size", "page_size", "order"), [(-1, 1, "lifo"), (8, 0, "lifo"), (8, -4, "lifo"), (8, 4, "random")]
)
def test_a_pool_of_impossible_size_or_order_is_refused(size, page_size, order):
    """Negative sizes, pages of nothing and unknown orders raise `InvalidSize`."""
    with pytest.raises(InvalidSize):
        PagedAllocator(size, page_size, order=order)


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("page_size", PAGE_SIZES)
def test_an_empty_pool_gives_nothing_and_takes_nothing(page_size, order):
    """A pool of no pages answers every call: nothing asked is given, anything else is None or the usual error."""
    pair = Pair(page_size - 1, page_size, order)
    for num_pages in (0, 1):
        pair.alloc(num_pages * page_size)
        pair.extend([0], [num_pages], [-1])
        pair.decode([1] * num_pages, [-1] * num_pages)
    for slots in ([], [0], [page_size], [-1]):
        pair.free(slots)
        pair.free_segment(slots)
        pair.free_segments([(slots, 0), ([], 0)])
    pair.begin()
    pair.free([])
    pair.end()
    pair.clear()


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("page_size", PAGE_SIZES)
@pytest.mark.parametrize("num_pages", range(1, 6))
def test_a_full_pool_goes_round_and_round(num_pages, page_size, order):
    """Emptied and refilled in steps of every size, past every wrap of the list, a pool hands out the model's pages."""
    pair = Pair(num_pages * page_size, page_size, order)
    for step_pages in [*range(1, num_pages + 1), *range(num_pages, 0, -1)]:
        rows = [pair.alloc(step_pages * page_size) for _ in range(num_pages // step_pages)]
        assert pair.alloc(pair.real.available_size()) is not None
        for row in rows:
            pair.free(row)
            pair.alloc(step_pages * page_size)
        pair.free(pair.model.slots(pair.model.live))
