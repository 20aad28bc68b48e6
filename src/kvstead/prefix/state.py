"""What a node holds for layers that carry one state a sequence, and when that may go.

    root -- [a a a a] -- [b b b b] -- [c c]      S, T: the state of the sequence that ends there
                    S                T           match(a b c): 8 tokens; match(a b x): 4 tokens, ends at S

A state stands for all tokens before it and cannot be divided, so a match ends only where one was put, and a node that
is split keeps its state at its end. A state may go alone; its tokens stay cached, as the path to later states.
Locks keep no states: a request that continues from a state copies it, and holds it during the copy.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from kvstead.errors import AuditError, ForeignPage, LockUnderflow, UseAfterFree
from kvstead.kernels.array_types import IntArray
from kvstead.pages.amounts import STATE
from kvstead.prefix.component import LONGEST_JOIN, Component, fail
from kvstead.prefix.full import FullComponent
from kvstead.prefix.node import Node, StatePart
from kvstead.prefix.queue import Policy, state_rank
from kvstead.prefix.slot_pools import StateSlots
from kvstead.prefix.structure import TreeStructure


class StateComponent(Component):
    """States, each at the end of a node.

    full: is told of nodes that lose their states, since a leaf without one is evicted sooner. structure: joins nodes
    that no state divides any more. `_slots` are those that nodes have, so that putting a state twice is seen at the
    call.
    """

    side = STATE

    def __init__(self, pool: StateSlots, policy: Policy, full: FullComponent, structure: TreeStructure) -> None:
        super().__init__(state_rank(policy))
        self._pool = pool
        self._full = full
        self._structure = structure
        self._slots: set[int] = set()

    @property
    def num_states(self) -> int:
        """States of all nodes; those without holds are `evictable`. O(1)."""
        return len(self._slots)

    def pages_of(self, node: Node) -> int:
        """1 for a node with a state, else 0."""
        return int(node.state is not None)

    def slots(self) -> IntArray:
        """int64[num_states], ascending. O(n log n)."""
        return np.array(sorted(self._slots), dtype=np.int64)

    def put(self, node: Node, slot: int, now: int) -> bool:
        """Own `slot` as the state at the end of `node`; False if that has one, which was used now.

        Raises `ForeignPage` for padding, `AuditError` for a slot that the tree owns already.
        """
        if slot < 1:
            raise ForeignPage(f"state slot {slot} is padding. Put states in slots that an allocator handed out.")
        if slot in self._slots:
            raise AuditError(f"state slot {slot} belongs to a node already. Put each state into the tree once.")
        if node.state is not None:
            self._touch(node, node.state, now, 1)
            return False
        node.state = StatePart(slot, now, node.priority)
        node.state.num_next = node.num_next
        self._slots.add(slot)
        self._queue.add(node)
        self._count_next_above(node, 1 - node.state.num_next)
        return True

    def supersede(self, node: Node) -> None:
        """Note that a state is about to come below `node`, for which the last one up to there may go first."""
        at: Node | None = node
        while at is not None and at.state is None:
            at = at.parent
        if at is not None and at.state is not None:
            at.state.is_followed = True
            self._queue.refresh(at)

    def hold(self, node: Node) -> None:
        """Keep the state of `node` until as many `let_go` calls. Raises `UseAfterFree` when it has none."""
        if node.state is None:
            raise UseAfterFree(f"{node} has no state (any more). Hold the state of a match before anything is evicted.")
        node.state.holds += 1
        self._queue.discard(node)

    def let_go(self, node: Node) -> None:
        """Undo one `hold`. Raises `LockUnderflow` when there is none."""
        if node.state is None or node.state.holds == 0:
            raise LockUnderflow(f"no hold of a state of {node} is left. Let a state go once for each hold.")
        node.state.holds -= 1
        if node.state.holds == 0:
            self._queue.add(node)

    def evict(self, num_pages: int, *, num_victims: int | None = None) -> IntArray:
        """Free that many states, or all without holds."""
        chosen: list[Node] = []
        limit = num_pages if num_victims is None else min(num_pages, num_victims)
        while len(chosen) < limit and (node := self._queue.pop()) is not None:
            chosen.append(node)
        try:
            self.release(chosen)
        except Exception:
            for node in chosen:
                self._queue.add(node)
            raise
        pages = np.array([node.pages[-1] for node in chosen], dtype=np.int64)
        for node in chosen:
            self._full.use(node, 0)
            self._structure.join(node)
        return pages

    def release(self, nodes: Sequence[Node]) -> None:
        """Free the states of nodes that leave the tree, or only lose their states, in one call."""
        losing = [(node, node.state) for node in nodes if node.state is not None]
        if not losing:
            return
        slots = [part.slot for _, part in losing]
        self._pool.free(np.array(slots, dtype=np.int64))
        self._slots.difference_update(slots)
        for node, part in losing:
            self._queue.discard(node)
            node.state, node.num_next = None, part.num_next
            self._count_next_above(node, part.num_next - 1)

    def split(self, upper: Node, lower: Node) -> None:  # noqa: ARG002 - `lower` is the only child of `upper`
        """The state stays at the end, with the lower half."""
        upper.num_next = _count_next(upper)

    def is_joinable(self, upper: Node, lower: Node) -> bool:
        """Joinable when no state stands between the two, up to a length."""
        return upper.state is None and lower.end - upper.start <= LONGEST_JOIN

    def usable(self, path: Sequence[Node], length: int) -> int:
        """Up to the last state on the path."""
        return next((node.end for node in reversed(path) if node.end <= length and node.state is not None), 0)

    def use(self, node: Node, num_hits: int) -> None:
        """A match uses the state at its end, not those on the way there."""
        if num_hits and node.state is not None:
            node.state.has_branched |= node.state.num_next > 0 or node.state.is_followed
            self._touch(node, node.state, node.access, num_hits)

    def audit(self, root: Node) -> None:
        """Recount states, holds and the queue. Raises `AuditError`."""
        if root.state is not None:
            fail(f"the root has state slot {root.state.slot}, though no sequence ends there")
        parts = {node: node.state for node in root.below() if node.state is not None}
        for node, part in parts.items():
            if part.holds < 0:
                fail(f"the state of {node} has {part.holds} holds")
        for node in root.below():
            num_next = (node.state or node).num_next
            if num_next != _count_next(node):
                fail(f"{node} counts {num_next} next states, but {_count_next(node)} are below it")
        slots = sorted(part.slot for part in parts.values())
        if slots != sorted(self._slots):
            fail(f"the nodes have states in slots {slots}, but {sorted(self._slots)} are marked as theirs")
        if set(self._queue) != {node for node, part in parts.items() if part.holds == 0}:
            fail(f"{len(self._queue)} states wait for eviction, and they are not those without holds")

    def _count_next_above(self, node: Node, change: int) -> None:
        """Note that so many more states follow the nearest one above `node`; one that is superseded now goes sooner."""
        at = node.parent
        while at is not None and change:
            if at.state is not None:
                at.state.num_next += change
                self._queue.refresh(at)
                return
            at.num_next += change
            at = at.parent

    def _touch(self, node: Node, part: StatePart, now: int, num_hits: int) -> None:
        part.access = now
        part.hits += num_hits
        part.priority = max(part.priority, node.priority)
        self._queue.refresh(node)


def _count_next(node: Node) -> int:
    """States below a node with no other in between, of its children and of what these count. O(children)."""
    return sum(1 if child.state is not None else child.num_next for child in node.children.values())
