"""A pool, a tree over it and keys spelled in letters: what the example tests share."""

from __future__ import annotations

import numpy as np

from kvstead.allocators import PagedAllocator
from kvstead.prefix import Insertion, Match, Namespace, PrefixTree


class Bench:
    """`num_pages` pages; a key is a word, each letter one page of tokens (a digit behind it: that many tokens)."""

    def __init__(self, num_pages: int, page_size: int = 1, policy: str = "lru") -> None:
        self.page_size = page_size
        self.allocator = PagedAllocator(num_pages * page_size, page_size)
        self.tree = PrefixTree(self.allocator, policy=policy)

    def tokens(self, word: str) -> np.ndarray:
        """int32 ids: of letter `c`, one page of `100 * ord(c), 100 * ord(c) + 1, ...`."""
        ids = [100 * ord(letter) + i for letter in word for i in range(self.page_size)]
        return np.array(ids, dtype=np.int32)

    def compute(self, num_tokens: int) -> np.ndarray:
        """Slots of a request's own for that many tokens."""
        slots = self.allocator.alloc(-(-num_tokens // self.page_size) * self.page_size)
        assert slots is not None, "the test asks for more than its pool has"
        return slots.numpy()[:num_tokens]

    def cache(self, word: str, namespace: Namespace = Namespace(), priority: int = 0) -> Insertion:  # noqa: B008
        """Compute all tokens of a key, insert them and free what was there before."""
        tokens = self.tokens(word)
        row = self.compute(tokens.size)
        done = self.tree.insert(tokens, row, namespace=namespace, priority=priority)
        self.allocator.free_segment(row[: done.num_shared], start_pos=0)
        self.audit()
        return done

    def match(self, word: str, namespace: Namespace = Namespace()) -> Match:  # noqa: B008
        """The cached part of a key."""
        return self.tree.match(self.tokens(word), namespace=namespace)

    def cached(self, words: str) -> str:
        """Which of the words, given with blanks between, are cached whole; looking does not change what goes next."""
        return " ".join(word for word in words.split() if self._has(word))

    def audit(self) -> None:
        """Both sets of books balance; there are no requests, so what is not free is in the tree."""
        self.tree.audit()
        self.allocator.audit()

    def _has(self, word: str) -> bool:
        node, left = self.tree.root, self.tokens(word)
        while left.size:
            below = [
                n for n in node.children.values() if np.array_equal(n.tokens[: self.page_size], left[: self.page_size])
            ]
            if not below or not np.array_equal(below[0].tokens[: left.size], left[: below[0].tokens.size]):
                return False
            node, left = below[0], left[below[0].tokens.size :]
        return True
