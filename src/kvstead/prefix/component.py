"""What a node holds for one kind of cache, and when that may go.

The tree knows tokens; a component knows slots. Every operation of the tree is one walk and a loop over its components,
so another kind of cache is another component, never another tree:

    operation      the tree                                   each component
    match          walks, splits the last node                `usable`: shortens the match to where its data suffices
    insert         hangs leaves below the last node           `mend`: fills in what the cached part lacks, `adopt`
    split, join    puts a node in between, takes it out       `split`, `join`: divides, unites what the two hold
    lock, unlock   counts pins                                keeps what a pin at that node needs
    evict, clear   takes nodes out                            `release`: gives back what they held

Full attention needs the slots of every token of a prefix, so a match may end anywhere, a pin holds the whole path, and
only leaves may go: `kvstead.prefix.full`. Layers with a window need the slots of the last tokens only:
`kvstead.prefix.window`. Layers with a state need that of the very last token: `kvstead.prefix.state`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NoReturn

import numpy as np

from kvstead.errors import AuditError
from kvstead.kernels.array_types import IntArray
from kvstead.prefix.node import Node
from kvstead.prefix.queue import EvictionQueue, Rank

LONGEST_JOIN = 8192  # tokens; nodes that were cut apart are joined up to this length, because a join copies them

NO_PAGES: IntArray = np.empty(0, dtype=np.int64)


class Component:
    """One kind of cache: one side of the memory, `side`. What a kind has no part in stays as here.

    rank: of a node among those whose part may go, which wait in `_queue`.
    """

    side: str

    def __init__(self, rank: Callable[[Node], Rank]) -> None:
        self._queue = EvictionQueue(rank)

    @property
    def evictable(self) -> int:
        """Pages of the side that eviction can free; here one for each node that waits. O(1)."""
        return len(self._queue)

    def first(self) -> Rank | None:
        """The rank of the next victim; None when nothing is evictable."""
        return self._queue.first()

    def pages_of(self, node: Node) -> int:  # noqa: ARG002 - as for all below: the defaults of a kind without a part
        """Pages of the side that a node holds."""
        return 0

    def cuts(self, pages: IntArray) -> Sequence[int]:  # noqa: ARG002
        """After how many of a key's new `pages` another node has to begin, ascending."""
        return ()

    def mend(self, path: Sequence[Node], num_shared: int, row: IntArray) -> None:
        """Take from the caller's row what the first `num_shared` tokens on `path` lack. Raises before any change."""

    def adopt(self, leaf: Node) -> None:
        """Take charge of what a new leaf holds; it hangs in the tree already."""

    def split(self, upper: Node, lower: Node) -> None:
        """`upper` has taken the leading tokens of `lower` and hangs above it: divide what `lower` holds."""

    def is_joinable(self, upper: Node, lower: Node) -> bool:  # noqa: ARG002
        """Whether a node and its only child may become one, for what this component holds there."""
        return True

    def join(self, upper: Node, lower: Node) -> None:
        """`lower` has taken the tokens of `upper`, which is about to go: unite what they hold."""

    def usable(self, path: Sequence[Node], length: int) -> int:  # noqa: ARG002
        """The longest prefix of `length` tokens that a request can continue; `path` leads from the root beyond them."""
        return length

    def use(self, node: Node, num_hits: int) -> None:
        """The path down to `node` was used now, at `node.access`; its own records are up to date."""

    def lock(self, node: Node) -> None:
        """Keep what a sequence ending at `node` needs."""

    def unlock(self, node: Node, since: int | None) -> None:
        """Undo one `lock` of the same node. `since`: what `loosen` left of it begins there."""

    def loosen(self, node: Node, since: int, to: int) -> None:
        """One lock of `node` that keeps what it needs from `since` on needs it only from `to` on."""

    def evict(self, num_pages: int, *, num_victims: int | None = None) -> IntArray:  # noqa: ARG002
        """Free at least `num_pages` pages, or all that are evictable; nodes stay.

        num_victims: of that many nodes at most. Returns the full page of each page that went, a node's last for its
        state. Raises what the pool raises, with nothing changed.
        """
        return NO_PAGES

    def release(self, nodes: Sequence[Node]) -> None:
        """Free what nodes hold that are about to leave the tree. Raises before anything has changed."""

    def audit(self, root: Node) -> None:
        """Recount everything this component holds. Raises `AuditError`."""


def fail(what: str) -> NoReturn:
    """Raise `AuditError` for a tree that was changed from outside."""
    raise AuditError(f"{what}. Change the tree only through its own operations.")
