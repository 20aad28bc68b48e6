"""What the manager says when a request comes: what there is for it, and what it got."""

from __future__ import annotations

from typing import NamedTuple

from kvstead.engine.room import Demand


class Lease(NamedTuple):
    """What `match` hands out: the request's row, and how many of its tokens the cache already held.

    num_dead: tokens behind those whose full-attention slots are cached, but which cannot be gone on from, because their
    window slots or their state are gone.
    """

    row: int
    num_cached: int
    num_dead: int = 0


class Peek(NamedTuple):
    """What `peek` sees: cached tokens, and what could be evicted beside them.

    evictable leaves out what running rows could only let go in crumbs.
    """

    num_cached: int
    evictable: Demand
