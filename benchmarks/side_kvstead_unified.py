"""kvstead's allocators of one arena under the clock, with real bytes that are zeroed when they are handed out."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch

from kvstead.allocators import UnifiedMambaAllocator, UnifiedMambaSWAAllocator, UnifiedSWAAllocator
from kvstead.pools.entry_spec import EntrySpec
from sides import STATE_BYTES, TOKEN_BYTES, Call, arena_bytes

_TOKEN = EntrySpec("token", TOKEN_BYTES, zero_on_take=True)
_MAKERS: dict[str, Any] = {
    "windows": partial(UnifiedSWAAllocator, full=_TOKEN, window=_TOKEN),
    "states": partial(UnifiedMambaAllocator, full=_TOKEN, state=STATE_BYTES),
    "windows and states": partial(UnifiedMambaSWAAllocator, full=_TOKEN, window=_TOKEN, state=STATE_BYTES),
}


class KVSteadUnifiedPool:
    """One of its allocators, called without anything between."""

    def __init__(self, kind: str, num_tokens: int, page_size: int, *, eager: bool) -> None:
        self._pool = _MAKERS[kind](arena_bytes(kind, num_tokens), page_size=page_size, eager=eager)
        self.has_states = "states" in kind
        self.alloc, self.free, self.clear = self._pool.alloc, self._pool.free, self._pool.clear
        self.free_segment, self.available_size = self._pool.free_segment, self._pool.available_size
        if self.has_states:
            self.alloc_states, self.free_states = self._pool.states.alloc, self._pool.states.free
        if "windows" in kind:
            self.drop_windows = self._pool.free_swa

    def decode_call(self, seq: torch.Tensor, last: torch.Tensor) -> Call:
        """Grow rows by one token to `seq`."""
        return partial(self._pool.alloc_decode, seq, last)

    def bytes_moved(self) -> int:
        """Bytes copied so far."""
        return self._pool.chain.bytes_moved
