"""The shape that every tree has, whatever its components hold."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from kvstead.errors import AuditError
from kvstead.prefix.node import ChildKey, Node


def audit_structure(root: Node, page_size: int) -> None:
    """Check keys, lengths, links, pins, times and priorities of all nodes below `root`.

    Raises `AuditError` for the first fault. O(nodes).
    """
    for parent in (root, *root.below()):
        for key, child in parent.children.items():
            for fault in _faults(parent, key, child, page_size):
                raise AuditError(f"{child} {fault}. Change the tree only through its own operations.")


def _faults(parent: Node, key: ChildKey, child: Node, page_size: int) -> Iterator[str]:
    """What is wrong with one link of the tree."""
    if child.parent is not parent:
        yield f"hangs below {parent} but names {child.parent} as its parent"
    if child.tokens.dtype != np.int32 or child.tokens.size == 0 or child.tokens.size % page_size:
        yield f"has {child.tokens.size} tokens of {child.tokens.dtype}, which are no whole pages of {page_size}"
    if child.start != parent.end or child.end != parent.end + child.tokens.size:
        yield f"ends at {child.end}, but its parent at {parent.end}"
    if key != child.key or child.tokens[:page_size].tobytes() != (key[1] if isinstance(key, tuple) else key):
        yield "does not hang under the bytes of its first page"
    if isinstance(key, tuple) != (parent.parent is None):
        yield "has its namespace in the wrong place"
    if child.pins < 0:
        yield f"has {child.pins} pins"
    if parent.parent is not None and child.access > parent.access:
        yield f"was used at {child.access}, its parent at {parent.access}"
    if parent.parent is not None and child.priority > parent.priority:
        yield f"has priority {child.priority}, its parent {parent.priority}"
