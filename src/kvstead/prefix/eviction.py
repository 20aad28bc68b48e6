"""What goes next, over all that a tree holds.

    side      what goes                     frees                               useless, so first
    full      a leaf                        its slots, its window, its state    in a tree with states: without one
    window    a window, the node stays      window slots                        never needed
    state     a state, the node stays       a state                             superseded, and no match ended there

Sides that share no bytes are asked one by one (`evict`). Where they share bytes, the next victim is the lowest rank
over all sides (`evict_bytes`): useless ones first, then by the policy; the full side first on a tie.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

import numpy as np

from kvstead.errors import InvalidSize, KVSteadError, OpenGroup
from kvstead.kernels.array_types import IntArray
from kvstead.pages.amounts import FULL, Amounts, Evicted
from kvstead.prefix.component import NO_PAGES, Component
from kvstead.prefix.full import FullComponent
from kvstead.prefix.node import Node
from kvstead.prefix.slot_pools import SlotPool
from kvstead.prefix.structure import TreeStructure


class Eviction:
    """The order in which one tree frees what it holds.

    pool: the allocator; its free group must not be open, since nothing would become available before its end.
    components: all of the tree's, to count what removed nodes held; all but `full` may lose their part alone, the last
    of them first. structure: takes nodes out of the tree with all they hold; raises before anything has changed.
    """

    def __init__(
        self, pool: SlotPool, full: FullComponent, components: Sequence[Component], structure: TreeStructure
    ) -> None:
        self._pool = pool
        self._full = full
        self._components = components
        self._structure = structure

    def evict(self, wanted: Mapping[str, int]) -> Evicted:
        """Nodes for what is wanted of the full side; what they do not free of the other sides is evicted alone."""
        if min(wanted.values(), default=0) < 0:
            raise InvalidSize(f"cannot evict {dict(wanted)} pages. Ask for 0 or more of each side.")
        self._require_no_group()
        num_pages = wanted.get(FULL, 0)
        victims, gone = self._evict_nodes(num_pages) if num_pages else ([], Amounts())
        alone = Amounts()
        for part in reversed(self._components):
            side = part.side
            num_pages = wanted.get(side, 0) - gone.get(side, 0)
            if num_pages > 0 and part is not self._full:
                alone[side] = part.evict(num_pages).size
                gone[side] = gone.get(side, 0) + alone[side]
        return Evicted(gone, alone, len(victims))

    def evict_bytes(self, num_bytes: int, page_bytes: Mapping[str, int]) -> Evicted:
        """Victim after victim, until they make up `num_bytes`. A side of no bytes is not evicted alone."""
        if min(num_bytes, page_bytes.get(FULL, 0) - 1, *page_bytes.values()) < 0:
            raise InvalidSize(
                f"cannot evict {num_bytes} bytes where pages have {dict(page_bytes)} bytes. Ask for 0 bytes or more, "
                "with pages of the full side that have some."
            )
        self._require_no_group()
        each = Amounts(page_bytes)
        parts = [part for part in reversed(self._components) if part is not self._full and each[part.side]]
        nodes: list[Node] = []
        gone, alone = Amounts(), defaultdict[str, list[IntArray]](list)
        while num_bytes > 0:
            lowest, victim = self._full.first(), None  # no victim: a node as a whole
            for part in parts:
                rank = part.first()
                if rank is not None and (lowest is None or rank < lowest):
                    lowest, victim = rank, part
            if lowest is None:
                break
            if victim is None:
                victims, step = self._evict_nodes(1)
                nodes += victims
            else:
                num_pages = -(-num_bytes // each[victim.side])
                pages = victim.evict(num_pages, num_victims=1)
                step = Amounts({victim.side: pages.size})
                alone[victim.side].append(pages)
            num_bytes -= step.weighed(each)
            gone += step
        return Evicted(gone, _staying(alone, nodes), len(nodes))

    def _evict_nodes(self, num_pages: int) -> tuple[list[Node], Amounts]:
        """Leaves, and parents whose last child has gone, and what they held."""
        victims = self._full.choose(num_pages)
        gone = Amounts()
        if not victims:
            return victims, gone
        for part in self._components:
            gone[part.side] = sum([part.pages_of(node) for node in victims])
        try:
            self._structure.remove(victims)
        except KVSteadError:
            self._full.put_back(victims)
            raise
        return victims, gone

    def _require_no_group(self) -> None:
        if self._pool.free_group is not None:
            raise OpenGroup("eviction inside a free group would make nothing available. End the group first.")


def _staying(alone: Mapping[str, Sequence[IntArray]], nodes: Sequence[Node]) -> Amounts:
    """How many of the pages that went alone are of nodes that did not go later in the same call."""
    if not alone:
        return Amounts()
    left = np.concatenate([NO_PAGES, *(node.pages for node in nodes)])
    went = {side: np.concatenate(pages) for side, pages in alone.items()}
    return Amounts({side: int(np.isin(pages, left, invert=True).sum()) for side, pages in went.items()})
