"""States of a manager in any order of calls: whose they are, what they stand for, and that refusals change nothing."""

import numpy as np
from fake_memory import EMPTY, IdMemory
from fake_model import PLAIN, prefix_hashes
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from kvstead.engine import KVCacheManager
from kvstead.pages.amounts import STATE
from tiny_model import tiny_state_layout

TOKENS = st.one_of(  # prefixes of one prompt, and others that part from it somewhere
    st.integers(1, 14).map(lambda length: [0] * length),
    st.lists(st.integers(0, 1), min_size=1, max_size=14),
)
OTHER = 9  # a token that no prompt has
WIDTH = 24
MAX_ROWS = 4


def state_of(tokens):
    """What the state of a sequence says."""
    return prefix_hashes(tokens, PLAIN)[-1] if len(tokens) else EMPTY


class StateMachine(RuleBasedStateMachine):
    """Rows whose steps are launched (`extend`) and known to be computed (`commit`) at any time.

    `tokens` are a row's ids as far as anybody knows them, its launched steps' included.
    """

    @initialize(
        page_size=st.sampled_from([1, 2, 3, 4]),
        num_pages=st.integers(1, 16),
        num_states=st.integers(1, 6),
        interval=st.sampled_from([None, 0, 1, 2, 3, 5, 8, 100]),
        span=st.sampled_from([0, 0, 1, 3, 6]),
        pool_layout=st.sampled_from(["static", "static", "unified", "padded", "ideal"]),
        prefix_cache=st.sampled_from([True, True, True, False]),
    )
    def build(self, page_size, num_pages, num_states, interval, span, pool_layout, prefix_cache):
        """An empty memory."""
        layout = tiny_state_layout(span)
        options = {"max_requests": MAX_ROWS, "max_length": WIDTH, "storage": False, "prefix_cache": prefix_cache}
        options |= {"state_interval": interval, "page_size": page_size, "pool_layout": pool_layout}
        if pool_layout == "static":
            windows = {"num_window_slots": num_pages * page_size} if span else {}
            sizes = {"num_slots": num_pages * page_size, "num_states": num_states, **windows}
            self.manager = KVCacheManager(layout, **sizes, **options)
        else:
            num_bytes = 16 * page_size * (num_pages + 4) + layout.state_bytes * (num_states + 3)
            self.manager = KVCacheManager(layout, num_bytes, **options)
        self.memory = IdMemory(self.manager)
        self.tokens, self.prompts = {}, {}

    def any_row(self, data):
        """A row that is out."""
        return data.draw(st.sampled_from(sorted(self.tokens)))

    def owned(self):
        """What rows have, which no refusal may change: lengths, shared prefixes, own states."""
        manager, rows = self.manager, self.manager.table.live_rows()
        what = manager.table.lengths, manager.protected, manager.computed, manager.row_states.slot
        return [array[rows].tolist() for array in what]

    @rule(tokens=TOKENS)
    def match(self, tokens):
        """A row comes with the state of its cached prefix, in a slot of its own; without capacity, nothing comes."""
        manager = self.manager
        before, copies = self.owned(), manager.num_state_copies
        lease = manager.match(np.array(tokens))
        if lease is None:
            assert self.owned() == before
            assert manager.num_state_copies == copies
            if len(self.tokens) < MAX_ROWS:
                assert manager.live_states() == len(self.tokens), "copies that the tree does not own yet went first"
                is_at_a_state = manager.prefix_cache and manager.peek(tokens).num_cached > 0
                assert manager.chain is not None or len(self.tokens) + is_at_a_state == manager.num_states
            return
        assert manager.num_state_copies == copies + (lease.num_cached > 0)
        assert lease.num_cached % manager.page_size == 0
        assert lease.num_cached < len(tokens)
        self.tokens[lease.row], self.prompts[lease.row] = list(tokens), len(tokens)
        assert manager.row_states.slot[lease.row] not in manager.tree.state_slots()

    @precondition(lambda self: self.tokens)
    @rule(data=st.data(), chunk=st.integers(1, 8), is_cut=st.sampled_from([True, True, False]))
    def launch(self, data, chunk, is_cut):
        """A step is launched: the row grows by what is known, to where a copy is of use or not, its state with it."""
        row = self.any_row(data)
        manager, tokens = self.manager, self.tokens[row]
        length = int(manager.table.lengths[row])
        end = min(length + chunk, len(tokens), WIDTH - 1)
        if end == length:
            return
        end = manager.chunk_end(row, end) if is_cut else end
        assert length < end
        before = self.owned()
        if manager.extend([row], [end]) is None:
            assert self.owned() == before
            return
        self.memory.write(STATE, manager.row_states.slot[[row]], [state_of(tokens[:end])])
        if end == len(tokens):
            tokens.append(end % 2)

    @precondition(lambda self: self.tokens)
    @rule(data=st.data(), steps=st.integers(1, 8))
    def commit(self, data, steps):
        """Some of what was launched is known to be computed."""
        row = self.any_row(data)
        start, end = int(self.manager.computed[row]), int(self.manager.table.lengths[row])
        for at in range(start + 1, min(start + steps, end) + 1):
            self.manager.commit([row], [at], [self.tokens[row][at]])

    @precondition(lambda self: self.tokens)
    @rule(data=st.data())
    def checkpoint(self, data):
        """Copies are made or not; no request has less for it, and a copy is where the row stands."""
        rows = data.draw(st.lists(st.sampled_from(sorted(self.tokens)), unique=True))
        manager, states = self.manager, self.manager.row_states
        lengths, own = manager.table.lengths.copy(), states.slot.copy()
        manager.checkpoint(np.array(rows, dtype=np.int64))
        assert np.array_equal(manager.table.lengths, lengths)
        assert np.array_equal(states.slot, own)
        assert manager.prefix_cache or not states.kept.any()
        for row in rows:
            assert not states.kept[row] or states.kept_at[row] <= lengths[row]
            if states.kept[row] and not states.interval:
                at, prompt = int(states.kept_at[row]), self.prompts[row]
                last = (prompt - 1) // manager.page_size * manager.page_size
                assert at >= last or at == states._branch[row], "in a prompt only where it branches or ends"

    @precondition(lambda self: self.tokens)
    @rule(data=st.data())
    def cache(self, data):
        """Any row may be cached at any time."""
        self.manager.cache(self.any_row(data))

    @precondition(lambda self: self.tokens)
    @rule(data=st.data(), how=st.sampled_from(["finish", "finish", "retract", "abort"]))
    def end(self, data, how):
        """A row ends; a finished one leaves its own state behind where it stands for whole, computed pages."""
        row = self.any_row(data)
        manager, tokens = self.manager, self.tokens.pop(row)
        length, computed = int(manager.table.lengths[row]), int(manager.computed[row])
        slot, copies = int(manager.row_states.slot[row]), manager.num_state_copies
        had = set(manager.tree.state_slots().tolist())
        getattr(manager, how)(row)
        assert manager.num_state_copies == copies, "a request that ends copies nothing"
        assert manager.row_states.slot[row] == manager.row_states.kept[row] == 0
        given = set(manager.tree.state_slots().tolist()) - had
        if how == "abort":
            assert not given
        elif manager.prefix_cache and length == computed and length % manager.page_size == 0 and length:
            assert manager.peek([*tokens[:length], OTHER]).num_cached == length
            assert given <= {slot}
        assert slot not in given or length == computed

    @rule()
    def flush(self):
        """All that is cached goes, unless a row is out."""
        assert self.manager.flush() is not bool(self.tokens)

    @invariant()
    def every_state_is_right(self):
        """States of rows, copies that are kept and states of the tree are what they stand for, each in its own slot."""
        if not hasattr(self, "manager"):
            return
        manager, states = self.manager, self.manager.row_states
        manager.audit()
        rows = manager.table.live_rows().tolist()
        assert rows == sorted(self.tokens)
        slots = []
        for row in rows:
            slots.append((int(states.slot[row]), self.tokens[row][: manager.table.lengths[row]]))
            if states.kept[row]:
                slots.append((int(states.kept[row]), self.tokens[row][: states.kept_at[row]]))
        above = [(child, []) for child in manager.tree.root.children.values()]
        while above:
            node, tokens = above.pop()
            tokens = [*tokens, *node.tokens.tolist()]
            above += [(child, tokens) for child in node.children.values()]
            if node.state is not None:
                slots.append((node.state.slot, tokens))
        assert len({slot for slot, _ in slots}) == len(slots) == manager.allocator.states.live_size()
        for slot, tokens in slots:
            assert self.memory.read(STATE, [slot]) == [state_of(tokens)]
        stats = manager.stats()
        assert sum(stats.by_state.values()) == stats.total_bytes
        assert manager.live_states() == len(rows) + states.num_kept

    def teardown(self):
        """When all has ended, nothing is lost."""
        if not hasattr(self, "manager"):
            return
        for row in self.tokens:
            self.manager.abort(row)
        assert self.manager.flush()
        assert self.manager.allocator.states.live_size() == self.manager.stats().live == 0


TestStates = StateMachine.TestCase
TestStates.settings = settings(stateful_step_count=40)
