"""What a scenario needs from the library it measures. Every scenario is written once and runs on both sides.

Whatever a library wants beside the data itself (its own key type, lengths on the host as well) is made before the clock
starts: `..._call` methods return the bare call.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np
import torch

Call = Callable[[], Any]
WIDTH = 4096  # tokens that a row of a batch may grow to
KINDS = ("windows", "states", "windows and states")  # what shares an arena with the full side
TOKEN_BYTES = 32  # of a token on each side of an arena: tiny, so that books are measured and not memory
STATE_BYTES = 2048
ARENA_STATES = 64  # states for which an arena has bytes beside its tokens


class Pool(Protocol):
    """The allocator methods that have one name and meaning on all sides."""

    def alloc(self, num_tokens: int, /) -> torch.Tensor:
        """Whole pages of slots."""

    def free(self, slots: torch.Tensor, /) -> None:
        """Slots in any order."""

    def free_segment(self, slots: torch.Tensor, /, *, start_pos: int) -> None:
        """A stretch of a row."""

    def free_group_begin(self) -> None:
        """Frees wait from here on."""

    def free_group_end(self) -> None:
        """They take effect."""

    def available_size(self) -> int:
        """Tokens that can be allocated."""


class AllocatorSide(Protocol):
    """Makes pools, and the calls whose signatures differ."""

    def token_pool(self, size: int) -> Pool:
        """Page size 1, first in, first out."""

    def paged_pool(self, size: int, page_size: int) -> Pool:
        """Last in, first out."""

    def extend_call(self, pool: Pool, prefix: torch.Tensor, seq: torch.Tensor, last: torch.Tensor) -> Call:
        """Grow rows from `prefix` to `seq` tokens."""

    def decode_call(self, pool: Pool, seq: torch.Tensor, last: torch.Tensor) -> Call:
        """Grow rows by one token to `seq`."""

    def ready_call(self, num_pages: int) -> Call:
        """Make a pool and hand out its first page."""

    def pool_bytes(self, num_pages: int) -> int:
        """Bookkeeping of a pool of that many pages."""


class Batch(Protocol):
    """Requests with windows that decode."""

    def decode_call(self) -> Call:
        """What a decode step asks of memory: windows move on, and every row gets the slot of its next token."""

    def commit(self) -> None:
        """The step is computed. Comes between one `decode_call` and the next."""

    def released(self) -> int:
        """Window slots that have come back so far because windows moved on."""


class WindowSide(Protocol):
    """Makes pools with a window side, and batches that decode in them."""

    def window_pool(self, full_size: int, window_size: int, page_size: int) -> Pool:
        """Every page may have a window page."""

    def extend_call(self, pool: Pool, prefix: torch.Tensor, seq: torch.Tensor, last: torch.Tensor) -> Call:
        """Grow rows from `prefix` to `seq` tokens."""

    def batch(self, lengths: Sequence[int], span: int, page_size: int) -> Batch:
        """Requests that hold `lengths` tokens, with windows of `span` tokens.

        The pool is large enough for all of them to grow to `WIDTH` tokens and to hold twice their windows.
        """


class Tree(Protocol):
    """A prefix tree over a pool of its own."""

    def alloc(self, num_tokens: int) -> Any:
        """Slots for tokens that are not cached yet."""

    def shared_slots(self, found: Any) -> Any:
        """The tree's own slots for what a match found."""

    def row(self, shared: Any, own: Any) -> Any:
        """A request's row: the tree's slots for what was found, then its own."""

    def key(self, tokens: np.ndarray) -> Any:
        """A prompt in the tree's own type."""

    def match_call(self, key: Any) -> Call:
        """Find the longest cached prefix."""

    def num_matched(self, result: Any) -> int:
        """Tokens that a match found."""

    def insert_call(self, key: Any, row: Any, num_matched: int) -> Call:
        """Cache a whole prompt, of which `num_matched` tokens are cached and hold the tree's own slots."""

    def evict_call(self, num_tokens: int) -> Call:
        """Give at least that many tokens back."""

    def available_size(self) -> int:
        """Tokens that can be allocated."""


class TreeSide(Protocol):
    """Makes trees. `names` are the kinds it has, the one it uses by default first."""

    names: Sequence[str]

    def tree(self, name: str, size: int, page_size: int) -> Tree:
        """An empty least-recently-used tree of a kind in `names`."""


class WindowTree(Tree, Protocol):
    """A prefix tree over a pool with a window side."""

    def evict_windows_call(self, num_tokens: int) -> Call:
        """Give at least that many window slots back."""

    def window_available_size(self) -> int:
        """Window slots that can be allocated."""


class WindowTreeSide(Protocol):
    """Makes trees with windows."""

    def window_tree(self, size: int, page_size: int, span: int) -> WindowTree:
        """An empty least-recently-used tree, both sides of its pool of `size` slots, windows of `span` tokens."""


class UnifiedPool(Protocol):
    """An allocator whose pools share an arena."""

    has_states: bool

    def alloc(self, num_tokens: int, /) -> torch.Tensor | None:
        """Whole pages of slots, each page with its window page where there are windows."""

    def free(self, slots: torch.Tensor, /) -> None:
        """Slots with all that they have."""

    def free_segment(self, slots: torch.Tensor, /, *, start_pos: int) -> None:
        """A stretch of a row with all that it has."""

    def drop_windows(self, slots: torch.Tensor, /) -> None:
        """The window side of slots alone."""

    def alloc_states(self, num_states: int, /) -> torch.Tensor | None:
        """Slots for states."""

    def free_states(self, slots: torch.Tensor, /) -> None:
        """Slots of states."""

    def decode_call(self, seq: torch.Tensor, last: torch.Tensor) -> Call | None:
        """Grow rows by one token to `seq`; None if the library cannot do that without a GPU."""

    def available_size(self) -> int:
        """Tokens that can be allocated."""

    def clear(self) -> None:
        """All is free."""

    def bytes_moved(self) -> int:
        """Bytes copied so far because pages moved."""


class UnifiedSide(Protocol):
    """Makes arenas."""

    def unified_pool(self, kind: str, num_tokens: int, page_size: int, *, eager: bool) -> UnifiedPool:
        """Pools of a kind in `KINDS`, with bytes for that many tokens on every side and for `ARENA_STATES` states.

        eager: the ends close their holes at every free.
        """


def arena_bytes(kind: str, num_tokens: int) -> int:
    """Bytes of the arena that both sides make."""
    num_sides = 2 if "windows" in kind else 1
    return num_tokens * num_sides * TOKEN_BYTES + (ARENA_STATES * STATE_BYTES if "states" in kind else 0)
