"""kvstead under the clock."""

from __future__ import annotations

import tracemalloc
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
import torch

from kvstead.allocators import PagedAllocator, SWAAllocator, TokenAllocator
from kvstead.model import Window
from kvstead.pages import FreeList
from kvstead.prefix import Match, PrefixTree
from side_kvstead_unified import KVSteadUnifiedPool
from side_kvstead_windows import KVSteadBatch
from sides import Call


class KVSteadTree:
    """Keys are int32 arrays, rows int64 arrays."""

    def __init__(self, pool: PagedAllocator, tree: PrefixTree) -> None:
        self._pool, self._tree = pool, tree
        self.available_size = pool.available_size

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
        return partial(self._tree.evict, {"full": -(-num_tokens // self._tree.page_size)})


class KVSteadWindowTree(KVSteadTree):
    """The same with windows."""

    def __init__(self, pool: SWAAllocator, tree: PrefixTree) -> None:
        super().__init__(pool, tree)
        self.available_size = pool.full_available_size
        self.window_available_size = pool.swa_available_size

    def evict_windows_call(self, num_tokens: int) -> Call:
        """Give window slots back."""
        return partial(self._tree.evict, {"window": -(-num_tokens // self._tree.page_size)})


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
        pool = PagedAllocator(size, page_size)
        return KVSteadTree(pool, PrefixTree(pool))

    def window_pool(self, full_size: int, window_size: int, page_size: int) -> SWAAllocator:
        """Every page may have a window page."""
        return SWAAllocator(full_size, window_size, page_size)

    def window_tree(self, size: int, page_size: int, span: int) -> KVSteadWindowTree:
        """An empty least-recently-used tree with windows."""
        pool = SWAAllocator(size, size, page_size)
        return KVSteadWindowTree(pool, PrefixTree(pool, window=Window(span, is_chunked=False)))

    def batch(self, lengths: Sequence[int], span: int, page_size: int) -> KVSteadBatch:
        """Requests that decode."""
        return KVSteadBatch(lengths, span, page_size)

    def unified_pool(self, kind: str, num_tokens: int, page_size: int, *, eager: bool) -> KVSteadUnifiedPool:
        """Pools of one arena."""
        return KVSteadUnifiedPool(kind, num_tokens, page_size, eager=eager)
