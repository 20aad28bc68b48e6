"""What a node holds for one kind of cache, and when that may go.

The tree knows tokens; a component knows slots. Every operation of the tree is one walk and a loop over its components,
so another kind of cache is another component, never another tree:

    operation      the tree                                   each component
    match          walks, splits the last node                `usable`: draws the end back to where its data suffices
    insert         hangs leaves below the last node           `mend`: fills in what the cached part lacks, `adopt`
    split, join    puts a node in between, takes it out       `split`, `join`: divides, unites what the two hold
    lock, unlock   counts pins                                keeps what a pin at that node needs
    evict, clear   takes nodes out                            `release`: gives back what they held

Full attention needs the slots of every token of a prefix, so a match may end anywhere, a pin holds the whole path, and
only leaves may go. Layers with a window need the slots of the last tokens only: `kvstead.prefix.window`. Layers with a
state need that of the very last token: `kvstead.prefix.state`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NoReturn, Protocol

import numpy as np

from kvstead.errors import AuditError, ForeignPage, MisalignedSegment
from kvstead.kernels import host, tokens
from kvstead.kernels.array_types import IntArray, StateArray
from kvstead.prefix.node import Node
from kvstead.prefix.policies import Policy, Rank
from kvstead.prefix.queue import EvictionQueue

LONGEST_JOIN = 8192  # tokens; what nodes that were cut apart may be joined to, which copies them


class SlotPool(Protocol):
    """The part of an allocator that a tree needs."""

    @property
    def page_size(self) -> int:
        """Slots a page."""
        ...

    @property
    def num_pages(self) -> int:
        """Pages that can be handed out, ids 1 .. `num_pages`."""
        ...

    @property
    def free_group(self) -> object | None:
        """None, or the group in which frees wait."""
        ...

    def free_segment(self, slots: IntArray, *, start_pos: int) -> None:
        """Give back the whole pages that `slots` list, in row order; raises before anything has changed."""
        ...


class Component(Protocol):
    """One kind of cache."""

    def cuts(self, pages: IntArray) -> list[int]:
        """After how many of a key's new `pages` another node has to begin, ascending."""
        ...

    def mend(self, path: Sequence[Node], num_shared: int, row: IntArray) -> None:
        """Take from the caller's row what the first `num_shared` tokens on `path` lack. Raises before any change."""
        ...

    def adopt(self, leaf: Node) -> None:
        """Take charge of what a new leaf holds; it hangs in the tree already."""
        ...

    def split(self, upper: Node, lower: Node) -> None:
        """`upper` has taken the leading tokens of `lower` and hangs above it: divide what `lower` holds."""
        ...

    def is_joinable(self, upper: Node, lower: Node) -> bool:
        """Whether a node and its only child may become one, for what this component holds there."""
        ...

    def join(self, upper: Node, lower: Node) -> None:
        """`lower` has taken the tokens of `upper`, which is about to go: unite what they hold."""
        ...

    def usable(self, path: Sequence[Node], length: int) -> int:
        """The longest prefix of `length` tokens that can be gone on from; `path` leads from the root beyond them."""
        ...

    def use(self, node: Node, num_hits: int) -> None:
        """The path down to `node` was used now, at `node.access`; its own records are up to date."""
        ...

    def lock(self, node: Node) -> None:
        """Keep what a sequence ending at `node` needs."""
        ...

    def unlock(self, node: Node, since: int | None) -> None:
        """Undo one `lock` of the same node. `since`: what `loosen` left of it begins there."""
        ...

    def loosen(self, node: Node, since: int, to: int) -> None:
        """One lock of `node` that keeps what it needs from `since` on needs it only from `to` on."""
        ...

    def release(self, nodes: Sequence[Node]) -> None:
        """Give back what nodes hold that are about to leave the tree. Raises before anything has changed."""
        ...

    def audit(self, root: Node) -> None:
        """Recount everything. Raises `AuditError`."""
        ...


