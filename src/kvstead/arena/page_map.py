"""Two tables for one pool: the physical page of each virtual one, and back.

    v2p  [ 0 | p  -1  ~p  p ...  -1 | -1 ]     rows 0 .. num_virtual + 1: what callers hold -> where it lies now
    p2v  [ 0 | v  -1  ~v  v ...  -1 | -1 ]     rows 0 .. num_physical:    what lies there   -> who holds it

The complement ~ marks a parked page: freed inside an open group, not yet available, bytes still there. Row 0 is the
sink in both, the last row stays -1 so that index -1 does. Pools whose pages live and die with the same ids have tables
of equal length, so one id serves all of them.
"""

from __future__ import annotations

from typing import NoReturn

import numpy as np
import torch

from kvstead.errors import AuditError, DoubleFree, ForeignPage
from kvstead.kernels import spans
from kvstead.kernels.array_types import IntArray

_LIVE = 0
_PARKED = -1


class PageMap:
    """Virtual pages 1 .. `num_virtual` on physical pages 1 .. `num_physical` - 1. 8 bytes a row.

    `v2p` and `p2v` are written by the methods alone. Ids are int64[k] on the host; every call is O(k).
    """

    __slots__ = ("_changes", "_mirrors", "p2v", "v2p")

    def __init__(self, num_virtual: int, num_physical: int) -> None:
        self.v2p: IntArray = np.empty(num_virtual + 2, dtype=np.int64)
        self.p2v: IntArray = np.empty(num_physical + 1, dtype=np.int64)
        self._changes = 0
        self._mirrors: dict[torch.device, tuple[torch.Tensor, int]] = {}
        self.clear()

    @property
    def num_virtual(self) -> int:
        """Virtual pages that there can be."""
        return self.v2p.size - 2

    def clear(self) -> None:
        """No page has an owner. O(table)."""
        for table in (self.v2p, self.p2v):
            table.fill(-1)
            table[0] = 0
        self._changes += 1

    def require_free(self, v_pages: IntArray) -> None:
        """Raise unless all of them can be bound: `ForeignPage` out of range; that one is bound is our own mistake."""
        bad = spans.first_bound(self.v2p, v_pages)
        if bad >= 0:
            v = int(v_pages[bad])
            if not 0 < v <= self.num_virtual:
                self._refuse(v)
            raise AssertionError(f"virtual page {v} has a page already, or is named twice; ids are handed out once")

    def bind(self, v_pages: IntArray, pages: IntArray) -> None:
        """Give virtual pages, all of them free, their physical ones."""
        spans.bind(self.v2p, self.p2v, v_pages, pages)
        self._changes += 1

    def unbind(self, v_pages: IntArray) -> IntArray:
        """Take live virtual pages' physical ones away: int64[k].

        Raises `ForeignPage` or `DoubleFree` for the first that is not live, or named twice, and changes nothing.
        """
        return self._unbind(v_pages, _LIVE)

    def unbind_parked(self, v_pages: IntArray) -> IntArray:
        """As `unbind`, for parked ones; that one is not parked is our own mistake."""
        return self._unbind(v_pages, _PARKED)

    def park(self, v_pages: IntArray) -> None:
        """Make live virtual pages parked. Raises as `unbind`."""
        self._turn(v_pages, _LIVE)

    def restore(self, v_pages: IntArray) -> None:
        """Make parked virtual pages live again; that one is not parked is our own mistake."""
        self._turn(v_pages, _PARKED)

    def rebind(self, src: IntArray, dst: IntArray) -> None:
        """Whoever has physical page `src[i]` has `dst[i]` from now on."""
        spans.rebind(self.v2p, self.p2v, src, dst)
        self._changes += 1

    def translate(self, slots: IntArray, page_size: int, out: IntArray | None = None) -> IntArray:
        """The physical slot of each virtual slot; 0, in the sink, for -1 and for slots of pages that are not live.

        out: int64[k] to write to, `slots` itself if wanted. Raises `ForeignPage` for a slot below -1 or past the table.
        """
        result = np.empty_like(slots) if out is None else out
        bad = spans.translate(self.v2p, slots, page_size, result)
        if bad >= 0:
            raise ForeignPage(
                f"slot {slots[bad]} is none of this pool's (they are below {(self.num_virtual + 1) * page_size}). "
                "Translate slots that its id space handed out, or -1 for none."
            )
        return result

    def mirror(self, device: str | torch.device) -> torch.Tensor:
        """`v2p` on a device, int64[num_virtual + 2], as it is now; the same tensor at every call.

        On the CPU it shares the table's memory. Elsewhere one copy in the current stream brings it up to date, and only
        if something changed; the host waits for nothing and nothing is read back. Ids below 0 stand for "no page".
        """
        where = torch.device(device)
        if where.type == "cpu":
            return torch.from_numpy(self.v2p)
        tensor, changes = self._mirrors.get(where, (None, -1))
        if tensor is None:
            tensor = torch.empty(self.v2p.size, dtype=torch.int64, device=where)
        if changes != self._changes:
            table = torch.from_numpy(self.v2p)
            snapshot = table.pin_memory() if where.type == "cuda" else table  # ours until the copy is through
            tensor.copy_(snapshot, non_blocking=True)
        self._mirrors[where] = (tensor, self._changes)
        return tensor

    def audit(self) -> None:
        """Hold the tables against each other. Raises `AuditError`. O(table)."""
        ends = [int(table[at]) for table in (self.v2p, self.p2v) for at in (0, -1)]
        if ends != [0, -1, 0, -1]:
            raise AuditError(f"rows 0 and -1 of the page tables are {ends}, not 0 and -1. They belong to nobody.")
        for table, other, name in ((self.v2p, self.p2v, "v2p"), (self.p2v, self.v2p, "p2v")):
            owned = np.flatnonzero(table != -1)
            there = np.where(table[owned] < 0, ~table[owned], table[owned])
            wild = there >= other.size - 1
            back = other[np.where(wild, -1, there)]
            wrong = owned[wild | (back != np.where(table[owned] < 0, ~owned, owned))]
            if wrong.size:
                raise AuditError(
                    f"{name} rows {wrong.tolist()} do not find their way back. Only the map's methods may write to it."
                )

    def _unbind(self, v_pages: IntArray, flip: int) -> IntArray:
        pages = np.empty_like(v_pages)
        bad = spans.unbind(self.v2p, self.p2v, v_pages, flip, pages)
        if bad >= 0:
            self._fault(int(v_pages[bad]), flip)
        self._changes += 1
        return pages

    def _turn(self, v_pages: IntArray, flip: int) -> None:
        bad = spans.turn(self.v2p, self.p2v, v_pages, flip)
        if bad >= 0:
            self._fault(int(v_pages[bad]), flip)
        self._changes += 1

    def _fault(self, v: int, flip: int) -> NoReturn:
        assert flip == _LIVE, f"virtual page {v} left the parked state some other way"
        self._refuse(v)

    def _refuse(self, v: int) -> NoReturn:
        if not 0 < v <= self.num_virtual:
            raise ForeignPage(
                f"virtual page {v} is {'the sink' if v == 0 else 'no page of this pool'} (its pages are "
                f"1..{self.num_virtual}). Name only pages that this pool's id space handed out."
            )
        how = "parked in the open group already" if self.v2p[v] < -1 else "free already"
        if self.v2p[v] > 0:
            how = "named twice in this call"
        raise DoubleFree(f"virtual page {v} is {how}. Free each page once.")
