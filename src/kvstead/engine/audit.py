"""The audit across layers: who owns each live page."""

from __future__ import annotations

from collections import Counter

import numpy as np

from kvstead.engine.memory import Memory
from kvstead.engine.row_capacity import RowWindows
from kvstead.engine.row_states import RowStates
from kvstead.engine.rows import Rows
from kvstead.errors import AuditError
from kvstead.kernels import host
from kvstead.prefix import Node, PrefixTree


def audit_memory(
    memory: Memory, tree: PrefixTree, rows: Rows, windows: RowWindows | None, states: RowStates | None
) -> None:
    """Audit every part, then what they say of each other.

    Every live page has one owner, the tree or a row; every row reads the tree's slots up to `protected`. Every lock on
    a node is that of one row, and its window part reaches back to where the row's window starts. Rows have window slots
    from exactly there on. Raises `AuditError`. O(pool).
    """
    memory.allocator.audit()
    rows.table.audit()
    tree.audit()
    live = rows.table.live_rows().tolist()
    for row in live:
        _audit_row(tree, rows, row)
        if windows is not None:
            _audit_window(memory, rows, windows, row)
    _audit_locks(tree, rows, windows, live)
    if states is not None:
        _audit_states(tree, live, states)
    _audit_pages(memory, tree, rows, live)


def _audit_pages(memory: Memory, tree: PrefixTree, rows: Rows, live_rows: list[int]) -> None:
    owned = [tree.held_pages()]
    owned += [rows.table.read(row)[int(rows.protected[row]) :: rows.page_size] // rows.page_size for row in live_rows]
    ids, counts = np.unique(np.concatenate(owned), return_counts=True)
    if (counts > 1).any():
        raise AuditError(f"pages {ids[counts > 1].tolist()} have two owners. A duplicate was cached but not freed.")
    live = np.flatnonzero(memory.allocator.page_states() == host.LIVE)
    if not np.array_equal(ids, live):
        lost = sorted(set(live.tolist()) - set(ids.tolist()))
        dead = sorted(set(ids.tolist()) - set(live.tolist()))
        raise AuditError(f"pages {lost} are live but have no owner, pages {dead} are owned but not live.")


def _audit_row(tree: PrefixTree, rows: Rows, row: int) -> None:
    protected, computed = int(rows.protected[row]), int(rows.computed[row])
    allocated, known = int(rows.table.lengths[row]), int(rows.known[row])
    if not protected <= computed <= min(allocated, known) or protected % rows.page_size:
        raise AuditError(
            f"row {row}: protected {protected}, computed {computed}, allocated {allocated}, known {known}."
        )
    slots = rows.table.read(row)
    pages = slots[:: rows.page_size] // rows.page_size
    expected = pages[:, None] * rows.page_size + np.arange(rows.page_size)
    if not np.array_equal(slots, expected.reshape(-1)[:allocated]):
        raise AuditError(f"row {row}: its slots are not whole pages, each slot at the offset of its position.")
    if not np.array_equal(tree.slots(rows.node[row]), slots[:protected]):
        raise AuditError(f"row {row}: its first {protected} slots are not those of the tree node it has locked.")


def _audit_window(memory: Memory, rows: Rows, windows: RowWindows, row: int) -> None:
    start, protected = int(windows.start[row]), int(rows.protected[row])
    slots = memory.window_slots(rows.table.read(row)).numpy()
    bare = np.flatnonzero(slots == 0)
    lost, kept = bare[bare >= start], slots[protected : max(start, protected)]
    if lost.size or kept.any() or start % rows.page_size:
        raise AuditError(
            f"row {row}: its window starts at {start}, but positions {lost.tolist()} have no window slot and "
            f"{np.count_nonzero(kept)} of its own in front of it have one."
        )


def _audit_locks(tree: PrefixTree, rows: Rows, windows: RowWindows | None, live_rows: list[int]) -> None:
    held: Counter[Node] = Counter(rows.node[row] for row in live_rows)
    in_window: Counter[Node] = Counter()
    if windows is not None:
        for row in live_rows:
            in_window.update(rows.node[row].behind(int(windows.start[row])))
    for node in (tree.root, *tree.root.below()):
        if node.pins != held[node]:
            raise AuditError(
                f"{node} is locked {node.pins} times, but {held[node]} rows end their shared prefix there."
            )
        if windows is not None and node.window.locks != in_window[node]:
            raise AuditError(
                f"{node} is locked {node.window.locks} times on its window side, but {in_window[node]} rows need that."
            )


def _audit_states(tree: PrefixTree, live_rows: list[int], states: RowStates) -> None:
    kept = states.kept[states.kept > 0]
    owned = np.sort(np.concatenate((states.slot[states.slot > 0], kept, tree.state_slots())))
    live = np.flatnonzero(states.allocator.page_states() == host.LIVE)
    if not np.array_equal(owned, live):
        raise AuditError(
            f"states {owned.tolist()} are owned and {live.tolist()} are live. A copy was lost, or has two owners."
        )
    with_states = np.flatnonzero(states.slot).tolist()
    if with_states != live_rows or kept.size != states.num_kept:
        raise AuditError(
            f"rows {with_states} have states where {live_rows} are handed out, and {kept.size} copies are kept where "
            f"{states.num_kept} are counted."
        )
    if tree.held_states:
        raise AuditError("a cached state is held, but no copy of it is under way. Let states go when they are copied.")
