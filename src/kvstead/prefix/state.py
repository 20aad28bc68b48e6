"""What a node holds for layers that carry one state a sequence, and when that may go.

    root -- [a a a a] -- [b b b b] -- [c c]      S, T: the state of the sequence that ends there
                    S                T           match(a b c): 8 tokens; match(a b x): 4 tokens, ends at S

A state stands for all tokens before it and cannot be divided, so a match ends only where one was put, and a node that
is split keeps its state at its end. A state may go alone; its tokens stay cached, as the way to states further on.
Locks keep no states: who goes on from one copies it first, and holds it meanwhile.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np

from kvstead.errors import AuditError, ForeignPage, LockUnderflow, UseAfterFree
from kvstead.kernels.array_types import IntArray
from kvstead.kernels.arrays import Integers
from kvstead.prefix.component import LONGEST_JOIN, fail
from kvstead.prefix.node import Node, StatePart
from kvstead.prefix.policies import Policy, Rank
from kvstead.prefix.queue import EvictionQueue


class StateSlots(Protocol):
    """The part of an allocator of states that a tree needs."""

    def free(self, slots: Integers) -> None:
        """Give slots back; raises before anything has changed."""
        ...


class StateComponent:
    """States, each at the end of a node.

    `_slots` are those that nodes have: that one comes into the tree twice is seen at the call.
    """

    def __init__(self, pool: StateSlots, policy: Policy) -> None:
        self._pool = pool
        self._slots: set[int] = set()
        # A state whose sequence has left a later one is of use only to who leaves the path just there.
        self._queue = EvictionQueue(lambda node: (is_wanted(part_of(node)), *policy(part_of(node))))

    @property
    def num_states(self) -> int:
        """States of all nodes. O(1)."""
        return len(self._slots)

    @property
    def num_evictable(self) -> int:
        """States that nobody holds. O(1)."""
        return len(self._queue)

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
            raise AuditError(f"state slot {slot} is a node's already. Put each state once; what is put is the tree's.")
        if node.state is not None:
            self._touch(node, now, 1)
            return False
        node.state = StatePart(slot, now, node.priority)
        self._slots.add(slot)
        self._queue.add(node)
        return True

    def hold(self, node: Node) -> None:
        """Keep the state of `node` until as many `let_go` calls. Raises `UseAfterFree` when it has none."""
        if node.state is None:
            raise UseAfterFree(f"{node} has no state, or not any more. Hold a match's state before anything may evict.")
        node.state.holds += 1
        self._queue.discard(node)

    def let_go(self, node: Node) -> None:
        """Undo one `hold`. Raises `LockUnderflow` when there is none."""
        if node.state is None or node.state.holds == 0:
            raise LockUnderflow(f"nobody holds a state of {node}. Let a state go once for each hold.")
        node.state.holds -= 1
        if node.state.holds == 0:
            self._queue.add(node)

    def supersede(self, node: Node) -> None:
        """The state of `node`, if there still is one, goes before the others unless somebody has gone on from it."""
        if node.state is not None:
            node.state.is_superseded = True
            self._queue.refresh(node)

    def first(self) -> Rank | None:
        """The rank of what would go next."""
        return self._queue.first()

    def evict(self, num_states: int) -> list[Node]:
        """Give back so many states, or all that nobody holds. Returns the nodes that had them.

        Raises what the pool raises, with nothing changed.
        """
        chosen: list[Node] = []
        while len(chosen) < num_states and (node := self._queue.pop()) is not None:
            chosen.append(node)
        try:
            self.release(chosen)
        except Exception:
            for node in chosen:
                self._queue.add(node)
            raise
        return chosen

    def release(self, nodes: Sequence[Node]) -> None:
        """Give back the states of nodes that leave the tree, or only lose them, in one call."""
        losing = [(node, node.state.slot) for node in nodes if node.state is not None]
        if not losing:
            return
        slots = [slot for _, slot in losing]
        self._pool.free(np.array(slots, dtype=np.int64))
        self._slots.difference_update(slots)
        for node, _ in losing:
            self._queue.discard(node)
            node.state = None

    def cuts(self, pages: IntArray) -> list[int]:  # noqa: ARG002 - new tokens come without states
        """None."""
        return []

    def mend(self, path: Sequence[Node], num_shared: int, row: IntArray) -> None:
        """A row has no states to give: `put`."""

    def adopt(self, leaf: Node) -> None:
        """A leaf comes without one."""

    def split(self, upper: Node, lower: Node) -> None:
        """The state stays at the end, with the lower half."""

    def is_joinable(self, upper: Node, lower: Node) -> bool:
        """If no state stands between them, and not too long."""
        return upper.state is None and lower.end - upper.start <= LONGEST_JOIN

    def join(self, upper: Node, lower: Node) -> None:
        """The state of the lower one is at the end already."""

    def usable(self, path: Sequence[Node], length: int) -> int:
        """Back to the last state."""
        return next((node.end for node in reversed(path) if node.end <= length and node.state is not None), 0)

    def use(self, node: Node, num_hits: int) -> None:
        """A match has used the state at its end, not those on the way there."""
        if num_hits and node.state is not None:
            self._touch(node, node.access, num_hits)

    def lock(self, node: Node) -> None:
        """A lock keeps no state: `hold`."""

    def unlock(self, node: Node, since: int | None) -> None:
        """So there is none to let go."""

    def loosen(self, node: Node, since: int, to: int) -> None:
        """As `unlock`."""

    def audit(self, root: Node) -> None:
        """Recount states, holds and the queue. Raises `AuditError`."""
        if root.state is not None:
            fail(f"the root has state slot {root.state.slot}, though no sequence ends there")
        parts = {node: node.state for node in root.below() if node.state is not None}
        for node, part in parts.items():
            if part.holds < 0:
                fail(f"the state of {node} has {part.holds} holds")
        slots = sorted(part.slot for part in parts.values())
        if slots != sorted(self._slots):
            fail(f"the nodes have states in slots {slots}, but {sorted(self._slots)} are marked as theirs")
        if set(self._queue) != {node for node, part in parts.items() if part.holds == 0}:
            fail(f"{len(self._queue)} states wait for eviction, and they are not those that nobody holds")

    def _touch(self, node: Node, now: int, num_hits: int) -> None:
        part = part_of(node)
        part.access = now
        part.hits += num_hits
        part.priority = max(part.priority, node.priority)
        self._queue.refresh(node)


def part_of(node: Node) -> StatePart:
    """The state of a node that has one."""
    assert node.state is not None, "only nodes with states wait to lose them"
    return node.state


def is_wanted(part: StatePart) -> bool:
    """Whether a sequence may still come back to it."""
    return part.hits > 0 or not part.is_superseded
