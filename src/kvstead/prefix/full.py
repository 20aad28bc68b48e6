"""What a node holds for full attention: the slots of all its tokens, and when they may go."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NoReturn

import numpy as np

from kvstead.errors import AuditError, ForeignPage, MisalignedSegment
from kvstead.kernels import host, tokens
from kvstead.kernels.array_types import IntArray, StateArray
from kvstead.pages.amounts import FULL
from kvstead.prefix.component import Component, fail
from kvstead.prefix.node import Node
from kvstead.prefix.queue import Policy, node_rank
from kvstead.prefix.slot_pools import SlotPool


class FullComponent(Component):
    """Slots for every token of a node, kept as page ids.

    has_states: whether a leaf without a state is useless, as in a tree with states. `_held` has one byte per page, 1
    while a node owns the page, so that inserting a page twice is seen at the call. `evictable` and `protected` count
    pages; each page is one or the other. It is never evicted alone: `choose` takes whole nodes.
    """

    side = FULL
    evictable = 0
    protected = 0

    def __init__(self, pool: SlotPool, policy: Policy, *, has_states: bool = False) -> None:
        super().__init__(node_rank(policy, has_states=has_states))
        self._pool = pool
        self._page_size = pool.page_size
        self._held: StateArray = np.zeros(pool.num_pages + 1, dtype=np.uint8)

    def pages_of(self, node: Node) -> int:
        """Every node has a page for each `page_size` tokens."""
        return node.pages.size

    def claim(self, slots: IntArray) -> IntArray:
        """Own the pages of `slots`, whole pages in row order, and return their ids.

        Raises `MisalignedSegment` when the slots of a page do not follow one another from its start, `ForeignPage` for
        padding or a page outside the pool, `AuditError` for a page that the tree owns already or that is named twice.
        """
        pages = np.empty(slots.size // self._page_size, dtype=np.int64)
        fault, bad = tokens.hold_pages(self._held, slots, self._page_size, pages)
        if fault != tokens.FAULT_NONE:
            self._refuse(fault, slots[bad * self._page_size : (bad + 1) * self._page_size])
        return pages

    def disclaim(self, pages: IntArray) -> None:
        """Undo `claim` for pages that no node got."""
        self._held[pages] = 0

    def is_owned(self, pages: IntArray) -> bool:
        """Whether a node has one of these pages."""
        return bool(self._held[pages].any())

    def held_pages(self) -> IntArray:
        """The ids of all pages that nodes own, ascending."""
        return np.flatnonzero(self._held)

    def slots(self, pages: IntArray) -> IntArray:
        """int64[pages * page_size], the slots of `pages` in order."""
        slots = np.empty(pages.size * self._page_size, dtype=np.int64)
        host.expand_pages(pages, self._page_size, slots)
        return slots

    def adopt(self, leaf: Node) -> None:
        """Count a leaf whose pages were claimed; its parent is no leaf any more."""
        assert leaf.parent is not None, "a leaf is adopted after it was hung into the tree"
        self.evictable += leaf.pages.size
        self._queue.discard(leaf.parent)
        self._queue.add(leaf)

    def split(self, upper: Node, lower: Node) -> None:
        """Divide the pages; a lock on the lower half holds the upper half too."""
        num_pages = upper.tokens.size // self._page_size
        upper.pages = lower.pages[:num_pages].copy()
        lower.pages = lower.pages[num_pages:].copy()
        upper.locks = lower.locks

    def is_joinable(self, upper: Node, lower: Node) -> bool:
        """Joinable when no lock ends between the two."""
        return upper.locks == lower.locks

    def join(self, upper: Node, lower: Node) -> None:
        """The lower node takes over the pages of the upper one."""
        lower.pages = np.concatenate((upper.pages, lower.pages))
        self._queue.refresh(lower)

    def use(self, node: Node, num_hits: int) -> None:  # noqa: ARG002 - the node's own record says it
        """Only the last node of a path can be waiting for eviction."""
        self._queue.refresh(node)

    def lock(self, node: Node) -> None:
        """Keep every node from the root to this one."""
        self._queue.discard(node)
        at = node
        while at.parent is not None:
            if at.locks == 0:
                self.evictable -= at.pages.size
                self.protected += at.pages.size
            at.locks += 1
            at = at.parent

    def unlock(self, node: Node, since: int | None = None) -> None:  # noqa: ARG002 - never loosened
        """Let the whole path go, except for nodes that other locks keep."""
        at = node
        while at.parent is not None:
            at.locks -= 1
            if at.locks == 0:
                self.evictable += at.pages.size
                self.protected -= at.pages.size
            at = at.parent
        if node.locks == 0 and not node.children and node.parent is not None:
            self._queue.add(node)

    def choose(self, num_pages: int) -> list[Node]:
        """Take nodes of at least `num_pages` pages out of the queue, children before their parents.

        Fewer when there is no more to take. A parent that only had chosen children joins the queue at once.
        """
        chosen: list[Node] = []
        num_left: dict[Node, int] = {}  # children that stay, by parent of a chosen node
        while num_pages > 0 and (node := self._queue.pop()) is not None:
            chosen.append(node)
            num_pages -= node.pages.size
            parent = node.parent
            assert parent is not None, "a node that waits for eviction hangs in the tree"
            num_left[parent] = num_left.get(parent, len(parent.children)) - 1
            if num_left[parent] == 0 and parent.locks == 0 and parent.parent is not None:
                self._queue.add(parent)
        return chosen

    def put_back(self, chosen: Sequence[Node]) -> None:
        """Undo `choose`: only leaves wait again."""
        for node in chosen:
            assert node.parent is not None, "chosen nodes hang in the tree until they are released"
            self._queue.discard(node.parent)
            if not node.children:
                self._queue.add(node)

    def release(self, nodes: Sequence[Node]) -> None:
        """Free the pages of unlocked nodes, in one call of the allocator."""
        if not nodes:
            return
        pages = np.concatenate([node.pages for node in nodes]) if len(nodes) > 1 else nodes[0].pages
        self._pool.free_segment(self.slots(pages), start_pos=0)
        self._held[pages] = 0
        self.evictable -= pages.size
        for node in nodes:
            self._queue.discard(node)

    def audit(self, root: Node) -> None:
        """Recount pages, locks, counters and the queue. Raises `AuditError`."""
        nodes = list(root.below())
        for node in nodes:
            if node.pages.size * self._page_size != node.tokens.size:
                fail(f"{node} has {node.pages.size} pages for {node.tokens.size} tokens")
            held = node.state.holds if node.state is not None else 0
            below = sum(child.locks for child in node.children.values())
            if node.locks != node.pins + held + below:
                fail(f"{node} counts {node.locks} locks, but has {node.pins} pins, {held} holds and {below} from below")
        protected = sum(node.pages.size for node in nodes if node.locks)
        evictable = sum(node.pages.size for node in nodes) - protected
        if (evictable, protected) != (self.evictable, self.protected):
            fail(
                f"evictable and protected pages are counted as {self.evictable} and {self.protected} but the nodes "
                f"hold {evictable} and {protected}"
            )
        pages = np.sort(np.concatenate([root.pages, *(node.pages for node in nodes)]))
        if not np.array_equal(pages, np.flatnonzero(self._held)):
            fail(f"the nodes hold {pages.size} pages, which are not those that are marked as held")
        if set(self._queue) != {node for node in nodes if node.locks == 0 and not node.children}:
            fail(f"{len(self._queue)} nodes wait for eviction, and they are not the unlocked leaves")

    def _refuse(self, fault: int, slots: IntArray) -> NoReturn:
        page = slots[0] // self._page_size
        if fault == tokens.FAULT_OFFSET:
            raise MisalignedSegment(
                f"slots {slots.tolist()} are not the consecutive slots of a page of {self._page_size}. Pass the "
                "request's row unchanged, from position 0."
            )
        if fault == tokens.FAULT_FOREIGN:
            raise ForeignPage(
                f"page {page} does not belong to this pool (1 .. {self._pool.num_pages}). Insert only slots that the "
                "tree's own allocator handed out."
            )
        raise AuditError(
            f"page {page} would have two owners: a node of the tree holds it already, or the slots repeat it. Insert "
            "a request's own slots behind those that it took from the tree."
        )
