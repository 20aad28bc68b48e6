"""kvstead under the clock."""

from __future__ import annotations

import tracemalloc
from functools import partial
from typing import Any

import numpy as np
import torch

from kvstead.allocators import PagedAllocator, TokenAllocator
from kvstead.pages import FreeList
from kvstead.prefix import Match, PrefixTree
from sides import Call


class KVSteadTree:
    """Keys are int32 arrays, rows int64 arrays."""

    def __init__(self, size: int, page_size: int) -> None:
        self._pool = PagedAllocator(size, page_size)
        self._tree = PrefixTree(self._pool)
        self.available_size = self._pool.available_size

    def alloc(self, num_tokens: int) -> np.ndarray:
        """Slots for tokens that are not cached yet."""
        slots = self._pool.alloc(num_tokens)
        assert slots is not None, "the pool is made large enough"
        return slots.numpy()

    def shared_slots(self, found: Match) -> np.ndarray:
        """The tree's own slots for what a match found."""
        return self._tree.slots(found)

    def row(self, shared: np.ndarray, own: np.ndarray) -> np.ndarray:
        """A request's row."""
        return np.concatenate((shared, own))

    def key(self, tokens: np.ndarray) -> np.ndarray:
        """A prompt."""
        return tokens.astype(np.int32)

    def match_call(self, key: np.ndarray) -> Call:
        """Find the longest cached prefix."""
        return partial(self._tree.match, key)

    def num_matched(self, result: Match) -> int:
        """Tokens that a match found."""
        return result.num_tokens

    def insert_call(self, key: np.ndarray, row: np.ndarray, _num_matched: int) -> Call:
        """Cache a whole prompt."""
        return partial(self._tree.insert, key, row)

    def evict_call(self, num_tokens: int) -> Call:
        """Give tokens back."""
        return partial(self._tree.evict, num_tokens)


class KVSteadSide:
    """kvstead with its defaults: every check on."""

    names = ("tree",)

    def token_pool(self, size: int) -> TokenAllocator:
        """Page size 1, first in, first out."""
        return TokenAllocator(size)

    def paged_pool(self, size: int, page_size: int) -> PagedAllocator:
        """Last in, first out."""
        return PagedAllocator(size, page_size)

    def extend_call(self, pool: Any, prefix: torch.Tensor, seq: torch.Tensor, last: torch.Tensor) -> Call:
        """Grow rows from `prefix` to `seq` tokens."""
        return partial(pool.alloc_extend, prefix, seq, last)

    def decode_call(self, pool: Any, seq: torch.Tensor, last: torch.Tensor) -> Call:
        """Grow rows by one token to `seq`."""
        return partial(pool.alloc_decode, seq, last)

    def ready_call(self, num_pages: int) -> Call:
        """Make a pool and hand out its first page."""
        return lambda: FreeList(num_pages).take(1)

    def pool_bytes(self, num_pages: int) -> int:
        """What its arrays reserve, touched or not."""
        tracemalloc.start()
        pool = FreeList(num_pages)
        reserved, _ = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        del pool
        return reserved

    def tree(self, _name: str, size: int, page_size: int) -> KVSteadTree:
        """An empty least-recently-used tree."""
        return KVSteadTree(size, page_size)