class FullComponent:
    """Full attention: slots for every token of a node, kept as page ids.

    has_states: whether a leaf without a state is of no use to anybody. `_held` has one byte a page, 1 while a node owns
    it: that a page comes into the tree twice is seen at the call. The counters are O(1); a token is counted once, as
    evictable or as protected.
    """

    def __init__(self, pool: SlotPool, policy: Policy, *, has_states: bool = False) -> None:
        self.evictable_tokens = 0
        self.protected_tokens = 0
        self._pool = pool
        self._page_size = pool.page_size
        self._queue = EvictionQueue(lambda node: (not has_states or node.state is not None, *policy(node)))
        self._held: StateArray = np.zeros(pool.num_pages + 1, dtype=np.uint8)

    def cuts(self, pages: IntArray) -> list[int]:  # noqa: ARG002 - any pages make one node
        """None: all pages are alike."""
        return []

    def mend(self, path: Sequence[Node], num_shared: int, row: IntArray) -> None:
        """Nothing is ever lacking."""

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
        """Undo `claim`."""
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
        self.evictable_tokens += leaf.tokens.size
        self._queue.discard(leaf.parent)
        self._queue.add(leaf)

    def split(self, upper: Node, lower: Node) -> None:
        """Divide the pages; a lock on the lower half holds the upper half too."""
        num_pages = upper.tokens.size // self._page_size
        upper.pages = lower.pages[:num_pages].copy()
        lower.pages = lower.pages[num_pages:].copy()
        upper.locks = lower.locks

    def is_joinable(self, upper: Node, lower: Node) -> bool:
        """With no lock that ends between them."""
        return upper.locks == lower.locks

    def join(self, upper: Node, lower: Node) -> None:
        """Unite the pages."""
        lower.pages = np.concatenate((upper.pages, lower.pages))
        self._queue.refresh(lower)

    def usable(self, path: Sequence[Node], length: int) -> int:  # noqa: ARG002 - nothing on the path is ever missing
        """All of it."""
        return length

    def use(self, node: Node, num_hits: int) -> None:  # noqa: ARG002 - the node's own record says it
        """Only the last node of a path can be waiting for eviction."""
        self._queue.refresh(node)

    def lock(self, node: Node) -> None:
        """Keep the whole path."""
        self._queue.discard(node)
        at = node
        while at.parent is not None:
            if at.locks == 0:
                self.evictable_tokens -= at.tokens.size
                self.protected_tokens += at.tokens.size
            at.locks += 1
            at = at.parent

    def unlock(self, node: Node, since: int | None = None) -> None:  # noqa: ARG002 - never loosened
        """Let the whole path go, as far as nobody else keeps it."""
        at = node
        while at.parent is not None:
            at.locks -= 1
            if at.locks == 0:
                self.evictable_tokens += at.tokens.size
                self.protected_tokens -= at.tokens.size
            at = at.parent
        if self._is_evictable(node):
            self._queue.add(node)

    def loosen(self, node: Node, since: int, to: int) -> None:
        """All of the path stays needed."""

    def first(self) -> Rank | None:
        """The rank of what would go next."""
        return self._queue.first()

    def choose(self, num_tokens: int) -> list[Node]:
        """Take nodes of at least `num_tokens` tokens out of the queue, children before their parents.

        Fewer when there is no more to take. A parent that only had chosen children joins the queue at once.
        """
        chosen: list[Node] = []
        num_left: dict[Node, int] = {}  # children that stay, by parent of a chosen node
        while num_tokens > 0 and (node := self._queue.pop()) is not None:
            chosen.append(node)
            num_tokens -= node.tokens.size
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
        """Give the pages of unlocked nodes back to the allocator, in one call."""
        if not nodes:
            return
        pages = np.concatenate([node.pages for node in nodes]) if len(nodes) > 1 else nodes[0].pages
        self._pool.free_segment(self.slots(pages), start_pos=0)
        self._held[pages] = 0
        self.evictable_tokens -= pages.size * self._page_size
        for node in nodes:
            self._queue.discard(node)

    def audit(self, root: Node) -> None:
        """Recount pages, locks, counters and the queue. Raises `AuditError`."""
        nodes = list(root.below())
        for node in nodes:
            if node.pages.size * self._page_size != node.tokens.size:
                fail(f"{node} has {node.pages.size} pages for {node.tokens.size} tokens")
            held = node.state.holds if node.state is not None else 0
            if node.locks != node.pins + held + sum(child.locks for child in node.children.values()):
                fail(
                    f"{node} has {node.pins} pins, which with {held} holds of its state and its children's locks do "
                    f"not make {node.locks}"
                )
        protected = sum(node.tokens.size for node in nodes if node.locks)
        evictable = sum(node.tokens.size for node in nodes) - protected
        if (evictable, protected) != (self.evictable_tokens, self.protected_tokens):
            fail(
                f"evictable and protected tokens are counted as {self.evictable_tokens} and {self.protected_tokens} "
                f"but the nodes hold {evictable} and {protected}"
            )
        pages = np.sort(np.concatenate([root.pages, *(node.pages for node in nodes)]))
        if not np.array_equal(pages, np.flatnonzero(self._held)):
            fail(f"the nodes hold {pages.size} pages, which are not those that are marked as held")
        if set(self._queue) != {node for node in nodes if self._is_evictable(node)}:
            fail(f"{len(self._queue)} nodes wait for eviction, and they are not the unlocked leaves")

    def _is_evictable(self, node: Node) -> bool:
        return node.locks == 0 and not node.children and node.parent is not None

    def _refuse(self, fault: int, slots: IntArray) -> NoReturn:
        page = slots[0] // self._page_size
        if fault == tokens.FAULT_OFFSET:
            raise MisalignedSegment(
                f"slots {slots.tolist()} are not the consecutive slots of a page of {self._page_size}. Pass the "
                "request's row unchanged, from position 0."
            )
        if fault == tokens.FAULT_FOREIGN:
            raise ForeignPage(
                f"page {page} is none of the pool's pages 1..{self._pool.num_pages}. Insert only slots that the "
                "tree's own allocator handed out."
            )
        raise AuditError(
            f"page {page} would be owned twice: a node of the tree holds it already, or the slots repeat it. Insert "
            "a request's own slots behind those that it took from the tree."
        )


def fail(what: str) -> NoReturn:
    """Raise `AuditError`."""
    raise AuditError(f"{what}. Something changed the tree other than by its own operations.")
