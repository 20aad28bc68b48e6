"""Which copies of states, and which windows, are used: a kind that is not used makes no room for itself."""

from __future__ import annotations

from enum import IntEnum

import numpy as np

from kvstead.kernels.array_types import IntArray
from kvstead.prefix import Node

_COPIES_TO_BEGIN = 32  # with no use at all
_COPIES_A_USE = 1024
_REQUESTS_A_PROBE = 16
_LONGEST_MEMORY = 4096  # copies of a kind; older ones count half


class CopyKind(IntEnum):
    """Where a copy of a state stands, or a window ends."""

    BRANCH = 0  # where a prompt parts from what is cached
    PROMPT = 1  # at the end of a prompt's last whole page
    INTERVAL = 2  # at a multiple of the interval
    ANSWER = 3  # in an answer, at the end of a page


class CopyRecord:
    """Counts, by kind, the copies that the tree got and the requests that continued from one of them.

    Copies of answers and where prompts part have earned their place while one in 1,024 is used, the first 32 free.
    Traffic decides: where answers never come back in a later prompt, their states are not worth evicting others.
    """

    def __init__(self) -> None:
        self.num_made: IntArray = np.zeros(len(CopyKind), dtype=np.int64)
        self.num_used: IntArray = np.zeros(len(CopyKind), dtype=np.int64)
        self._num_requests = 0

    def make(self, node: Node, kind: CopyKind) -> None:
        """Note that the tree has a copy at the end of `node` now."""
        node.mark = kind
        self.num_made[kind] += 1
        if self.num_made[kind] == _LONGEST_MEMORY:
            self.num_made[kind] //= 2
            self.num_used[kind] //= 2

    def use(self, node: Node) -> None:
        """Note that a request continues from the copy at the end of `node`."""
        self.num_used[node.mark] += 1

    def begins_probe(self) -> bool:
        """Whether the request that begins now makes all its copies: one in 16, to see whether traffic has changed."""
        self._num_requests += 1
        return self._num_requests % _REQUESTS_A_PROBE == 0

    def is_worth(self, kind: CopyKind, *, has_grid: bool) -> bool:
        """Whether copies of this kind are used often enough to evict others for them.

        has_grid: whether the prompt reaches a multiple of the interval. Then it gets one copy, there or at its end,
        where copies are used more often or were tried less; else one at its end.
        """
        if kind in {CopyKind.PROMPT, CopyKind.INTERVAL}:
            return not has_grid or self._prefers_intervals() == (kind is CopyKind.INTERVAL)
        return bool(self.num_made[kind] < _COPIES_TO_BEGIN + _COPIES_A_USE * self.num_used[kind])

    def _prefers_intervals(self) -> bool:
        made, used = self.num_made + 1, self.num_used + 1
        one, other = CopyKind.INTERVAL, CopyKind.PROMPT
        return bool(used[one] * made[other] > used[other] * made[one])
