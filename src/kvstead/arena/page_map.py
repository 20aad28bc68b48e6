"""Two tables for one pool: the physical page of each virtual one, and back.

    v2p  [ 0 | p  -1   p  p ...  -1 | -1 ]     rows 0 .. num_virtual + 1: what callers hold -> where it lies now
    p2v  [ 0 | v  -1   v  v ...  -1 | -1 ]     rows 0 .. num_physical:    what lies there   -> who holds it

Row 0 is the sink in both; the last row stays -1, so that index -1 reads -1. Pools whose pages live and die with the
same ids have tables of equal length, so one id serves all of them.
"""

from __future__ import annotations

from typing import NoReturn

import numpy as np
import torch

from kvstead.errors import AuditError, DoubleFree, ForeignPage
from kvstead.kernels import spans
from kvstead.kernels.array_types import IntArray
from kvstead.pages.page_table import refuse_slot


class PageMap:
    """Virtual pages 1 .. `num_virtual` on physical pages 1 .. `num_physical` - 1. 8 bytes a row.

    v2p, p2v: int64 tables, to be read only; `num_changes` counts their changes. Ids are int64[k]; every call is O(k).
    """

    __slots__ = ("_mirrors", "num_changes", "p2v", "v2p")

    def __init__(self, num_virtual: int, num_physical: int) -> None:
        self.v2p: IntArray = np.empty(num_virtual + 2, dtype=np.int64)
        self.p2v: IntArray = np.empty(num_physical + 1, dtype=np.int64)
        self.num_changes = 0
        self._mirrors: dict[torch.device, tuple[torch.Tensor, int]] = {}
        self.clear()

    @property
    def num_virtual(self) -> int:
        """Virtual pages that there can be."""
        return self.v2p.size - 2

    def clear(self) -> None:
        """Unbind every virtual page from its physical one. O(table)."""
        for table in (self.v2p, self.p2v):
            table.fill(-1)
            table[0] = 0
        self.num_changes += 1

    def require_free(self, v_pages: IntArray) -> None:
        """Raise unless all pages can be bound: `ForeignPage` for one out of range; a bound one is our own mistake."""
        bad = spans.first_bound(self.v2p, v_pages)
        if bad >= 0:
            v = int(v_pages[bad])
            if not 0 < v <= self.num_virtual:
                self.refuse(v)
            raise AssertionError(f"virtual page {v} has a page already, or is named twice; ids are handed out once")

    def rebind(self, src: IntArray, dst: IntArray) -> None:
        """Give the owner of each physical page `src[i]` the page `dst[i]` instead."""
        spans.rebind(self.v2p, self.p2v, src, dst)
        self.num_changes += 1

    def translate(self, slots: IntArray, page_size: int, out: IntArray | None = None) -> IntArray:
        """The physical slot of each virtual slot; 0, in the sink, for -1 and for slots of pages that are not bound.

        out: int64[k] to write to, which may be `slots`. Raises `ForeignPage` for a slot below -1 or past the table.
        """
        result = np.empty_like(slots) if out is None else out
        bad = spans.translate(self.v2p, slots, page_size, result)
        if bad >= 0:
            refuse_slot(int(slots[bad]), (self.num_virtual + 1) * page_size)
        return result

    def mirror(self, device: str | torch.device) -> torch.Tensor:
        """`v2p` on a device, int64[num_virtual + 2], as it is now; the same tensor at every call.

        On the CPU it shares the table's memory. Elsewhere one copy in the current stream brings it up to date, and only
        if something changed; the host waits for nothing and nothing is read back. -1 stands for "no page"; a page
        parked in an open group still has its place.
        """
        where = torch.device(device)
        if where.type == "cpu":
            return torch.from_numpy(self.v2p)
        tensor, changes = self._mirrors.get(where, (None, -1))
        if tensor is None:
            tensor = torch.empty(self.v2p.size, dtype=torch.int64, device=where)
        if changes != self.num_changes:
            table = torch.from_numpy(self.v2p)
            snapshot = table.pin_memory() if where.type == "cuda" else table  # ours until the copy is through
            tensor.copy_(snapshot, non_blocking=True)
        self._mirrors[where] = (tensor, self.num_changes)
        return tensor

    def audit(self) -> None:
        """Check the two tables against each other. Raises `AuditError`. O(table)."""
        ends = [int(table[at]) for table in (self.v2p, self.p2v) for at in (0, -1)]
        if ends != [0, -1, 0, -1]:
            raise AuditError(f"rows 0 and -1 of the page tables are {ends}, not 0 and -1. They belong to nobody.")
        for table, other, name in ((self.v2p, self.p2v, "v2p"), (self.p2v, self.v2p, "p2v")):
            owned = np.flatnonzero(table != -1)
            there = table[owned]
            wild = (there < 0) | (there >= other.size - 1)
            wrong = owned[wild | (other[np.where(wild, -1, there)] != owned)]
            if wrong.size:
                raise AuditError(
                    f"{name} rows {wrong.tolist()} do not find their way back. Only the map's methods may write to it."
                )

    def refuse(self, v: int) -> NoReturn:
        """Raise the error that says why virtual page `v` cannot be released."""
        if not 0 < v <= self.num_virtual:
            raise ForeignPage(
                f"virtual page {v} {'is the sink' if v == 0 else 'does not belong to this pool'} "
                f"(1..{self.num_virtual}). Name only pages that this pool's ids were handed out for."
            )
        how = "named twice in this call" if self.v2p[v] > 0 else "already free"
        raise DoubleFree(f"virtual page {v} is {how}. Free each page once.")
