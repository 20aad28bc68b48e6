"""What the manager answers when a request comes: what is cached for it, and what it got."""

from __future__ import annotations

from typing import NamedTuple

from kvstead.pages.amounts import Amounts


class Lease(NamedTuple):
    """What `match` hands out: the request's row, and how many of its tokens the cache already held.

    num_dead: tokens behind those whose full-attention slots are cached, but from which no request can continue, because
    their windows or their state are gone.
    """

    row: int
    num_cached: int
    num_dead: int = 0


class Peek(NamedTuple):
    """What `peek` sees: cached tokens, and the pages by side that could be evicted beside them.

    evictable leaves out what running rows could only let go in small pieces.
    """

    num_cached: int
    evictable: Amounts
