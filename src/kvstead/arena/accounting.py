"""Every byte of an arena by its state, and the audit of its pools."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from kvstead.arena.arrangement import Arrangement
from kvstead.arena.span import inward
from kvstead.arena.sub_pool import PoolBytes, SubPool
from kvstead.errors import AuditError
from kvstead.kernels.spans import HIGH, LOW


class ArenaBytes(NamedTuple):
    """Every byte of an arena, once.

    gap: between spans, where a page of a neighbouring pool has room. padding: between spans, too few for any. sink: at
    the bottom, nobody's.
    """

    pools: dict[str, PoolBytes]
    gap: int
    sink: int
    padding: int

    @property
    def total(self) -> int:
        """All bytes of the arena."""
        return sum(sum(pool) for pool in self.pools.values()) + self.gap + self.sink + self.padding


def bytes_by_state(members: Sequence[SubPool], arrangement: Arrangement) -> ArenaBytes:
    """Add up spans and what lies between them. O(pools)."""
    gap = padding = 0
    index = -1
    while index < len(members):
        above = arrangement.neighbour(index, HIGH)
        start, end = arrangement.border(above, LOW), arrangement.border(index, HIGH)
        growing = arrangement.extents[max(index, 0) : above + 1]  # these two and the empty ones between them
        if any(inward(start, LOW, extent.page_bytes) < inward(end, HIGH, extent.page_bytes) for extent in growing):
            gap += end - start
        else:
            padding += end - start
        index = above
    pools = {member.spec.name: member.by_state() for member in members}
    return ArenaBytes(pools, gap, arrangement.bottom, padding)


def audit_chain(members: Sequence[SubPool], arrangement: Arrangement) -> None:
    """Audit every pool, then that their spans follow one another without overlap and add up. Raises `AuditError`."""
    for member in members:
        member.audit()
    byte = arrangement.bottom
    for member, extent in zip(members, arrangement.extents, strict=True):
        if extent.lo == extent.hi:
            continue
        if extent.lo * extent.page_bytes < byte:
            raise AuditError(
                f"pool {member.spec.name!r} begins at byte {extent.lo * extent.page_bytes}, below byte {byte} where "
                "the one before it ends. Only the chain may move spans."
            )
        byte = extent.hi * extent.page_bytes
    total = bytes_by_state(members, arrangement).total
    assert total == arrangement.top, f"spans in order and apart add up to {total} bytes of {arrangement.top}"
