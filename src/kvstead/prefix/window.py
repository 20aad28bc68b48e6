"""What a node holds for layers that look back over a window or a chunk only, and when that may go.

    window of 4       root -- [a a a a] -- [b b b b] -- [c c c c]
    window side                  live       tombstone      live
    a match may end            at 4: yes     at 8: no     at 12: yes, its last 4 tokens are live

The window side of a node is the window pages linked to its pages in the allocator; it may be evicted earlier than the
full side, and alone. A node is live as a whole or not at all: where liveness has to change inside one, the node is cut.

A lock of a node keeps the window side from `Window.needed_from(node.end)` on, no more, or less once it was loosened. A
node's `starts` says where the parts of its own locks begin; nodes are cut so that a part begins at a node's start.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import lcm

import numpy as np

from kvstead.errors import AuditError, InvalidSize, LockUnderflow
from kvstead.kernels.array_types import IntArray
from kvstead.model.window import Window
from kvstead.pages.amounts import WINDOW
from kvstead.prefix.component import LONGEST_JOIN, NO_PAGES, Component
from kvstead.prefix.full import FullComponent
from kvstead.prefix.node import Node, WindowPart
from kvstead.prefix.queue import Policy, window_rank
from kvstead.prefix.slot_pools import WindowPool
from kvstead.prefix.structure import TreeStructure
from kvstead.prefix.window_audit import WindowCounts, audit_windows
from kvstead.prefix.window_repair import find_repairs

# Nodes that were cut apart and are alike again are joined up to this many windows, so that paths stay short.
_WINDOWS_A_JOIN = 8


class WindowComponent(Component):
    """Window slots, kept where the full component keeps its pages.

    full: knows which pages nodes have. structure: cuts nodes where a window begins, and joins them again. `evictable`
    and `protected` count pages with window pages, `dead` those of tombstones; `spare` those of the evictable ones that
    no sequence ended near enough to need.
    """

    side = WINDOW
    evictable = 0
    spare = 0
    protected = 0
    dead = 0

    def __init__(
        self, pool: WindowPool, policy: Policy, window: Window, full: FullComponent, structure: TreeStructure
    ) -> None:
        super().__init__(window_rank(policy))
        self._pool = pool
        self._window = window
        self._page_size = pool.page_size
        self._structure = structure
        self._full = full
        self._longest_join = min(_WINDOWS_A_JOIN * window.span, LONGEST_JOIN)
        # A match may end in the middle of tombstones where a new chunk begins.
        self._fresh_starts = lcm(window.span, pool.page_size) if window.is_chunked else 0

    def pages_of(self, node: Node) -> int:
        """As many as the node has full pages, or none for a tombstone."""
        return node.pages.size if node.window.is_live else 0

    def cuts(self, pages: IntArray) -> list[int]:
        """Where liveness changes: a node is live as a whole or dead as a whole."""
        has = self._pool.window_pages[pages] > 0
        if np.count_nonzero(has) in {0, has.size}:
            return []
        return (np.flatnonzero(has[1:] != has[:-1]) + 1).tolist()

    def adopt(self, leaf: Node) -> None:
        """Count a leaf, all of whose pages are alike."""
        leaf.window = WindowPart(leaf.created, leaf.priority, is_live=bool(self._pool.window_pages[leaf.pages[0]] > 0))
        if leaf.window.is_live:
            self._count_evictable(leaf, 1)
            self._queue.add(leaf)
        else:
            self.dead += leaf.pages.size

    def mend(self, path: Sequence[Node], num_shared: int, row: IntArray) -> None:
        """Revive tombstones with the window pages of the caller's own slots for the same tokens."""
        repairs = find_repairs(path, num_shared, row, self._pool)
        if not repairs:
            return
        page_size = self._page_size
        givers = np.concatenate([row[start:end:page_size] for _, start, end in repairs])
        if self._full.is_owned(givers // page_size):
            raise AuditError(
                "slots of other prefixes were passed for tokens whose window is gone. Insert a request's own slots "
                "behind those that it took from the tree."
            )
        takers = [at.pages[(a - at.start) // page_size : (b - at.start) // page_size] for at, a, b in repairs]
        self._pool.move_window(givers, np.concatenate(takers) * page_size)
        for node, start, end in repairs:
            self._revive(self._structure.cut_out(node, start, end))

    def split(self, upper: Node, lower: Node) -> None:
        """Both halves are as the node was, and locks that need it need both."""
        upper.window = lower.window.copy()
        if lower in self._queue:
            self._queue.add(upper)

    def is_joinable(self, upper: Node, lower: Node) -> bool:
        """Joinable when they are alike, up to a length: a node is evicted as a whole."""
        a, b = upper.window, lower.window
        are_alike = (a.is_live, a.locks, a.was_needed) == (b.is_live, b.locks, b.was_needed)
        return are_alike and lower.end - upper.start <= self._longest_join

    def join(self, upper: Node, lower: Node) -> None:
        """The joined node keeps the later use of the two."""
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
        """Mark as used what a sequence needs that continues at `node`, no more."""
        for at in self._structure.cut_at(node, self._start(node)):
            part = at.window
            if at in self._queue and not part.was_needed:
                self.spare -= at.pages.size
            part.was_needed = True
            part.access = node.access
            part.hits += num_hits
            part.priority = max(part.priority, node.priority)
            self._queue.refresh(at)

    def lock(self, node: Node) -> None:
        """Keep what a sequence needs that continues at `node`."""
        start = self._start(node)
        for at in self._structure.cut_at(node, start):
            if at.window.locks == 0 and at.window.is_live:
                self._queue.discard(at)
                self._count_evictable(at, -1)
                self.protected += at.pages.size
            at.window.locks += 1
        node.window.starts[start] = node.window.starts.get(start, 0) + 1

    def unlock(self, node: Node, since: int | None = None) -> None:
        """Undo a lock that keeps windows from `since` on (as `lock` made it, if not given).

        Raises `LockUnderflow`, with nothing changed, when no lock of the node keeps exactly that.
        """
        start = self._forget_lock(node, self._start(node) if since is None else since)
        self._unlock_nodes(node.behind(start))

    def loosen(self, node: Node, since: int, to: int) -> None:
        """Let go what a lock has kept from `since` up to `to`.

        Raises as `unlock`, and `InvalidSize` for a window that would grow.
        """
        if to < since:
            raise InvalidSize(f"the window of a lock of {node} cannot move back from {since} to {to}. Move it forward.")
        since, to = self._forget_lock(node, since), min(to - to % self._page_size, node.end)
        node.window.starts[to] = node.window.starts.get(to, 0) + 1
        self._structure.cut_at(node, to)
        loose = [at for at in node.behind(since) if at.end <= to]
        self._unlock_nodes(loose)
        for at in loose[:1]:
            assert at.parent is not None, "the root has no window to loosen"
            self._structure.join(at.parent)

    def evict(self, num_pages: int, *, num_victims: int | None = None) -> IntArray:
        """Free at least `num_pages` window pages, or all that no lock keeps; the full side stays.

        Whole nodes, `num_victims` at most, but for the last, which is cut if it holds much more than is wanted.
        """
        chosen: list[Node] = []
        num_freed = 0
        while num_freed < num_pages and (num_victims is None or len(chosen) < num_victims):
            node = self._queue.pop()
            if node is None:
                break
            chosen.append(self._head(node, num_pages - num_freed))
            num_freed += chosen[-1].pages.size
        return self._bury(chosen) if chosen else NO_PAGES

    def release(self, nodes: Sequence[Node]) -> None:
        """Count nodes out; the full side frees the pages of both."""
        for node in nodes:
            if node.window.is_live:
                self._count_evictable(node, -1)
                self._queue.discard(node)
            else:
                self.dead -= node.pages.size

    def audit(self, root: Node) -> None:
        """Recount liveness, locks, counters and the queue. Raises `AuditError`."""
        counts = WindowCounts(self.evictable, self.spare, self.protected, self.dead)
        audit_windows(root, self._pool, counts, set(self._queue))

    def _head(self, node: Node, num_pages: int) -> Node:
        """The next victim, or the head of it if it holds much more than `num_pages`."""
        # Not finer than two windows, or a path would fall into pieces of a page.
        part = max(num_pages * self._page_size, 2 * self._window.span)
        part += -part % self._page_size
        if part >= node.tokens.size:
            return node
        upper = self._structure.split(node, part)
        self._queue.add(node)
        return upper

    def _bury(self, chosen: Sequence[Node]) -> IntArray:
        """Make chosen nodes tombstones, and join those to the tombstones next to them; returns their pages."""
        pages = np.concatenate([node.pages for node in chosen])
        self._pool.free_window_pages(pages)
        for node in chosen:
            self._count_evictable(node, -1)
            node.window.is_live = node.window.was_needed = False
            self.dead += node.pages.size
        for node in chosen:
            if node.parent is None:  # joined to another of them already
                continue
            if not node.parent.window.is_live:
                self._structure.join(node.parent)
            if len(node.children) == 1 and not next(iter(node.children.values())).window.is_live:
                self._structure.join(node)
        return pages

    def _start(self, node: Node) -> int:
        """Where the part begins that a sequence needs which continues at `node`, a page boundary."""
        needed = self._window.needed_from(node.end)
        return needed - needed % self._page_size

    def _forget_lock(self, node: Node, since: int) -> int:
        """Forget one lock of `node` that keeps what it needs from `since` on, and return where its part begins.

        All starts past the node's end are alike.
        """
        start, starts = min(since - since % self._page_size, node.end), node.window.starts
        if start not in starts:
            raise LockUnderflow(
                f"no lock of {node} keeps windows from token {since} on. Pass the token at which its window part "
                "begins: where `lock` or the last `loosen` put it."
            )
        starts[start] -= 1
        if not starts[start]:
            del starts[start]
        return start

    def _revive(self, node: Node) -> None:
        node.window.is_live = True
        node.window.access = node.access
        self.dead -= node.pages.size
        if node.window.locks:
            self.protected += node.pages.size
        else:
            self._count_evictable(node, 1)
            self._queue.add(node)

    def _unlock_nodes(self, nodes: Iterable[Node]) -> None:
        for at in nodes:
            at.window.locks -= 1
            if at.window.locks == 0 and at.window.is_live:
                self.protected -= at.pages.size
                self._count_evictable(at, 1)
                self._queue.add(at)

    def _count_evictable(self, node: Node, sign: int) -> None:
        self.evictable += sign * node.pages.size
        if not node.window.was_needed:
            self.spare += sign * node.pages.size
