"""Any sequence of calls, legal or not, on pools of two sides."""

from allocator_pair import FORMS, ORDERS, PAGE_SIZES
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, rule
from test_allocator_machine import AllocatorMachine
from window_pair import WindowPair

from kvstead.allocators import PureSWAAllocator

forms = st.sampled_from(sorted(FORMS))
tags = st.integers(-(2**31), 2**31 - 1)


class WindowMachine(AllocatorMachine):
    """What happens to a pool without windows, and: windows move on, come back, and are asked for."""

    @initialize(data=st.data(), order=st.sampled_from(ORDERS), num_pages=st.integers(0, 9))
    def make(self, data, order, num_pages):
        """Two sides of any size; a few slots too many are unusable."""
        page_size = self.page_size = data.draw(st.sampled_from(PAGE_SIZES))
        rest = st.integers(0, page_size - 1)
        sizes = [pages * page_size + data.draw(rest) for pages in (num_pages, data.draw(st.integers(0, 9)))]
        self.pair = WindowPair(*sizes, page_size, order)

    @rule(data=st.data(), form=forms, tag=tags, new=st.booleans())
    def extend_tail(self, data, form, tag, new):
        """A row grows with windows under its end alone."""
        row = [] if new or not self.rows else data.draw(st.sampled_from(self.rows))
        seq = len(row) + data.draw(st.integers(0, 4 * self.page_size))
        starts = range(-(-len(row) // self.page_size) * self.page_size, seq + 1, self.page_size)
        start = data.draw(st.sampled_from(starts)) if starts else seq
        slots = self.pair.tail([len(row)], [seq], row[-1:] or [-1], seq - start, [tag], form)
        if not row and slots:
            self.rows.append(row)
        row.extend(slots or [])

    @rule(data=st.data(), form=forms)
    def slide(self, data, form):
        """The window of some rows has moved on, whole pages each time."""
        pairs = []
        for row in self.some_rows(data):
            first = data.draw(st.integers(0, (len(row) - 1) // self.page_size)) * self.page_size
            last = data.draw(st.integers(0, len(row) // self.page_size)) * self.page_size
            pairs.append((row[first:last], first))
        slots = [slot for part, _ in pairs for slot in part]
        match data.draw(st.integers(0, 3)):
            case 0:
                self.pair.free_swa(data.draw(st.permutations(slots)), form)
            case 1:
                self.pair.free_swa_segments(pairs, form)
            case 2:
                for part, first in pairs:
                    self.pair.free_swa_segment(part, first, form)
            case _:
                self.pair.free_window_pages([slot // self.page_size for slot in slots])

    @rule(data=st.data(), form=forms)
    def free_full_rows(self, data, form):
        """Requests end by the other names of `free`."""
        for row in self.some_rows(data):
            if data.draw(st.booleans()):
                self.pair.free_full(list(row)[:: self.page_size], form)
            else:
                self.pair.free_full_segments([(list(row), 0)], form)
            self.drop(row)

    @rule(data=st.data(), form=forms)
    def move(self, data, form):
        """Pages that have lost their window take over those of others."""
        model = self.pair.model
        givers = data.draw(st.permutations(sorted(model.links)))
        takers = data.draw(st.permutations(sorted(set(model.live) - set(model.links))))
        count = data.draw(st.integers(0, min(len(givers), len(takers))))
        offsets = data.draw(st.lists(st.integers(0, self.page_size - 1), min_size=1, max_size=3))
        pairs = [
            (giver * self.page_size + offset, taker * self.page_size + offset)
            for giver, taker in zip(givers[:count], takers[:count], strict=True)
            for offset in offsets
        ]
        pairs = data.draw(st.permutations(pairs))
        self.pair.move_window([src for src, _ in pairs], [dst for _, dst in pairs], form)

    @rule(data=st.data(), form=forms)
    def ask(self, data, form):
        """Where the window side of any slots lies."""
        self.pair.window_slots(data.draw(st.lists(self.any_slot(), max_size=6)), form)
        self.pair.window_slots([-1, 0, *(slot for row in self.some_rows(data) for slot in row)], form)

    @rule(data=st.data(), form=forms)
    def any_window_call(self, data, form):
        """Any slots, pairs, stretches and tails in and around the pool."""
        pair = self.pair
        slots = st.lists(self.any_slot(), max_size=4)
        if data.draw(st.booleans()):
            pair.free_swa(data.draw(slots), form)
            pair.free_window_pages(data.draw(st.lists(st.integers(-1, pair.model.num_pages + 1), max_size=3)))
        start = data.draw(st.integers(-1, 1)) * data.draw(st.sampled_from([1, self.page_size]))
        stretches = [(row, 0) for row in self.some_rows(data)] + [(data.draw(slots), start)]
        pair.free_swa_segments(stretches, form)
        pair.move_window(data.draw(slots), data.draw(slots), form)
        prefix, step, tail_len = (data.draw(st.integers(-1, 2 * self.page_size)) for _ in range(3))
        columns = [[prefix], [prefix + step], [data.draw(self.any_slot())]]
        if data.draw(st.integers(0, 9)) == 0:
            columns = [column * 2 for column in columns]
        pair.tail(*columns, tail_len, data.draw(st.sampled_from([None, [5], [5, 6], [2**31]])), "list")


class PureMachine(AllocatorMachine):
    """A pool that is its own window side."""

    cls = PureSWAAllocator


TestSWAAllocator = WindowMachine.TestCase
TestPureSWAAllocator = PureMachine.TestCase
TestSWAAllocator.settings = TestPureSWAAllocator.settings = settings(stateful_step_count=40)
