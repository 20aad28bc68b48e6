"""The audit across layers: who owns each live page."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import numpy as np

from kvstead.errors import AuditError
from kvstead.kernels import host

if TYPE_CHECKING:
    from kvstead.engine.manager import KVCacheManager


def audit_ownership(manager: KVCacheManager) -> None:
    """Every live page is owned once, by the tree or by one row; every row reads the tree's slots up to `protected`.

    Every lock on a node is that of one row. Raises `AuditError`. O(pool).
    """
    page_size = manager.page_size
    owned = [manager.tree.held_pages()]
    for row in manager.table.live_rows().tolist():
        protected = int(manager.protected[row])
        owned.append(manager.table.read(row)[protected::page_size] // page_size)
        _audit_row(manager, row)
    _audit_locks(manager)
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


def _audit_locks(manager: KVCacheManager) -> None:
    root = manager.tree.root
    held = Counter(manager.lock_of(row) for row in manager.table.live_rows().tolist())
    for node in (root, *root.below()):
        if node.pins != held[node]:
            raise AuditError(
                f"{node} is locked {node.pins} times, but {held[node]} rows end their shared prefix there."
            )
