"""What the manager says when a request comes: what there is for it, and what it got."""

from __future__ import annotations

from typing import NamedTuple


class Lease(NamedTuple):
    """What `match` hands out: the request's row, and how many of its tokens the cache already held.

    num_dead: tokens behind those whose full-attention slots are cached, but which cannot be gone on from, because their
    window slots are gone.
    """

    row: int
    num_cached: int
    num_dead: int = 0


class Peek(NamedTuple):
    """What `peek` sees: cached tokens, and the pages of each side that could be had beside them.

    window_room leaves out what running rows could only let go in crumbs.
    """

    num_cached: int
    room: int
    window_room: int
