"""The manager against a model of sets and dicts, in any order of calls, audited after each."""

import numpy as np
import pytest
from fake_model import SPACES
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from manager_model import ManagerModel
from scenario import PAGE, peeked

from kvstead.errors import InvalidSize, OpenGroup, RequestError, RowOverflow, StaleRow
from tiny_model import tiny_manager

TOKENS = st.one_of(  # prefixes of one prompt, and others that part from it somewhere
    st.integers(1, 11).map(lambda length: [0] * length),
    st.lists(st.integers(0, 1), min_size=1, max_size=11),
)
WIDTH = 14
MAX_ROWS = 3


class ManagerMachine(RuleBasedStateMachine):
    """Random calls; the model follows what it cannot know: which pages were handed out, which prefixes evicted."""

    @initialize(
        page_size=st.sampled_from([1, 2, 3, 4]),
        num_pages=st.integers(1, 9),
        policy=st.sampled_from(["lru", "mru", "lfu"]),
    )
    def build(self, page_size, num_pages, policy):
        """An empty memory."""
        self.manager = tiny_manager(
            num_pages * page_size, page_size, policy=policy, max_requests=MAX_ROWS, max_length=WIDTH
        )
        self.model = ManagerModel(num_pages, page_size)
        self.generations = {}

    def any_row(self, data):
        """The number of a row that is out."""
        return data.draw(st.sampled_from(sorted(self.model.rows)))

    def some_rows(self, data):
        """Numbers of rows that are out, in any order."""
        return data.draw(st.lists(st.sampled_from(sorted(self.model.rows)), unique=True, min_size=1))

    @rule(tokens=TOKENS, space=st.sampled_from(SPACES))
    def peek(self, tokens, space):
        """A look tells what is cached and what could be had beside it."""
        found = self.model.longest(space, tokens[:-1])
        room = self.model.room(also=self.model.prefixes(space, tokens, found))
        assert peeked(self.manager, tokens, namespace=space[0], keys=space[1]) == (found, room, 0)

    @rule(tokens=TOKENS, space=st.sampled_from(SPACES))
    def match(self, tokens, space):
        """A row opens on the longest cached prefix, as long as there are rows."""
        self.open_row(tokens, space)

    def open_row(self, tokens, space):
        """Match and compare."""
        lease = self.manager.match(tokens, namespace=space[0], keys=space[1], owner=7)
        if len(self.model.rows) == MAX_ROWS:
            assert lease is None
            return
        assert lease.row not in self.model.rows
        found = self.model.longest(space, tokens[:-1])
        cached = self.model.usable(space, tokens[:-1])
        assert lease == (lease.row, cached, found - cached)
        self.model.open(lease.row, space, tokens)

    @rule(
        tokens=TOKENS,
        space=st.sampled_from([*SPACES[:1] * 3, *SPACES]),
        chunk=st.integers(1, 11),
        is_shared=st.booleans(),
        how=st.sampled_from(["stay", "finish", "finish", "abort"]),
    )
    def serve(self, tokens, space, chunk, is_shared, how):
        """A request comes, computes its prompt chunk by chunk as far as it fits, and stays or ends."""
        if len(self.model.rows) == MAX_ROWS:
            return
        known = set(self.model.rows)
        self.open_row(tokens, space)
        (number,) = set(self.model.rows) - known
        row = self.model.rows[number]
        while row.computed < len(tokens):
            end = min(row.computed + chunk, len(tokens))
            self.grow([number], [end], lambda end=end: self.manager.extend([number], [end]))
            if row.length < end:
                break
            self.manager.commit([number], [end], [0])
            self.model.commit(row, end, 0)
            if is_shared:
                self.manager.cache(number)
                self.model.cache(row)
            self.books_agree()
        if how != "stay":
            self.end_row(number, how)

    def grow(self, numbers, lengths, call):
        """What `extend` and `decode` have in common: capacity, eviction, and the slots that come back."""
        model, step = self.model, self.model.page_size
        rows = [model.rows[number] for number in numbers]
        new_pages = [model.pages_for(end) - model.pages_for(row.length) for row, end in zip(rows, lengths, strict=True)]
        short = sum(new_pages) - model.num_free()
        if sum(new_pages) <= model.room() and short > 0 and model.parked is not None:
            with pytest.raises(OpenGroup):
                call()
            return
        slots = call()
        if sum(new_pages) > model.room():
            assert slots is None
            return
        self.follow_evictions(short)
        slots = slots.tolist()
        for row, end in zip(rows, lengths, strict=True):
            new, slots = slots[: end - row.length], slots[end - row.length :]
            for position, slot in enumerate(new, row.length):
                if position % step == 0:
                    row.pages.append(slot // step)
                assert slot == row.pages[position // step] * step + position % step
            row.length = end
        assert slots == []

    def follow_evictions(self, short):
        """Take out of the model what the tree gave up: nothing needlessly, nothing in use, no prefix of what stays."""
        model = self.model
        held = set(self.manager.tree.held_pages().tolist())
        gone = {key for key, page in model.cached.items() if page not in held}
        assert len(gone) >= short
        assert short > 0 or not gone
        assert not gone & model.locked()
        for key in gone:
            del model.cached[key]
        for namespace, pairs in model.cached:
            assert not pairs[: -model.page_size] or (namespace, pairs[: -model.page_size]) in model.cached

    def follow_windows(self):
        """Nothing, where no layer has a window."""

    @precondition(lambda self: self.model.rows)
    @rule(data=st.data())
    def growth(self, data):
        """A row can be extended by what it is said to be able to grow by, and by no more."""
        model, number = self.model, self.any_row(data)
        length = model.rows[number].length
        wanted = data.draw(st.integers(0, WIDTH - length))
        most = model.most_pages(model.pages_for(length + wanted) - model.pages_for(length))
        assert self.manager.growth(number, wanted) == min(wanted, -length % model.page_size + most * model.page_size)
        self.follow_windows()

    @precondition(lambda self: self.model.rows)
    @rule(data=st.data())
    def extend(self, data):
        """Rows grow to any length, or not at all."""
        numbers = self.some_rows(data)
        lengths = [data.draw(st.integers(self.model.rows[number].length, WIDTH)) for number in numbers]
        self.grow(numbers, lengths, lambda: self.manager.extend(numbers, lengths))

    @precondition(lambda self: any(row.length < WIDTH for row in self.model.rows.values()))
    @rule(data=st.data())
    def decode(self, data):
        """Rows grow by a slot each."""
        numbers = [number for number in self.some_rows(data) if self.model.rows[number].length < WIDTH]
        lengths = [self.model.rows[number].length + 1 for number in numbers]
        self.grow(numbers, lengths, lambda: self.manager.decode(numbers))

    @precondition(lambda self: self.model.rows)
    @rule(data=st.data())
    def commit(self, data):
        """Computed lengths move on, and a new token is known where all were computed."""
        numbers = self.some_rows(data)
        ends, sampled = [], []
        for number in numbers:
            row = self.model.rows[number]
            ends.append(data.draw(st.integers(row.computed, min(row.length, len(row.tokens)))))
            sampled.append(data.draw(st.integers(0, 1)))
        self.manager.commit(numbers, ends, sampled)
        for number, end, token in zip(numbers, ends, sampled, strict=True):
            self.model.commit(self.model.rows[number], end, token)

    @precondition(lambda self: self.model.rows)
    @rule(data=st.data(), tokens=st.lists(st.integers(0, 1), max_size=4))
    def append(self, data, tokens):
        """Accepted drafts become known."""
        number = self.any_row(data)
        row = self.model.rows[number]
        if tokens and len(row.tokens) + len(tokens) > WIDTH:
            with pytest.raises(RowOverflow):
                self.manager.append(number, tokens)
            return
        self.manager.append(number, tokens)
        row.tokens += tokens

    @precondition(lambda self: self.model.rows)
    @rule(data=st.data())
    def cache(self, data):
        """Computed pages are shared, duplicates given back."""
        number = self.any_row(data)
        self.manager.cache(number)
        self.model.cache(self.model.rows[number])

    @precondition(lambda self: self.model.rows)
    @rule(data=st.data(), how=st.sampled_from(["finish", "retract", "abort"]))
    def end(self, data, how):
        """A row ends, and its tokens are told when it is to come back."""
        self.end_row(self.any_row(data), how)

    def end_row(self, number, how):
        """End a row in one of three ways."""
        row = self.model.rows[number]
        released = self.manager.rows.num_released
        told = getattr(self.manager, how)(number)
        assert (told is None) == (how != "retract")
        assert told is None or told.tolist() == row.tokens
        assert self.manager.rows.num_released == released + 1
        if how != "abort":
            self.model.cache(row)
        self.model.end(number)

    @precondition(lambda self: self.model.parked is None)
    @rule()
    def begin_group(self):
        """Frees are parked from now on."""
        self.group = self.manager.defer_frees()
        self.group.__enter__()
        self.model.begin_group()

    @precondition(lambda self: self.model.parked is not None)
    @rule()
    def end_group(self):
        """What was parked is free."""
        self.group.__exit__(None, None, None)
        self.model.end_group()

    @rule()
    def flush(self):
        """All prefixes go, or nothing happens."""
        is_possible = not self.model.rows and self.model.parked is None
        assert self.manager.flush() is is_possible
        if is_possible:
            self.model.clear()

    @rule(data=st.data())
    def call_wrongly(self, data):
        """A wrong call raises its error; the invariant sees that nothing has changed."""
        manager, rows = self.manager, self.model.rows
        stale = data.draw(st.sampled_from([-1, 0, MAX_ROWS + 1, 10**12, *(set(range(1, MAX_ROWS + 1)) - set(rows))]))
        calls = [
            (RequestError, lambda: manager.match([])),
            (RequestError, lambda: manager.match([0, -1])),
            (RequestError, lambda: manager.match([2**31])),
            (RowOverflow, lambda: manager.match([0] * (WIDTH + 1))),
            (InvalidSize, lambda: manager.match([0], owner=2**31)),
            (StaleRow, lambda: manager.extend([*rows, stale], [WIDTH] * (len(rows) + 1))),
            (StaleRow, lambda: manager.decode([stale])),
            (StaleRow, lambda: manager.commit([stale], [0], [0])),
            (StaleRow, lambda: manager.append(stale, [1])),
            (StaleRow, lambda: manager.cache(stale)),
            (StaleRow, lambda: manager.finish(stale)),
            (StaleRow, lambda: manager.retract(stale)),
            (StaleRow, lambda: manager.abort(stale)),
            (StaleRow, lambda: manager.known_tokens(stale)),
        ]
        if manager.prefix_cache:  # without one the tokens are not read
            calls.append((RequestError, lambda: manager.peek([0, -1, 0])))
        if rows:
            number = self.any_row(data)
            row, others = rows[number], [other for other in rows if other != number]
            longer = [WIDTH] * len(others)
            calls += [
                (RowOverflow, lambda: manager.extend([*others, number], [*longer, WIDTH + 1])),
                (InvalidSize, lambda: manager.extend([*others, number], [*longer, row.length - 1])),
                (InvalidSize, lambda: manager.extend([number, number], [WIDTH, WIDTH])),
                (InvalidSize, lambda: manager.extend([number], [])),
                (InvalidSize, lambda: manager.commit([number], [row.computed - 1], [0])),
                (InvalidSize, lambda: manager.commit([number], [min(row.length, len(row.tokens)) + 1], [0])),
                (InvalidSize, lambda: manager.commit([number, number], [row.computed, row.computed], [0, 0])),
                (InvalidSize, lambda: manager.commit([number], [row.computed], [])),
                (RequestError, lambda: manager.append(number, [-1])),
                (RowOverflow, lambda: manager.append(number, [0] * (WIDTH + 1))),
            ]
            if row.length < WIDTH:
                calls.append((InvalidSize, lambda: manager.decode([number, number])))
            else:
                calls.append((RowOverflow, lambda: manager.decode([number])))
            if row.length >= len(row.tokens):
                bad = data.draw(st.sampled_from([-1, 2**31]))
                calls.append((RequestError, lambda: manager.commit([number], [len(row.tokens)], [bad])))
        error, call = data.draw(st.sampled_from(calls))
        before = self.manager.stats()
        with pytest.raises(error):
            call()
        assert self.manager.stats() == before

    @invariant()
    def books_agree(self):
        """The manager's own audit passes, and rows, counters and bytes are the model's."""
        if not hasattr(self, "manager"):
            return
        manager, model = self.manager, self.model
        manager.audit()
        assert manager.table.live_rows().tolist() == sorted(model.rows)
        for number, row in model.rows.items():
            assert manager.known_tokens(number).tolist() == row.tokens
            assert (manager.protected[number], manager.computed[number]) == (row.protected, row.computed)
            step = model.page_size
            slots = [page * step + offset for page in row.pages for offset in range(step)]
            assert manager.table.read(number).tolist() == slots[: row.length]
        own = [page for row in model.rows.values() for page in model.own_pages(row)]
        shared = list(model.cached.values())
        parked = list(model.parked or ())
        assert len({*own, *shared, *parked}) == len(own) + len(shared) + len(parked)
        assert manager.tree.held_pages().tolist() == sorted(shared)
        assert manager.capacity.most(PAGE) == model.room()
        self.check_stats()

    def check_stats(self):
        """Bytes by state add up, and are the model's pages."""
        model, stats = self.model, self.manager.stats()
        page_bytes = self.manager.token_bytes * model.page_size
        cached = len(set(model.cached) - model.locked())
        assert stats.by_state == {
            "live": (model.num_pages - model.num_free() - cached - len(model.parked or ())) * page_bytes,
            "cached": cached * page_bytes,
            "parked": len(model.parked or ()) * page_bytes,
            "free": model.num_free() * page_bytes,
            "padding": page_bytes,
        }
        assert sum(stats.by_state.values()) == stats.total_bytes

    def teardown(self):
        """When all has ended, nothing is lost."""
        if not hasattr(self, "manager"):
            return
        if self.model.parked is not None:
            self.end_group()
        for number in list(self.model.rows):
            self.manager.abort(number)
        assert self.manager.flush()
        assert self.manager.allocator.available_size() == self.manager.num_slots
        assert np.count_nonzero(self.manager.allocator.page_states() == 1) == 0


TestManager = ManagerMachine.TestCase
TestManager.settings = settings(stateful_step_count=40)
