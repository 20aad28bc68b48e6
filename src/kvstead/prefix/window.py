"""What a node holds for layers that look back over a window or a chunk only, and when that may go.

    window of 4       root -- [a a a a] -- [b b b b] -- [c c c c]
    window side                  live       tombstone      live
    a match may end            at 4: yes     at 8: no     at 12: yes, its last 4 tokens are live

The window side of a node is the window pages that its pages own in the allocator; it dies earlier than the full side,
and alone. A node is live as a whole or not at all: where liveness has to change inside one, the node is cut.

A lock of a node keeps the window side from `Window.needed_from(node.end)` on, no more, and beginning at a node's start.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from math import lcm
from typing import Protocol

import numpy as np

from kvstead.errors import AuditError, InvalidSize, LockUnderflow
from kvstead.kernels.array_types import IntArray
from kvstead.model.window import Window
from kvstead.prefix.component import LONGEST_JOIN, SlotPool, fail
from kvstead.prefix.node import Node, WindowPart
from kvstead.prefix.policies import Policy, Rank
from kvstead.prefix.queue import EvictionQueue

# Nodes that were cut apart and are alike again are joined up to so many windows, so that paths stay short.
_WINDOWS_A_JOIN = 8


class WindowPool(SlotPool, Protocol):
    """The part of an allocator with two sides that a tree needs besides."""

    @property
    def window_pages(self) -> IntArray:
        """The window page of each page, 0 for none."""
        ...

    def free_window_pages(self, pages: IntArray) -> None:
        """Give back the window pages of `pages`; nothing for those that have none."""
        ...

    def move_window(self, src: IntArray, dst: IntArray) -> None:
        """Hand window pages on from the pages of slots to those of others; raises before anything has changed."""
        ...


class WindowComponent:
    """Window slots, kept where the full component keeps its pages.

    cut: splits a node of the tree after so many tokens and returns the upper part; the lower one keeps its identity.
    join: undoes that where nothing needs the boundary at a node's end; the lower part keeps its identity.
    is_owned: says whether a node has one of these pages.
    The counters are tokens: `evictable_tokens` and `protected_tokens` have window slots, `tombstone_tokens` do not.
    """

    def __init__(
        self,
        pool: WindowPool,
        policy: Policy,
        window: Window,
        *,
        cut: Callable[[Node, int], Node],
        join: Callable[[Node], None],
        is_owned: Callable[[IntArray], bool],
    ) -> None:
        self.evictable_tokens = 0
        self.protected_tokens = 0
        self.tombstone_tokens = 0
        self._pool = pool
        self._window = window
        self._page_size = pool.page_size
        self._cut = cut
        self._join = join
        self._is_owned = is_owned
        # What lies in the midst of prompts goes before what sequences ended with, whatever its age: a prompt brings in
        # far more of it, and it is of use only to who leaves the path just there. Of windows used at one time the one
        # nearest the root goes first, so that the branch can still be matched.
        self._queue = EvictionQueue(lambda node: (node.window.was_needed, *policy(node.window), node.end))
        self._longest_join = min(_WINDOWS_A_JOIN * window.span, LONGEST_JOIN)
        # A match may end in the middle of tombstones where a new chunk begins.
        self._fresh_starts = lcm(window.span, pool.page_size) if window.is_chunked else 0

    def cuts(self, pages: IntArray) -> list[int]:
        """A node is live as a whole or dead as a whole."""
        has = self._pool.window_pages[pages] > 0
        if np.count_nonzero(has) in {0, has.size}:
            return []
        return (np.flatnonzero(has[1:] != has[:-1]) + 1).tolist()

    def adopt(self, leaf: Node) -> None:
        """Count a leaf, all of whose pages are alike."""
        leaf.window = WindowPart(leaf.created, leaf.priority, is_live=bool(self._pool.window_pages[leaf.pages[0]] > 0))
        if leaf.window.is_live:
            self.evictable_tokens += leaf.tokens.size
            self._queue.add(leaf)
        else:
            self.tombstone_tokens += leaf.tokens.size

    def mend(self, path: Sequence[Node], num_shared: int, row: IntArray) -> None:
        """Revive tombstones with the window pages of the caller's own slots for the same tokens."""
        runs = [run for node in path[1:] if not node.window.is_live for run in self._givable(node, num_shared, row)]
        if not runs:
            return
        givers = np.concatenate([row[start : end : self._page_size] for _, start, end in runs])
        if self._is_owned(givers // self._page_size):
            raise AuditError(
                "slots of other prefixes were passed for tokens whose window is gone. Insert a request's own slots "
                "behind those that it took from the tree."
            )
        takers = [at.pages[(a - at.start) // self._page_size : (b - at.start) // self._page_size] for at, a, b in runs]
        self._pool.move_window(givers, np.concatenate(takers) * self._page_size)
        for node, start, end in runs:
            self._revive(self._stretch(node, start, end))

    def split(self, upper: Node, lower: Node) -> None:
        """Both halves are as the node was; whoever needed it needs both."""
        upper.window = lower.window.copy()
        if lower in self._queue:
            self._queue.add(upper)

    def is_joinable(self, upper: Node, lower: Node) -> bool:
        """If they are alike, and not too long: a node is evicted as a whole."""
        a, b = upper.window, lower.window
        if (a.is_live, a.locks, a.was_needed) != (b.is_live, b.locks, b.was_needed):
            return False
        return lower.end - upper.start <= self._longest_join

    def join(self, upper: Node, lower: Node) -> None:
        """The later use counts."""
        self._queue.discard(upper)
        part, other = lower.window, upper.window
        part.access, part.hits = max(part.access, other.access), max(part.hits, other.hits)
        part.priority = max(part.priority, other.priority)
        self._queue.refresh(lower)

    def usable(self, path: Sequence[Node], length: int) -> int:
        """Go back over tombstones until the live tokens behind the last one suffice."""
        end = length
        for node in reversed(path):
            start = node.start
            if start >= end or node.window.is_live:
                continue
            dead = min(node.end, end)  # live from here to `end`
            if self._window.needed_from(end) >= dead:
                return end
            fresh = dead // self._fresh_starts * self._fresh_starts if self._fresh_starts else 0
            if fresh > start:
                return fresh
            end = start
        return end

    def use(self, node: Node, num_hits: int) -> None:
        """Only what a sequence that goes on at `node` needs was used."""
        since = self._start(node)
        self._cut_at(node, since)
        for at in self._needed(node, since):
            part = at.window
            part.was_needed = True
            part.access = node.access
            part.hits += num_hits
            part.priority = max(part.priority, node.priority)
            self._queue.refresh(at)

    def lock(self, node: Node) -> None:
        """Keep what a sequence that goes on at `node` needs."""
        since = self._start(node)
        self._cut_at(node, since)
        for at in self._needed(node, since):
            if at.window.locks == 0 and at.window.is_live:
                self._protect(at)
            at.window.locks += 1
        node.window.starts[since] = node.window.starts.get(since, 0) + 1

    def unlock(self, node: Node, since: int | None = None) -> None:
        """Let go what a lock has kept from `since` on (all of it if not given), as far as nobody else keeps it.

        Raises `LockUnderflow`, with nothing changed, when no lock of the node keeps just that.
        """
        since = self._start_of_lock(node, self._start(node) if since is None else since)
        self._forget_start(node, since)
        self._let_go(self._needed(node, since))

    def loosen(self, node: Node, since: int, to: int) -> None:
        """Let go what a lock has kept from `since` up to `to`.

        Raises as `unlock`, and `InvalidSize` for a window that would grow.
        """
        if to < since:
            raise InvalidSize(f"the window of a lock of {node} cannot go back from {since} to {to}. Loosen it forward.")
        since, to = self._start_of_lock(node, since), min(to - to % self._page_size, node.end)
        self._forget_start(node, since)
        node.window.starts[to] = node.window.starts.get(to, 0) + 1
        self._cut_at(node, to)
        loose = [at for at in self._needed(node, since) if at.end <= to]
        self._let_go(loose)
        for at in loose[:1]:
            assert at.parent is not None, "the root has no window to loosen"
            self._join(at.parent)

    def first(self) -> Rank | None:
        """The rank of what would go next."""
        return self._queue.first()

    def evict(self, num_tokens: int) -> int:
        """Give window slots of at least `num_tokens` tokens back, or all that no lock keeps; the full side stays.

        Whole nodes but for the last, which is cut if it holds much more than is wanted. Returns the number of tokens.
        """
        chosen: list[Node] = []
        wanted = num_tokens
        while wanted > 0 and (node := self._choose(wanted)) is not None:
            chosen.append(node)
            wanted -= node.tokens.size
        self._bury(chosen)
        return num_tokens - wanted if chosen else 0

    def evict_next(self, num_tokens: int) -> int:
        """As `evict`, but of one node only."""
        node = self._choose(num_tokens)
        if node is None:
            return 0
        num_freed = node.tokens.size
        self._bury([node])
        return num_freed

    def release(self, nodes: Sequence[Node]) -> None:
        """Count nodes out; the full side gives back both."""
        for node in nodes:
            if node.window.is_live:
                self.evictable_tokens -= node.tokens.size
                self._queue.discard(node)
            else:
                self.tombstone_tokens -= node.tokens.size

    def audit(self, root: Node) -> None:
        """Recount liveness, locks, counters and the queue. Raises `AuditError`."""
        nodes = list(root.below())
        locks = self._count_locks(nodes)
        for node in nodes:
            mapped = self._pool.window_pages[node.pages] > 0
            if not (mapped == node.window.is_live).all():
                fail(f"{node} is {'live' if node.window.is_live else 'a tombstone'}, {mapped.sum()} pages have windows")
            if sum(node.window.starts.values()) != node.pins:
                fail(f"{node} has {node.pins} pins, but windows of {node.window.starts} (start: locks)")
        for node in nodes:
            if node.window.locks != locks[node]:
                fail(f"{node} has {node.window.locks} locks on its window side, where {locks[node]} reach it")
        live = [node for node in nodes if node.window.is_live]
        protected = sum(node.tokens.size for node in live if node.window.locks)
        evictable = sum(node.tokens.size for node in live) - protected
        tombstones = sum(node.tokens.size for node in nodes) - protected - evictable
        counted = self.evictable_tokens, self.protected_tokens, self.tombstone_tokens
        if counted != (evictable, protected, tombstones):
            fail(
                f"evictable, protected and dead window tokens are counted as {counted} but the nodes hold "
                f"{(evictable, protected, tombstones)}"
            )
        if set(self._queue) != {node for node in live if node.window.locks == 0}:
            fail(f"{len(self._queue)} nodes wait to lose their window, and they are not the unlocked live ones")

    def _choose(self, num_tokens: int) -> Node | None:
        """Take the node that goes first out of the queue, or the head of it if it holds much more than `num_tokens`."""
        node = self._queue.pop()
        if node is None:
            return None
        # Not finer than two windows, or a path would fall into pieces of a page.
        part = max(num_tokens, 2 * self._window.span)
        part += -part % self._page_size
        if part >= node.tokens.size:
            return node
        upper = self._cut(node, part)
        self._queue.add(node)
        return upper

    def _bury(self, chosen: Sequence[Node]) -> None:
        """Make chosen nodes tombstones."""
        if chosen:
            self._pool.free_window_pages(np.concatenate([node.pages for node in chosen]))
        for node in chosen:
            node.window.is_live = node.window.was_needed = False
            self.evictable_tokens -= node.tokens.size
            self.tombstone_tokens += node.tokens.size
        for node in chosen:
            self._join_tombstones(node)

    def _count_locks(self, nodes: Sequence[Node]) -> Counter[Node]:
        """How many locks reach each node."""
        locks: Counter[Node] = Counter()
        for node in nodes:
            for start, count in node.window.starts.items():
                for at in self._needed(node, start):
                    locks[at] += count
        return locks

    def _start(self, node: Node) -> int:
        """Where the window that a lock of `node` keeps begins."""
        needed = self._window.needed_from(node.end)
        return needed - needed % self._page_size

    def _needed(self, node: Node, since: int) -> Iterator[Node]:
        """`node` and the nodes above it that lie behind `since`."""
        while node.end > since:
            yield node
            assert node.parent is not None, "only the root ends at 0"
            node = node.parent

    def _cut_at(self, node: Node, position: int) -> None:
        """Let a node begin at `position`, on the path down to `node`."""
        while node.start > position:
            assert node.parent is not None, "the root starts at 0"
            node = node.parent
        if node.start < position < node.end:
            self._cut(node, position - node.start)

    def _join_tombstones(self, node: Node) -> None:
        """Join a tombstone to those next to it, unless it has been already."""
        if node.parent is None:
            return
        if not node.parent.window.is_live:
            self._join(node.parent)
        if len(node.children) == 1 and not next(iter(node.children.values())).window.is_live:
            self._join(node)

    def _givable(self, node: Node, num_shared: int, row: IntArray) -> Iterator[tuple[Node, int, int]]:
        """Stretches of a tombstone for which the caller's row has window pages: (node, start, end)."""
        start, end = node.start, min(node.end, num_shared)
        pages = row[start : end : self._page_size] // self._page_size
        if pages[0] == node.pages[0] and pages[-1] == node.pages[pages.size - 1]:
            return  # the row reads the tree's own slots here
        known = (pages > 0) & (pages <= self._pool.num_pages)  # what is no page gives nothing, and is refused elsewhere
        has = np.concatenate(([0], self._pool.window_pages[np.where(known, pages, 0)] > 0, [0]))
        edges = np.flatnonzero(np.diff(has)) * self._page_size + start
        for a, b in edges.reshape(-1, 2).tolist():
            yield node, a, b

    def _stretch(self, node: Node, start: int, end: int) -> Node:
        """The tokens from `start` to `end` of `node` as a node of their own."""
        if node.end > end:
            node = self._cut(node, end - node.start)
        if node.start < start:
            self._cut(node, start - node.start)
        return node

    def _revive(self, node: Node) -> None:
        node.window.is_live = True
        node.window.access = node.access
        self.tombstone_tokens -= node.tokens.size
        if node.window.locks:
            self.protected_tokens += node.tokens.size
        else:
            self.evictable_tokens += node.tokens.size
            self._queue.add(node)

    def _protect(self, node: Node) -> None:
        self._queue.discard(node)
        self.evictable_tokens -= node.tokens.size
        self.protected_tokens += node.tokens.size

    def _start_of_lock(self, node: Node, since: int) -> int:
        """Where the window part of a lock of `node` begins, which is to be `since`; past the end all are alike."""
        start = min(since - since % self._page_size, node.end)
        if start not in node.window.starts:
            raise LockUnderflow(
                f"no lock of {node} keeps windows from token {since} on. Pass where the lock's window part begins: as "
                "`lock` made it begin, or the last `loosen`."
            )
        return start

    def _forget_start(self, node: Node, start: int) -> None:
        starts = node.window.starts
        starts[start] -= 1
        if not starts[start]:
            del starts[start]

    def _let_go(self, nodes: Iterable[Node]) -> None:
        for at in nodes:
            at.window.locks -= 1
            if at.window.locks == 0 and at.window.is_live:
                self.protected_tokens -= at.tokens.size
                self.evictable_tokens += at.tokens.size
                self._queue.add(at)
