"""Any calls, legal or not, on pools that share an arena or a count of bytes, held against models after every call."""

from functools import partial

from allocator_pair import FORMS, ORDERS, PAGE_SIZES, Pair
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, precondition, rule
from test_allocator_machine import AllocatorMachine
from test_window_machine import WindowMachine
from unified_pair import CountedPair, CountedUnpairedPair, UnifiedPair, UnpairedPair, one_pool

from kvstead.pools import Place

forms = st.sampled_from(sorted(FORMS))
orders = st.sampled_from(ORDERS)


class OnePoolMachine(AllocatorMachine):
    """An allocator with an arena for itself does what a static one does, ids and errors too."""

    @initialize(
        data=st.data(), order=orders, num_pages=st.integers(1, 9), place=st.sampled_from(Place), eager=st.booleans()
    )
    def make(self, data, order, num_pages, place, eager):
        """An arena of any size, the pool at any place."""
        page_size = self.page_size = data.draw(st.sampled_from(PAGE_SIZES))
        size = num_pages * page_size + data.draw(st.integers(0, page_size - 1))
        self.pair = Pair(size, page_size, order, cls=partial(one_pool, place=place, eager=eager))


class StateRules:
    """Requests that have states, and mistakes with them."""

    has_states = False

    @precondition(lambda self: self.has_states)
    @rule(num_states=st.integers(-1, 3), owner=st.sampled_from([0, 7, 2**31]))
    def take_states(self, num_states, owner):
        """States for new requests."""
        self.pair.alloc_states(num_states, owner)

    @precondition(lambda self: self.has_states)
    @rule(data=st.data(), form=forms, wild=st.integers(0, 4))
    def free_states(self, data, form, wild):
        """States that are held, and sometimes others."""
        live = sorted(self.pair.model.states_pool.live)
        slots = data.draw(st.lists(st.sampled_from(live), unique=True)) if live else []
        if not wild:
            slots.insert(0, data.draw(st.integers(-1, self.pair.model.states_pool.num_pages + 1)))
        self.pair.free_states(slots, form)


def arena_of(data, page_size, entry_bytes, state):
    """Enough bytes for a page of each pool behind the sink, and some more."""
    largest = max(max(entry_bytes) * page_size, state or 0)
    return data.draw(st.integers(2 * largest + sum(entry_bytes), 14 * page_size * max(entry_bytes) + 3 * largest))


class UnifiedMachine(StateRules, WindowMachine):
    """Two sides in one arena, and states beside them or not."""

    page_sizes = (1, 2, 4)

    @initialize(data=st.data(), order=orders, eager=st.booleans())
    def make(self, data, order, eager):
        """An arena of entries of any sizes."""
        page_size = self.page_size = data.draw(st.sampled_from(self.page_sizes))
        full, window = data.draw(st.sampled_from([(2, 1), (3, 2), (1, 3), (2, 2), (5, 3)]))
        state = data.draw(st.sampled_from([None, 4, 7, 11]))
        self.has_states = state is not None
        total = arena_of(data, page_size, (full, window), state)
        self.pair = UnifiedPair(total, page_size, full, window, state, eager=eager, order=order)


class UnpairedMachine(StateRules, AllocatorMachine):
    """Tokens and states in one arena."""

    has_states = True
    page_sizes = (1, 2, 4)

    @initialize(data=st.data(), order=orders, eager=st.booleans())
    def make(self, data, order, eager):
        """An arena of entries of any sizes."""
        page_size = self.page_size = data.draw(st.sampled_from(self.page_sizes))
        full, state = data.draw(st.sampled_from([(1, 4), (2, 5), (3, 2), (2, 7)]))
        self.pair = UnpairedPair(
            arena_of(data, page_size, (full,), state), page_size, full, state, eager=eager, order=order
        )


costs_of_a_page = st.integers(1, 12)


class CountedMachine(StateRules, WindowMachine):
    """Two sides that share bytes by count, and states beside them or not."""

    @initialize(data=st.data(), order=orders, sink=st.integers(0, 9))
    def make(self, data, order, sink):
        """Pages of any cost; bytes for a page of each pool and some more."""
        page_size = self.page_size = data.draw(st.sampled_from((1, 2, 4)))
        names = data.draw(st.sampled_from([("full", "window"), ("full", "window", "state")]))
        self.has_states = "state" in names
        costs = {name: data.draw(costs_of_a_page) for name in names}
        total = sink + data.draw(st.integers(max(costs.values()), 14 * max(costs.values())))
        self.pair = CountedPair(total, page_size, costs, sink, order)


class CountedUnpairedMachine(StateRules, AllocatorMachine):
    """Tokens and states that share bytes by count."""

    has_states = True

    @initialize(data=st.data(), order=orders, sink=st.integers(0, 9))
    def make(self, data, order, sink):
        """Pages and states of any cost; bytes for a page of each pool and some more."""
        page_size = self.page_size = data.draw(st.sampled_from((1, 2, 4)))
        costs = {name: data.draw(costs_of_a_page) for name in ("full", "state")}
        total = sink + data.draw(st.integers(max(costs.values()), 14 * max(costs.values())))
        self.pair = CountedUnpairedPair(total, page_size, costs, sink, order)


TestOnePoolOfAnArena = OnePoolMachine.TestCase
TestTwoSidesOfAnArena = UnifiedMachine.TestCase
TestTokensAndStatesOfAnArena = UnpairedMachine.TestCase
TestTwoSidesByCount = CountedMachine.TestCase
TestTokensAndStatesByCount = CountedUnpairedMachine.TestCase
TestTwoSidesByCount.settings = TestTokensAndStatesByCount.settings = settings(
    stateful_step_count=40, max_examples=settings.default.max_examples // 5
)
TestOnePoolOfAnArena.settings = settings(stateful_step_count=40)
TestTwoSidesOfAnArena.settings = TestTokensAndStatesOfAnArena.settings = settings(stateful_step_count=40)
