"""The audit across layers: who owns each live page."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import numpy as np

from kvstead.errors import AuditError
from kvstead.kernels import host
from kvstead.prefix import Node

if TYPE_CHECKING:
    from kvstead.engine.manager import KVCacheManager


def audit_ownership(manager: KVCacheManager) -> None:
    """Every live page is owned once, by the tree or by one row; every row reads the tree's slots up to `protected`.

    Every lock on a node is that of one row, and its window part reaches back to where the row's window starts. Rows
    have window slots just from there on. Raises `AuditError`. O(pool).
    """
    page_size = manager.page_size
    owned = [manager.tree.held_pages()]
    for row in manager.table.live_rows().tolist():
        protected = int(manager.protected[row])
        owned.append(manager.table.read(row)[protected::page_size] // page_size)
        _audit_row(manager, row)
        if manager.window is not None:
            _audit_window(manager, row)
    _audit_locks(manager)
    if manager.state_bytes:
        _audit_states(manager)
    ids, counts = np.unique(np.concatenate(owned), return_counts=True)
    if (counts > 1).any():
        raise AuditError(
            f"pages {ids[counts > 1].tolist()} have two owners. A duplicate was cached but not given back."
        )
    live = np.flatnonzero(manager.allocator.page_states() == host.LIVE)
    if not np.array_equal(ids, live):
        lost = sorted(set(live.tolist()) - set(ids.tolist()))
        dead = sorted(set(ids.tolist()) - set(live.tolist()))
        raise AuditError(f"pages {lost} are live but nobody owns them, pages {dead} are owned but not live.")


def _audit_row(manager: KVCacheManager, row: int) -> None:
    protected, computed = int(manager.protected[row]), int(manager.computed[row])
    allocated, known = int(manager.table.lengths[row]), int(manager.num_tokens[row])
    if not protected <= computed <= min(allocated, known) or protected % manager.page_size:
        raise AuditError(
            f"row {row}: protected {protected}, computed {computed}, allocated {allocated}, known {known}."
        )
    slots = manager.table.read(row)
    pages = slots[:: manager.page_size] // manager.page_size
    expected = pages[:, None] * manager.page_size + np.arange(manager.page_size)
    if not np.array_equal(slots, expected.reshape(-1)[:allocated]):
        raise AuditError(f"row {row}: its slots are not whole pages, each slot at the offset of its position.")
    shared = manager.tree.slots(manager.lock_of(row))
    if not np.array_equal(shared, slots[:protected]):
        raise AuditError(f"row {row}: its first {protected} slots are not those of the tree node it has locked.")


def _audit_window(manager: KVCacheManager, row: int) -> None:
    start, protected = int(manager.window_start[row]), int(manager.protected[row])
    slots = manager.table.read(row)
    windows = manager.window_slots(slots).numpy()
    bare = np.flatnonzero(windows == 0)
    lost, kept = bare[bare >= start], windows[protected : max(start, protected)]
    if lost.size or kept.any() or start % manager.page_size:
        raise AuditError(
            f"row {row}: its window starts at {start}, but positions {lost.tolist()} have no window slot and "
            f"{np.count_nonzero(kept)} of its own in front of it have one."
        )


def _audit_locks(manager: KVCacheManager) -> None:
    root = manager.tree.root
    held: Counter[Node] = Counter()
    windows: Counter[Node] = Counter()
    for row in manager.table.live_rows().tolist():
        node = manager.lock_of(row)
        held[node] += 1
        while node.end > manager.window_start[row]:
            windows[node] += 1
            assert node.parent is not None, "only the root ends at 0"
            node = node.parent
    for node in (root, *root.below()):
        if node.pins != held[node]:
            raise AuditError(
                f"{node} is locked {node.pins} times, but {held[node]} rows end their shared prefix there."
            )
        if manager.window is not None and node.window.locks != windows[node]:
            raise AuditError(
                f"{node} is locked {node.window.locks} times on its window side, but {windows[node]} rows need that."
            )


def _audit_states(manager: KVCacheManager) -> None:
    states = manager.row_states
    assert states is not None, "the model has states"
    rows = manager.table.live_rows()
    kept = states.kept[states.kept > 0]
    owned = np.sort(np.concatenate((states.slot[states.slot > 0], kept, manager.tree.state_slots())))
    live = np.flatnonzero(states.allocator.page_states() == host.LIVE)
    if not np.array_equal(owned, live):
        raise AuditError(
            f"states {owned.tolist()} are owned and {live.tolist()} are live. A copy was lost, or has two owners."
        )
    if not np.array_equal(np.flatnonzero(states.slot), rows) or kept.size != states.num_kept:
        raise AuditError(
            f"rows {np.flatnonzero(states.slot).tolist()} have states where {rows.tolist()} are handed out, and "
            f"{kept.size} copies are kept where {states.num_kept} are counted."
        )
    if manager.tree.held_states:
        raise AuditError("a cached state is held although nobody copies it. Let states go when they are copied.")
