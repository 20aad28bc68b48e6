"""Any sequence of calls, legal or not, on a pool of any kind."""

import pytest
from allocator_pair import FORMS, ORDERS, PAGE_SIZES, Pair
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from kvstead.allocators import PagedAllocator, TokenAllocator
from kvstead.errors import FreeGroupError

forms = st.sampled_from(sorted(FORMS))
tags = st.integers(-(2**31), 2**31 - 1)


class Interrupted(Exception):
    """What happens in the middle of a step."""


def interrupt(wanted):
    if wanted:
        raise Interrupted


class AllocatorMachine(RuleBasedStateMachine):
    """Requests with rows come, grow and go; in between somebody makes every mistake there is."""

    page_sizes = PAGE_SIZES
    cls = PagedAllocator

    def __init__(self):
        super().__init__()
        self.pair = None
        self.rows = []  # slots of each request; its pages are live and no other row's

    @initialize(data=st.data(), order=st.sampled_from(ORDERS), num_pages=st.integers(0, 9))
    def make(self, data, order, num_pages):
        """A pool of any size; a few slots too many are unusable."""
        page_size = data.draw(st.sampled_from(self.page_sizes))
        self.page_size = page_size
        rest = data.draw(st.integers(0, page_size - 1))
        self.pair = Pair(num_pages * page_size + rest, page_size, order, cls=self.cls)

    # A request's life.

    @rule(num_pages=st.integers(0, 4), owner=tags)
    def alloc(self, num_pages, owner):
        """Whole pages for a new request."""
        slots = self.pair.alloc(num_pages * self.page_size, owner)
        if slots:
            self.rows.append(slots)

    @rule(data=st.data(), form=forms)
    def extend(self, data, form):
        """Some rows grow by any length, new ones begin."""
        chosen = [*self.some_rows(data), *([] for _ in range(data.draw(st.integers(0, 2))))]
        steps = [data.draw(st.integers(0, 2 * self.page_size + 1)) for _ in chosen]
        lengths = [len(row) for row in chosen]
        grown = [length + step for length, step in zip(lengths, steps, strict=True)]
        owners = data.draw(st.none() | st.lists(tags, min_size=len(chosen), max_size=len(chosen)))
        slots = self.pair.extend(lengths, grown, [row[-1] if row else -1 for row in chosen], owners, form)
        if slots is None:
            return
        for row, step in zip(chosen, steps, strict=True):
            fresh = not row
            row.extend(slots[:step])
            del slots[:step]
            if fresh and row:
                self.rows.append(row)

    @rule(data=st.data(), form=forms)
    def decode(self, data, form):
        """Some rows grow by a token."""
        chosen = self.some_rows(data)
        slots = self.pair.decode([len(row) + 1 for row in chosen], [row[-1] for row in chosen], form=form)
        for row, slot in zip(chosen, slots or [], strict=False):
            row.append(slot)

    @rule(data=st.data(), form=forms)
    def free_row(self, data, form):
        """A request ends: its slots in any order, some of a page's left out or named twice."""
        for row in self.some_rows(data)[:1]:
            per_page = [row[at : at + self.page_size] for at in range(0, len(row), self.page_size)]
            chosen = [data.draw(st.lists(st.sampled_from(part), min_size=1, max_size=3)) for part in per_page]
            slots = [slot for part in chosen for slot in (part if self.page_size > 1 else part[:1])]
            self.pair.free(data.draw(st.permutations(slots)), form)
            self.drop(row)

    @rule(data=st.data(), form=forms)
    def free_tail(self, data, form):
        """A row is cut at a page boundary."""
        for row in self.some_rows(data)[:1]:
            start = data.draw(st.integers(0, (len(row) - 1) // self.page_size)) * self.page_size
            self.pair.free_segment(row[start:], start, form)
            del row[start:]
            if not row:
                self.drop(row)

    @rule(data=st.data(), form=forms)
    def free_rows(self, data, form):
        """Several requests end in one call."""
        chosen = self.some_rows(data)
        self.pair.free_segments([(list(row), 0) for row in chosen], form)
        for row in chosen:
            self.drop(row)

    @rule(data=st.data(), form=forms)
    def free_pages(self, data, form):
        """Any live pages go; rows that lose one are forgotten."""
        live = sorted(self.pair.model.live)
        pages = data.draw(st.lists(st.sampled_from(live), unique=True)) if live else []
        self.pair.free(self.pair.model.slots(pages), form)
        for row in list(self.rows):
            if any(slot // self.page_size in pages for slot in row):
                self.drop(row)

    @rule()
    def clear(self):
        """Start anew."""
        self.pair.clear()
        self.rows.clear()

    # Groups.

    @rule()
    def begin(self):
        """Open a group; a second `begin` is refused."""
        self.pair.begin()

    @rule()
    def end(self):
        """Close the group; a stray `end` is nothing."""
        self.pair.end()

    @precondition(lambda self: self.pair.model.group is None)
    @rule(data=st.data(), form=forms, interrupted=st.booleans())
    def with_group(self, data, form, interrupted):
        """A `with` block that frees, maybe tries to nest, and maybe fails: its frees take effect at the end."""
        pair = self.pair
        try:
            with pair.real.defer_frees():
                pair.model.begin()
                pair.look()
                self.free_row(data, form)
                self.free_rows(data, form)
                with pytest.raises(FreeGroupError), pair.real.defer_frees():
                    pass
                pair.check()
                interrupt(interrupted)
        except Interrupted:
            assert interrupted
        pair.model.end()
        pair.look()

    # Mistakes, and what only may be one.

    @rule(data=st.data(), form=forms)
    def free_anything(self, data, form):
        """Any slots in and around the pool."""
        self.pair.free(data.draw(st.lists(self.any_slot(), max_size=6)), form)
        self.forget_freed()

    @rule(data=st.data(), form=forms)
    def free_live_and_one_more(self, data, form):
        """Good slots, and any slot among them: all are freed or none."""
        slots = [slot for row in self.some_rows(data) for slot in row]
        slots.insert(data.draw(st.integers(0, len(slots))), data.draw(self.any_slot()))
        self.pair.free(slots, form)
        self.forget_freed()

    @rule(data=st.data(), form=forms)
    def free_damaged_segments(self, data, form):
        """Rows with one slot changed, a shifted start, or named twice."""
        pairs = [(list(row), 0) for row in self.some_rows(data)]
        pairs += data.draw(st.lists(st.sampled_from(pairs), max_size=1)) if pairs else []
        pairs.append((data.draw(st.lists(self.any_slot(), max_size=3)), 0))
        at = data.draw(st.integers(0, len(pairs) - 1))
        slots, start = pairs[at]
        slots = list(slots)
        if slots and data.draw(st.booleans()):
            slots[data.draw(st.integers(0, len(slots) - 1))] = data.draw(self.any_slot())
        else:
            start = data.draw(st.integers(-2 * self.page_size, 2 * self.page_size))
        pairs[at] = (slots, start)
        self.pair.free_segments(pairs, form)
        self.pair.free_segment(*pairs[at], form)
        self.forget_freed()

    @rule(data=st.data(), form=forms)
    def grow_anything(self, data, form):
        """Rows of any lengths behind any slots, real ones among them, in columns that may not match."""
        length = st.integers(-1, 3 * self.page_size)
        count = data.draw(st.integers(1, 3))
        prefix, grown, last, owners = [], [], [], []
        for _ in range(count):
            prefix.append(data.draw(length))
            grown.append(prefix[-1] + data.draw(st.integers(-1, 2 * self.page_size)))
            row = data.draw(st.sampled_from(self.rows)) if self.rows and data.draw(st.booleans()) else None
            last.append(data.draw(self.any_slot()) if row is None else row[min(len(row), max(prefix[-1], 1)) - 1])
            owners.append(data.draw(st.integers(-(2**31) - 1, 2**31)) if form == "list" else 3)
        if data.draw(st.integers(0, 9)) == 0:
            last.pop()
        self.pair.extend(prefix, grown, last, data.draw(st.sampled_from([None, owners, owners[:-1]])), form)
        self.pair.decode(grown, last, form=form)

    @rule(num_tokens=st.integers(-20, 200), owner=st.integers(-(2**31) - 1, 2**31))
    def alloc_anything(self, num_tokens, owner):
        """Any number of tokens."""
        self.pair.alloc(num_tokens, owner)

    @invariant()
    def rows_keep_their_place_in_pages(self):
        """Each row is congruent with its positions, and no two rows share a slot."""
        slots = [slot for row in self.rows for slot in row]
        assert len(set(slots)) == len(slots)
        for row in self.rows:
            assert all(slot % self.page_size == at % self.page_size for at, slot in enumerate(row))

    def some_rows(self, data):
        """Any rows, in any order."""
        chosen = data.draw(st.lists(st.integers(0, len(self.rows) - 1), unique=True)) if self.rows else []
        return [self.rows[at] for at in chosen]

    def any_slot(self):
        """A slot in the pool or close to it."""
        return st.integers(-self.page_size - 1, (self.pair.model.num_pages + 2) * self.page_size)

    def drop(self, row):
        """Forget a row."""
        self.rows = [other for other in self.rows if other is not row]

    def forget_freed(self):
        """Forget rows that lost pages by accident."""
        self.rows = [row for row in self.rows if all(slot // self.page_size in self.pair.model.live for slot in row)]


class TokenMachine(AllocatorMachine):
    """The same with `TokenAllocator`."""

    page_sizes = (1,)
    cls = TokenAllocator


TestPagedAllocator = AllocatorMachine.TestCase
TestTokenAllocator = TokenMachine.TestCase
TestPagedAllocator.settings = TestTokenAllocator.settings = settings(stateful_step_count=40)
