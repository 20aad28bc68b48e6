import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from prefix_model import keyed_nodes, spaces
from window_tree_model import PIECE, WindowTreeModel

from eviction_in_tokens import evict
from kvstead.allocators import SWAAllocator
from kvstead.errors import LockUnderflow, OpenGroup
from kvstead.model.window import Window
from kvstead.prefix import POLICIES, Namespace, PrefixTree

NUM_PAGES = 24
NAMESPACES = [Namespace(), Namespace(lora="a")]


class WindowTreeMachine(RuleBasedStateMachine):
    """A tree with a window over a real allocator beside the model, in any order of operations."""

    @initialize(
        page_size=st.integers(1, 4),
        span=st.integers(1, 9),
        is_chunked=st.booleans(),
        policy=st.sampled_from(sorted(POLICIES)),
        num_windows=st.integers(4, NUM_PAGES),
    )
    def start(self, page_size, span, is_chunked, policy, num_windows):
        """Two small pools, an empty tree."""
        self.page_size = page_size
        self.allocator = SWAAllocator(NUM_PAGES * page_size, num_windows * page_size, page_size)
        self.tree = PrefixTree(self.allocator, policy=policy, window=Window(span, is_chunked))
        self.model = WindowTreeModel(page_size, policy, span, is_chunked)
        self.handles = []  # (node, key, where its window part begins), one a lock

    def tokens(self, data):
        """Keys over two letters, one of them rare, so that most continue one another; with a ragged tail."""
        pages = data.draw(st.lists(st.sampled_from([0, 0, 0, 1]), max_size=9), label="pages")
        tail = data.draw(st.integers(0, self.page_size - 1), label="tail")
        run = np.repeat(np.array(pages, dtype=np.int64), self.page_size)
        # Pages that differ do so in one token only, at the far end.
        run *= np.tile(np.arange(self.page_size) == self.page_size - 1, len(pages))
        return np.concatenate([run, np.full(tail, 7)])

    def compute(self, num_tokens):
        """Slots of a request's own, for which others are evicted; None only if what is not locked would not do."""
        num_tokens += -num_tokens % self.page_size
        slots = self.allocator.alloc(num_tokens)
        if slots is None:
            short = max(0, num_tokens - self.allocator.full_available_size())
            window_short = max(0, num_tokens - self.allocator.swa_available_size())
            suffices = short <= self.tree.evictable_tokens and window_short <= self.tree.window_evictable_tokens
            assert evict(self.tree, short, window_short) == self.model.evict(short, window_short)
            slots = self.allocator.alloc(num_tokens)
            assert (slots is not None) is suffices
        return None if slots is None else slots.numpy()

    @rule(
        data=st.data(),
        space=spaces(NAMESPACES),
        priority=st.integers(-2, 2),
        reuse=st.sampled_from(["nothing", "usable", "found"]),
        died=st.sampled_from(["nothing", "head", "anything"]),
        lock=st.booleans(),
        grouped=st.booleans(),
    )
    def insert(self, data, space, priority, reuse, died, lock, grouped):
        """A request caches a row, part of it without windows: what it gives lives on in the tree, the rest is freed."""
        tokens = self.tokens(data)
        own = self.compute(tokens.size)
        if own is None:
            return
        page_size = self.page_size
        own_from = 0
        row = own.copy()
        if reuse != "nothing":
            self.match_both(space, tokens)
            chain = self.model.cached(space.namespace, space.pairs(tokens))
            own_from = (self.model.restorable(chain) if reuse == "usable" else len(chain) * page_size) // page_size
            pages = [self.model.pages[key].page for key in chain[:own_from]]
            own_from *= page_size
            row[:own_from] = [page * page_size + i for page in pages for i in range(page_size)]
            self.allocator.free_segment(own[:own_from], start_pos=0)
        dead = list(range(own_from, row.size, page_size))
        if died == "head":
            dead = dead[: data.draw(st.integers(0, len(dead)), label="dead pages")]
        else:
            dead = [start for start in dead if died == "anything" and data.draw(st.booleans(), label="dead")]
        is_end = data.draw(st.sampled_from([True, True, False]), label="is_end")
        if grouped:
            with self.allocator.defer_frees():
                done = self.insert_row(space, tokens, row, own_from, dead, priority, is_end=is_end)
        else:
            done = self.insert_row(space, tokens, row, own_from, dead, priority, is_end=is_end)
        if lock:
            self.lock_both(done.node, space.key(tokens[: done.num_tokens]))

    def insert_row(self, space, tokens, row, own_from, dead, priority, *, is_end):
        """Let the windows of some pages die, insert the row and free what the tree did not take."""
        page_size = self.page_size
        for start in dead:
            self.allocator.free_swa_segment(row[start : start + page_size], start_pos=start)
        pages = row[::page_size][: tokens.size // page_size] // page_size
        linked_pages = self.allocator.window_pages[pages]
        chain = self.model.cached(space.namespace, space.pairs(tokens))
        expected = [self.allocator.window_pages[self.model.pages[key].page] for key in chain]
        expected = [linked_page or offer for linked_page, offer in zip(expected, linked_pages.tolist(), strict=False)]
        passed = row[: tokens.size].copy()
        done = self.tree.insert(tokens, passed, **space._asdict(), priority=priority, is_end=is_end)
        passed[:] = -1  # the tree has its own copy
        num_shared = self.model.insert(
            space.namespace, space.pairs(tokens), pages.tolist(), (linked_pages > 0).tolist(), priority, is_end=is_end
        )
        assert (done.num_shared, done.num_tokens) == (num_shared, tokens.size // page_size * page_size)
        assert self.allocator.window_pages[[self.model.pages[key].page for key in chain]].tolist() == expected
        self.allocator.free_segment(row[own_from : done.num_shared], start_pos=own_from)
        self.allocator.free_segment(row[done.num_tokens :], start_pos=done.num_tokens)
        return done

    @rule(data=st.data(), space=spaces(NAMESPACES), lock=st.booleans())
    def match(self, data, space, lock):
        """A match is the longest prefix that can be continued, with the slots that were inserted for it."""
        tokens = self.tokens(data)
        found = self.match_both(space, tokens)
        if lock:
            self.lock_both(found.node, space.key(tokens[: found.num_tokens]))

    def match_both(self, space, tokens):
        """Match in the tree and in the model."""
        found = self.tree.match(tokens, **space._asdict())
        assert (found.num_tokens, found.num_found) == self.model.match(space.namespace, space.pairs(tokens))
        keys = self.model.prefixes(space.namespace, space.pairs(tokens[: found.num_tokens]))
        slots = [self.model.pages[key].page * self.page_size + i for key in keys for i in range(self.page_size)]
        assert self.tree.slots(found).tolist() == slots
        return found

    def lock_both(self, node, key):
        """Lock a node, restorable or not."""
        self.tree.lock(node)
        self.handles.append((node, key, self.model.lock(key)))

    @precondition(lambda self: self.handles)
    @rule(data=st.data())
    def expect_end(self, data):
        """On the path to a locked node others are expected to continue, at any page."""
        node, key, _ = data.draw(st.sampled_from(self.handles), label="which")
        if key:
            num_pages = data.draw(st.integers(1, (len(key) - 1) // self.page_size), label="pages")
            end = self.tree.expect_end(node, num_pages * self.page_size)
            assert end.end == num_pages * self.page_size
            self.model.expect_end(key[: 1 + num_pages * self.page_size])

    @precondition(lambda self: self.handles)
    @rule(data=st.data(), named=st.booleans())
    def unlock(self, data, named):
        """Locks go in any order; once unlocked as often as locked, another unlock raises."""
        node, key, since = self.handles.pop(data.draw(st.integers(0, len(self.handles) - 1), label="which"))
        if named or since != self.model.floor(self.model.needed_from(max(0, len(key) - 1))):
            self.tree.unlock(node, window_from=since)
        else:
            self.tree.unlock(node)
        self.model.locks.remove((key, since))
        if node not in [other for other, _, _ in self.handles]:
            with pytest.raises(LockUnderflow):
                self.tree.unlock(node)
            with pytest.raises(LockUnderflow):
                self.tree.loosen(node, 0, 1)

    @precondition(lambda self: any(key for _, key, _ in self.handles))
    @rule(data=st.data())
    def loosen(self, data):
        """A lock lets go of window after window, as a running request does."""
        which = data.draw(st.sampled_from([i for i, (_, key, _) in enumerate(self.handles) if key]), label="which")
        node, key, since = self.handles[which]
        to = data.draw(st.integers(since, max(since, len(key) + 2)), label="to")
        self.tree.loosen(node, since, to)
        self.model.loosen(key, since, to)
        self.handles[which] = node, key, to

    @rule(num_tokens=st.integers(0, 12), num_window_tokens=st.integers(0, 20))
    def evict(self, num_tokens, num_window_tokens):
        """What goes is what brute force picks, what was asked for is available at once, and not much more."""
        kept = {key for key in self.model.pages if self.model.num_window_locks(key) and self.model.pages[key].is_live}
        evictable, window_evictable = self.tree.evictable_tokens, self.tree.window_evictable_tokens
        room, window_room = self.allocator.full_available_size(), self.allocator.swa_available_size()
        gone = evict(self.tree, num_tokens, num_window_tokens)
        assert gone == self.model.evict(num_tokens, num_window_tokens)
        assert gone.num_tokens >= min(num_tokens, evictable)
        assert gone.num_window_tokens >= min(num_window_tokens, window_evictable)
        assert self.allocator.full_available_size() == room + gone.num_tokens
        assert self.allocator.swa_available_size() == window_room + gone.num_window_tokens
        assert all(self.model.pages[key].is_live for key in kept)
        if num_tokens == 0:
            assert gone.num_nodes == 0
        piece = -(-PIECE * self.model.span // self.page_size) * self.page_size
        assert gone.num_tombstoned < max(1, num_window_tokens + piece)

    @rule()
    def evict_in_a_group(self):
        """An open free group makes eviction an error, and a clear is refused."""
        with self.allocator.defer_frees():
            with pytest.raises(OpenGroup):
                evict(self.tree, 0, self.page_size)
            assert self.tree.clear() is False

    @rule()
    def clear(self):
        """A clear takes everything on both sides or, with anything locked, nothing."""
        done = self.tree.clear()
        assert done is (not self.handles)
        if done:
            self.model.pages.clear()
            self.model.ends.clear()

    @invariant()
    def agrees(self):
        """Every node is as the model says, every page is in the tree or free on either side, and all counts agree."""
        assert self.nodes_of_tree() == self.nodes_of_model()
        counts = self.model.counts()
        assert (self.tree.evictable_tokens, self.tree.protected_tokens) == counts[0]
        window_counts = self.tree.window_evictable_tokens, self.tree.window_protected_tokens
        assert (*window_counts, self.tree.num_tombstone_tokens) == counts[1]
        assert self.allocator.full_available_size() + sum(counts[0]) == self.allocator.size
        assert self.allocator.swa_available_size() + sum(window_counts) == self.allocator.swa_size
        self.tree.audit()
        self.allocator.audit()

    def nodes_of_model(self):
        """By the key that a node ends: its pages, whether it is live, its locks and its uses."""
        nodes = {}
        for keys in self.model.nodes():
            pages = [self.model.pages[key] for key in keys]
            assert all(
                (page.is_live, page.full, page.window) == (pages[0].is_live, pages[0].full, pages[0].window)
                for page in pages
            )
            last = pages[-1]
            locks = self.model.num_window_locks(keys[-1])
            uses = [(use.access, use.created, use.priority, use.hits) for use in (last.full, last.window)]
            nodes[keys[-1]] = [page.page for page in pages], last.is_live, locks, *uses
        return nodes

    def nodes_of_tree(self):
        """The same of the tree."""
        nodes = {}
        for key, node in keyed_nodes(self.tree.root):
            uses = [(use.access, use.created, use.priority, use.hits) for use in (node, node.window)]
            nodes[key] = node.pages.tolist(), node.window.is_live, node.window.locks, *uses
            assert (self.allocator.window_pages[node.pages] > 0).tolist() == [node.window.is_live] * node.pages.size
        return nodes


TestWindowTree = WindowTreeMachine.TestCase
TestWindowTree.settings = settings(max_examples=200, stateful_step_count=30, deadline=None)


@pytest.mark.soak
class TestWindowTreeSoak(WindowTreeMachine.TestCase):
    """The same machine for much longer."""

    settings = settings(max_examples=5_000, stateful_step_count=80, deadline=None)
