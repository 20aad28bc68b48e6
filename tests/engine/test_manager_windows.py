"""The manager of a model with windows against a model of sets and dicts, in any order of calls, audited after each."""

import numpy as np
import pytest
import torch
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, rule
from scenario import peeked
from test_manager_model import MAX_ROWS, SPACES, TOKENS, WIDTH, ManagerMachine
from windows_model import WindowModel

from kvstead.errors import OpenGroup
from kvstead.kernels import host
from tiny_model import LAYER_BYTES, tiny_manager, tiny_window_layout


def rule_of(span, *, is_chunked):
    """What a sequence of so many tokens needs of its windows to go on, said once more."""
    return lambda length: length - length % span if is_chunked else max(0, length - span)


class WindowMachine(ManagerMachine):
    """The same calls; the model follows, besides, which cached prefixes lost their windows."""

    @initialize(
        page_size=st.sampled_from([1, 2, 3, 4]),
        num_pages=st.integers(1, 9),
        num_window_pages=st.integers(1, 9),
        span=st.integers(1, 9),
        is_chunked=st.booleans(),
        pure=st.booleans(),
        is_caching=st.sampled_from([True, True, True, False]),
        policy=st.sampled_from(["lru", "mru", "lfu"]),
    )
    def build(self, page_size, num_pages, num_window_pages, span, is_chunked, pure, is_caching, policy):
        """An empty memory."""
        self.make(page_size, num_pages, num_window_pages, span, is_chunked, pure, is_caching, policy)

    def make(self, page_size, num_pages, num_window_pages, span, is_chunked, pure, is_caching, policy):
        """The memory and its model; the window side holds at least the window of a row."""
        least = min(-(-span // page_size), -(-WIDTH // page_size), *([] if pure else [num_pages]))
        num_window_pages = max(num_window_pages, least)
        if pure:
            sides = {"num_slots": num_window_pages * page_size}
        else:
            sides = {"num_slots": num_pages * page_size, "num_window_slots": num_window_pages * page_size}
        self.manager = tiny_manager(
            page_size=page_size,
            layout=tiny_window_layout(span, chunked=is_chunked, pure=pure),
            prefix_cache=is_caching,
            policy=policy,
            max_requests=MAX_ROWS,
            max_length=WIDTH,
            **sides,
        )
        if pure:
            num_pages = self.manager.num_slots // page_size  # names, which never run out before the windows do
            assert num_pages >= MAX_ROWS * -(-WIDTH // page_size) + num_window_pages
        needed_from = rule_of(span, is_chunked=is_chunked)
        self.model = WindowModel(num_pages, page_size, num_window_pages, needed_from, is_caching=is_caching)
        self.piece_pages = -(-2 * span // page_size)  # what goes at once, not to cut a path into crumbs
        self.is_pure = pure

    @rule(tokens=TOKENS, space=st.sampled_from(SPACES))
    def peek(self, tokens, space):
        """A look tells what can be continued, and what could be had of both sides beside it."""
        model = self.model
        cached = model.usable(space, tokens[:-1])
        prefixes = model.prefixes(space, tokens, cached)
        needed = prefixes[model.needed_from(cached) // model.page_size :]
        most = model.most_window_room(needed)
        seen = peeked(self.manager, tokens, namespace=space[0], keys=space[1])
        self.follow_windows()
        assert seen == (cached, model.room(prefixes), model.window_room(needed))
        assert min(most, 1) <= seen[2] <= most

    @rule()
    def count_window_room(self):
        """What could be had of the window side when no row keeps more than it needs."""
        most = self.model.most_window_room()
        assert self.manager.window_room() == most
        self.follow_windows()
        assert all(row.window_start >= self.model.frontier(row) for row in self.model.rows.values())

    def follow_windows(self):
        """Rows may have given back windows that they need no more."""
        model = self.model
        for number, row in model.rows.items():
            start = int(self.manager.window_start[number])
            assert row.window_start <= start <= max(row.window_start, model.frontier(row))
            model.move_to(row, start)

    def grow(self, numbers, lengths, call):
        """Rows grow if and only if both sides have the pages when everything that no row needs is evicted."""
        model, step = self.model, self.model.page_size
        rows = [model.rows[number] for number in numbers]
        new_pages = sum(
            model.pages_for(end) - model.pages_for(row.length) for row, end in zip(rows, lengths, strict=True)
        )
        fits = new_pages <= min(model.room(), model.most_window_room())
        short, window_short = new_pages - model.num_free(), new_pages - model.num_free_windows()
        if fits and max(short, window_short) > 0 and model.parked is not None:
            with pytest.raises(OpenGroup):
                call()
            self.follow_windows()
            return
        slots = call()
        self.follow_windows()
        if not fits:
            assert slots is None
            return
        if new_pages == len(rows) == 1:  # a row that opens a page keeps no window of its own that it does not need
            assert max(rows[0].window_start, rows[0].protected) >= model.frontier(rows[0])
        window_short = new_pages - model.num_free_windows()
        self.follow_evictions(short)
        self.follow_tombstones(window_short)
        slots = slots.tolist()
        for row, end in zip(rows, lengths, strict=True):
            new, slots = slots[: end - row.length], slots[end - row.length :]
            row.pages += [slot // step for position, slot in enumerate(new, row.length) if position % step == 0]
            row.length = end
        assert slots == []

    def follow_evictions(self, short):
        """Full pages go only when full pages are short, and take their windows with them."""
        self.num_windows_before = len(self.model.windows)
        super().follow_evictions(short)
        self.model.windows &= set(self.model.cached)

    def follow_tombstones(self, short):
        """Take out of the model which windows went alone: not many more than were short, none that are needed."""
        model = self.model
        short -= self.num_windows_before - len(model.windows)
        window_pages = self.manager.allocator.window_pages
        dead = {key for key in model.windows if window_pages[model.cached[key]] == 0}
        assert len(dead) >= short
        assert len(dead) <= max(0, short + self.piece_pages if short > 0 else 0)
        assert not dead & model.locked_windows()
        model.windows -= dead

    def check_rows(self):
        """A row has window slots from its window's start on, its own pages none before that."""
        manager, model = self.manager, self.model
        states = manager.allocator.window_page_states()
        for number, row in model.rows.items():
            assert manager.window_start[number] == row.window_start <= model.frontier(row)
            slots = torch.tensor(manager.table.read(number))
            window_slots = manager.window_slots(slots).tolist()
            shared = model.prefixes(row.space, row.tokens, row.protected)
            for position, slot in enumerate(window_slots):
                page, offset = divmod(position, model.page_size)
                is_shared = page < len(shared)
                is_live = shared[page] in model.windows if is_shared else position >= row.window_start
                assert is_live or position < row.window_start
                assert (slot > 0) == is_live
                if is_live:
                    assert states[slot // model.page_size] == host.LIVE
                    assert slot % model.page_size == offset

    def check_stats(self):
        """Bytes by side and state add up, and are the model's pages."""
        manager, model = self.manager, self.model
        self.check_rows()
        parked = len(model.parked or ())
        idle = len(model.cached.keys() - model.locked())
        idle_windows = len(model.windows - model.locked_windows())
        free, free_windows = model.num_free(), model.num_free_windows()
        step = model.page_size
        assert manager.tree.num_tombstone_tokens == (len(model.cached) - len(model.windows)) * step
        assert manager.tree.window_evictable_tokens == idle_windows * step
        assert manager.tree.window_protected_tokens == (len(model.windows) - idle_windows) * step
        assert manager.live_tokens() == (model.num_pages - free - idle - parked) * step
        busy = model.num_window_pages - free_windows - idle_windows - model.parked_windows
        assert manager.window_live_tokens() == busy * step
        stats = manager.stats()
        sides = {"window": (model.num_window_pages, idle_windows, model.parked_windows, free_windows)}
        if not self.is_pure:
            sides = {"full": (model.num_pages, idle, parked, free), **sides}
        assert list(stats.by_side) == list(sides)
        for name, (num_pages, cached, side_parked, side_free) in sides.items():
            page_bytes = LAYER_BYTES * (2 if self.is_pure else 1) * step
            assert stats.by_side[name].by_state == {
                "live": (num_pages - cached - side_parked - side_free) * page_bytes,
                "cached": cached * page_bytes,
                "parked": side_parked * page_bytes,
                "free": side_free * page_bytes,
                "padding": page_bytes,
            }
            assert stats.by_side[name].total_bytes == (num_pages + 1) * page_bytes
        for state, num_bytes in stats.by_state.items():
            assert num_bytes == sum(side.by_state[state] for side in stats.by_side.values())
        assert stats.total_bytes == sum(stats.by_state.values())

    def teardown(self):
        """When all has ended, nothing is lost on either side."""
        if not hasattr(self, "manager"):
            return
        if self.model.parked is not None:
            self.end_group()
        for number in list(self.model.rows):
            self.manager.abort(number)
        assert self.manager.flush()
        allocator = self.manager.allocator
        assert allocator.full_available_size() == self.manager.num_slots
        assert allocator.swa_available_size() == self.manager.num_window_slots
        assert np.count_nonzero(allocator.page_states() == host.LIVE) == 0
        assert np.count_nonzero(allocator.window_page_states() == host.LIVE) == 0


class BusyMachine(WindowMachine):
    """The same without the calls that change nothing or clear all, on sizes at which prefixes meet and are lost."""

    call_wrongly = append = begin_group = flush = match = None

    @initialize(
        page_size=st.sampled_from([1, 1, 2, 3]),
        num_pages=st.integers(6, 16),
        num_window_pages=st.integers(4, 10),
        span=st.integers(1, 6),
        is_chunked=st.booleans(),
        pure=st.sampled_from([False, False, True]),
        policy=st.sampled_from(["lru", "mru", "lfu"]),
    )
    def build(self, page_size, num_pages, num_window_pages, span, is_chunked, pure, policy):
        """An empty memory."""
        self.make(page_size, num_pages, num_window_pages, span, is_chunked, pure, True, policy)


TestManagerWithWindows = WindowMachine.TestCase
TestManagerWithWindows.settings = settings(stateful_step_count=40)
TestBusyManagerWithWindows = BusyMachine.TestCase
TestBusyManagerWithWindows.settings = settings(stateful_step_count=60)
