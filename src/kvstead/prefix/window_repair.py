"""How tombstones get windows again: a request that computed the same tokens hands over its window pages.

Tokens 8 .. 15 of a tombstone, page size 4:

    pages of the tombstone    5    6      neither has a window page
    pages of the row          7    8      page 8 has one: page 6 takes it over
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from kvstead.kernels.array_types import IntArray
from kvstead.prefix.node import Node
from kvstead.prefix.slot_pools import WindowPool


class Repair(NamedTuple):
    """Tokens `start` .. `end` - 1 of a tombstone for which a row has window pages."""

    node: Node
    start: int
    end: int


def find_repairs(path: Sequence[Node], num_shared: int, row: IntArray, pool: WindowPool) -> list[Repair]:
    """What a caller's row can give the tombstones on a path below the root, within `num_shared` tokens."""
    found: list[Repair] = []
    page_size = pool.page_size
    for node in path[1:]:
        if node.window.is_live:
            continue
        start, end = node.start, min(node.end, num_shared)
        pages = row[start:end:page_size] // page_size
        if pages[0] == node.pages[0] and pages[-1] == node.pages[pages.size - 1]:
            continue  # the row reads the tree's own slots here
        is_page = (pages > 0) & (pages <= pool.num_pages)  # a slot of no page gives nothing; it is refused elsewhere
        has = np.concatenate(([0], pool.window_pages[np.where(is_page, pages, 0)] > 0, [0]))
        edges = np.flatnonzero(np.diff(has)) * page_size + start
        found += [Repair(node, first, last) for first, last in edges.reshape(-1, 2).tolist()]
    return found
