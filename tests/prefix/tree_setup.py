"""A pool, a tree over it and keys spelled in letters: what the example tests share."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from kvstead.allocators import PagedAllocator, SWAAllocator
from kvstead.errors import DoubleFree
from kvstead.model.window import Window
from kvstead.prefix import Insertion, Match, Namespace, Node, PrefixTree


class FreeStates:
    """State slots 1 .. `num_states`, as an allocator hands them out and takes them back: each once."""

    def __init__(self, num_states: int) -> None:
        self.size = num_states
        self.available = list(range(1, num_states + 1))
        self.num_calls = 0  # of `free`

    def alloc(self) -> int:
        """A slot of the caller's own."""
        assert self.available, "the test asks for more than its pool has"
        return self.available.pop(0)

    def free(self, slots: np.ndarray) -> None:
        """Take slots back, or refuse all of them."""
        self.num_calls += 1
        for slot in slots.tolist():
            if slot in self.available or not 1 <= slot <= self.size:
                raise DoubleFree(f"state slot {slot} is free already, or none")
        assert np.unique(slots).size == slots.size, f"{slots} names a state twice"
        self.available += slots.tolist()


class TreeSetup:
    """`num_pages` pages; a key is a word, each letter one page of tokens.

    With a window every page has a window page besides: `num_window_pages` of them, or enough for all. With `num_states`
    there are states, which only `keep` puts into the tree.
    """

    def __init__(
        self,
        num_pages: int,
        page_size: int = 1,
        policy: str = "lru",
        window: Window | None = None,
        num_window_pages: int | None = None,
        num_states: int | None = None,
    ) -> None:
        self.page_size = page_size
        if window is None:
            self.allocator = PagedAllocator(num_pages * page_size, page_size)
        else:
            num_windows = num_pages if num_window_pages is None else num_window_pages
            self.allocator = SWAAllocator(num_pages * page_size, num_windows * page_size, page_size)
        self.states = None if num_states is None else FreeStates(num_states)
        self.tree = PrefixTree(self.allocator, policy=policy, window=window, states=self.states)

    def tokens(self, word: str) -> np.ndarray:
        """int32 ids: of letter `c`, one page of `100 * ord(c), 100 * ord(c) + 1, ...`."""
        ids = [100 * ord(letter) + i for letter in word for i in range(self.page_size)]
        return np.array(ids, dtype=np.int32)

    def compute(self, num_tokens: int, dead: Iterable[int] = ()) -> np.ndarray:
        """Slots of a request's own for that many tokens; `dead`: pages of the row whose window side is gone."""
        slots = self.allocator.alloc(-(-num_tokens // self.page_size) * self.page_size)
        assert slots is not None, "the test asks for more than its pool has"
        row = slots.numpy()
        for page in dead:
            start = page * self.page_size
            self.allocator.free_swa_segment(row[start : start + self.page_size], start_pos=start)
        return row[:num_tokens]

    def cache(
        self,
        word: str,
        namespace: Namespace = Namespace(),  # noqa: B008
        priority: int = 0,
        dead: Iterable[int] = (),
    ) -> Insertion:
        """Compute all tokens of a key, insert them and free what was there before."""
        tokens = self.tokens(word)
        row = self.compute(tokens.size, dead)
        done = self.tree.insert(tokens, row, namespace=namespace, priority=priority)
        self.allocator.free_segment(row[: done.num_shared], start_pos=0)
        self.audit()
        return done

    def keep(self, word: str, priority: int = 0) -> Node:
        """Cache a key and the state at its end; where one is already, the caller's goes back."""
        node = self.cache(word, priority=priority).node
        slot = self.states.alloc()
        if not self.tree.put_state(node, slot):
            self.states.free(np.array([slot]))
        self.audit()
        return node

    def match(self, word: str, namespace: Namespace = Namespace()) -> Match:  # noqa: B008
        """The cached part of a key."""
        return self.tree.match(self.tokens(word), namespace=namespace)

    def cached(self, words: str) -> str:
        """Which of the words, given with blanks between, are cached whole; looking does not change what goes next."""
        return " ".join(word for word in words.split() if len(self.live(word)) == len(word))

    def live(self, word: str) -> str:
        """The cached pages of a word, a dot for one without a window side; looking does not change what goes next."""
        node, left, seen = self.tree.root, self.tokens(word), ""
        windows = getattr(self.allocator, "window_pages", None)
        while left.size:
            below = [
                n for n in node.children.values() if np.array_equal(n.tokens[: self.page_size], left[: self.page_size])
            ]
            if not below:
                break
            node = below[0]
            num_common = min(node.tokens.size, left.size)
            same = (node.tokens[:num_common] == left[:num_common]).reshape(-1, self.page_size).all(axis=1)
            num_pages = int(np.argmin(np.append(same, False)))
            for page in node.pages[:num_pages].tolist():
                seen += word[len(seen)] if windows is None or windows[page] > 0 else "."
            if num_pages < node.pages.size:
                break
            left = left[num_common:]
        return seen

    def with_states(self, words: str) -> str:
        """Which of the words, given with blanks between, end at a state; looking does not change what goes next."""
        ends = {self.word_of(node) for node in self.tree.root.below() if node.state is not None}
        return " ".join(word for word in words.split() if word in ends)

    def word_of(self, node: Node) -> str:
        """The key that ends at a node."""
        word = ""
        while node.parent is not None:
            word = "".join(chr(token // 100) for token in node.tokens[:: self.page_size].tolist()) + word
            node = node.parent
        return word

    def state_counts(self) -> tuple[int, int]:
        """States that are evictable, and held."""
        return self.tree.evictable_states, self.tree.held_states

    def window_counts(self) -> tuple[int, int, int]:
        """Tokens on the window side: evictable, protected, and cached without one."""
        return self.tree.window_evictable_tokens, self.tree.window_protected_tokens, self.tree.num_tombstone_tokens

    def room(self) -> tuple[int, int]:
        """Tokens that each side of an allocator with windows has capacity for."""
        return self.allocator.full_available_size(), self.allocator.swa_available_size()

    def audit(self) -> None:
        """All counts of tree and allocator agree; there are no requests, so what is not free is in the tree."""
        self.tree.audit()
        self.allocator.audit()
        if self.states is not None:
            slots = self.states.available + self.tree.state_slots().tolist()
            assert np.unique(slots).size == len(slots), "a state is free and in the tree"
