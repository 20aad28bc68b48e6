import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from prefix_model import PrefixModel, spaces

from eviction_in_tokens import Gone, evict
from kvstead.allocators import PagedAllocator
from kvstead.errors import AuditError, LockUnderflow, OpenGroup
from kvstead.prefix import POLICIES, Namespace, PrefixTree

NUM_PAGES = 24
NAMESPACES = [
    Namespace(),
    Namespace(lora="ab", salt="c"),
    Namespace(lora="a", salt="bc"),
    Namespace(images=("x", "y")),
    Namespace(images=("xy",)),
]


class TreeMachine(RuleBasedStateMachine):
    """A tree over a real allocator beside the model; requests insert, match, lock and evict in any order."""

    @initialize(page_size=st.sampled_from([1, 2, 3, 4, 64]), policy=st.sampled_from(sorted(POLICIES)))
    def start(self, page_size, policy):
        """A small pool, an empty tree."""
        self.page_size = page_size
        self.allocator = PagedAllocator(NUM_PAGES * page_size, page_size)
        self.tree = PrefixTree(self.allocator, policy=policy)
        self.model = PrefixModel(page_size, policy)
        self.handles = []

    def tokens(self, data, min_pages=0):
        """Keys over an alphabet of two pages, so that they share, part and continue; with a ragged tail."""
        pages = data.draw(st.lists(st.integers(0, 1), min_size=min_pages, max_size=5), label="pages")
        tail = data.draw(st.integers(0, self.page_size - 1), label="tail")
        run = np.repeat(np.array(pages, dtype=np.int64), self.page_size)
        # Pages that differ do so in one token only, at the far end.
        run[: len(pages) * self.page_size] *= np.tile(np.arange(self.page_size) == self.page_size - 1, len(pages))
        ids = np.concatenate([run, np.full(tail, 7)])
        return ids.astype(data.draw(st.sampled_from([np.int32, np.int64]), label="dtype"))

    @rule(data=st.data(), space=spaces(NAMESPACES), priority=st.integers(-2, 2))
    def insert(self, data, space, priority):
        """A request caches its row: shared slots from the tree, then its own; duplicates go back."""
        tokens = self.tokens(data)
        page_size = self.page_size
        own_from = 0  # positions below come from the tree, as after a match, or are computed again
        if data.draw(st.booleans(), label="reuse"):
            own_from = len(self.model.cached(space.namespace, space.pairs(tokens))) * page_size
        num_own = -(-(tokens.size - own_from) // page_size) * page_size
        own = self.allocator.alloc(num_own)
        if own is None:
            return
        own = own.numpy()
        chain = self.model.cached(space.namespace, space.pairs(tokens))[: own_from // page_size]
        reused = [self.model.pages[key].page * page_size + i for key in chain for i in range(page_size)]
        row = np.concatenate([np.array(reused, dtype=np.int64), own])[: tokens.size]
        pages = row[::page_size][: tokens.size // page_size] // page_size
        done = self.tree.insert(tokens, row, **space._asdict(), priority=priority)
        row_copy = row.copy()
        row[:] = -1  # the tree has its own copy
        assert done.num_shared == self.model.insert(space.namespace, space.pairs(tokens), pages.tolist(), priority)
        assert done.num_tokens == tokens.size // page_size * page_size
        self.allocator.free_segment(row_copy[own_from : done.num_shared], start_pos=own_from)
        self.allocator.free_segment(row_copy[done.num_tokens :], start_pos=done.num_tokens)

    @rule(data=st.data(), space=spaces(NAMESPACES), lock=st.booleans())
    def match(self, data, space, lock):
        """A match is the longest cached prefix, with the slots that were inserted for it."""
        tokens = self.tokens(data)
        ids = space.pairs(tokens)
        found = self.tree.match(tokens, **space._asdict())
        assert found.num_tokens == self.model.match(space.namespace, ids)
        pages = [self.model.pages[key].page for key in self.model.cached(space.namespace, ids)]
        slots = self.tree.slots(found)
        assert slots.dtype == np.int64
        assert slots.tolist() == [page * self.page_size + i for page in pages for i in range(self.page_size)]
        if lock:
            self.tree.lock(found.node)
            key = space.key(tokens[: found.num_tokens])
            self.model.pins[key] = self.model.pins.get(key, 0) + 1
            self.handles.append((found, key, slots))

    @precondition(lambda self: self.handles)
    @rule(data=st.data())
    def unlock(self, data):
        """What was locked is still where it was; once unlocked as often as locked, another unlock raises."""
        found, key, slots = self.handles.pop(data.draw(st.integers(0, len(self.handles) - 1), label="which"))
        assert self.tree.slots(found).tolist() == slots.tolist()
        self.tree.unlock(found.node)
        self.model.pins[key] -= 1
        if self.model.pins[key] == 0:
            with pytest.raises(LockUnderflow):
                self.tree.unlock(found.node)

    @rule(num_pages=st.integers(0, 6), ragged=st.booleans())
    def evict(self, num_pages, ragged):
        """The victims are those that brute force picks, and their pages are available at once."""
        num_tokens = max(0, num_pages * self.page_size - ragged)
        before = self.allocator.available_size()
        evictable = self.tree.evictable_tokens
        gone = evict(self.tree, num_tokens)
        assert gone == Gone(*self.model.evict(num_tokens))
        assert gone.num_tokens >= min(num_tokens, evictable)
        assert self.allocator.available_size() == before + gone.num_tokens

    @rule()
    def evict_in_a_group(self):
        """An open free group makes eviction an error, and a clear is refused."""
        with self.allocator.defer_frees():
            with pytest.raises(OpenGroup):
                evict(self.tree, self.page_size)
            assert self.tree.clear() is False

    @rule()
    def clear(self):
        """A clear takes everything or, with anything locked, nothing."""
        done = self.tree.clear()
        assert done is (not self.handles)
        if done:
            self.model.pages.clear()

    @precondition(lambda self: self.model.pages)
    @rule(data=st.data())
    def insert_a_page_twice(self, data):
        """A page that the tree owns cannot come in under another key."""
        page = data.draw(st.sampled_from(sorted(page.page for page in self.model.pages.values())), label="page")
        slots = page * self.page_size + np.arange(self.page_size)
        with pytest.raises(AuditError, match=f"page {page} would have two owners"):
            self.tree.insert(np.full(self.page_size, 99), slots)

    @invariant()
    def agrees(self):
        """Every page is in the tree or free, the counters agree, and all counts agree."""
        cached = len(self.model.pages) * self.page_size
        assert self.tree.protected_tokens == self.model.protected()
        assert self.tree.evictable_tokens == cached - self.model.protected()
        assert self.allocator.available_size() + cached == self.allocator.size
        pages = {node.parent and tuple(node.pages.tolist()) for node in self.tree.root.below()}
        runs = {page.run for page in self.model.pages.values()}
        by_run = {tuple(self.model.pages[key].page for key in self.model.run_keys(run)) for run in runs}
        assert pages == by_run
        assert self.tree.held_pages().tolist() == sorted(page.page for page in self.model.pages.values())
        self.tree.audit()
        self.allocator.audit()


TestTree = TreeMachine.TestCase
TestTree.settings = settings(max_examples=120, stateful_step_count=30, deadline=None)


@pytest.mark.soak
class TestTreeSoak(TreeMachine.TestCase):
    """The same machine for much longer."""

    settings = settings(max_examples=5_000, stateful_step_count=80, deadline=None)
