"""The plan of one forward pass: which requests attend together, and the slots that it writes and reads.

The plan is made before the pass, with physical slots as they are then, and is passed to the model as a keyword.

Requests are sorted by their number of new tokens, then by how much they read. Neighbours with equally many new tokens
form a group. All rows of a group read as many entries as its longest, padded with the request's own last entry:

    request   new   reads                      entries gathered, in the order of the groups
    a          1    3 entries                  a0 a1 a2 a2 | b0 b1 b2 b3 | c0 c1 c2 c3 c4
    b          1    4          one group       '------- 2 rows of 4 ----' '- 1 row of 5 -'
    c          5    5          one group                 ^ hidden by the mask

So attention is a few matrix products a layer for any number of requests, and a request reads only entries of its own:
no kernel reads unwritten bytes.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import torch

from kvstead.engine import KVCacheManager
from kvstead.kernels.array_types import IntArray
from kvstead.kernels.arrays import to_device
from kvstead.model import BOUNDED, Window
from kvstead.pools import ArenaKVPool, KVPool

PLAN_KEYWORD = "kvstead_plan"
"""The keyword by which a model's forward pass hands its plan to the attention function."""

_WASTE = 4  # padding of a group: at most a quarter of what it reads,
_FREE_WASTE = 256  # or this many entries, which cost less than another group


@dataclass(frozen=True, slots=True)
class Jobs:
    """The requests of one forward pass: each computes positions `starts` .. `ends` - 1 of its row, int64[n] each.

    Their tokens are packed one job after the other; `order` gives the best order of jobs.
    """

    rows: IntArray
    starts: IntArray
    ends: IntArray

    @property
    def num_new(self) -> IntArray:
        """Tokens that each computes, int64[n]."""
        return self.ends - self.starts

    def positions(self) -> IntArray:
        """The position of every packed token, int64[tokens]."""
        return concatenated_ranges(self.starts, self.ends)

    def take(self, which: IntArray) -> Jobs:
        """The jobs at some places, in that order."""
        return Jobs(self.rows[which], self.starts[which], self.ends[which])

    def order(self) -> IntArray:
        """The order by number of new tokens, then by length: jobs that can share a group are neighbours."""
        return np.lexsort((self.ends, self.num_new))


@dataclass(frozen=True, slots=True)
class Group:
    """Requests that attend in one call.

    num_rows: how many. num_read: entries that each row reads. queries: their range of the packed tokens, equally many a
    row. keys: their range of the gathered entries. mask: bool[rows, 1, new, entries], true where a token sees an entry,
    or None where every token sees all. is_causal: token i sees entries 0 .. i (then there is no mask).
    """

    num_rows: int
    num_read: int
    queries: slice
    keys: slice
    mask: torch.Tensor | None
    is_causal: bool


@dataclass(frozen=True, slots=True)
class SidePlan:
    """The plan of one side: the layers that keep whole sequences, or those with a window.

    pool: the tensors of their entries. new: int64[tokens], the slots of the packed tokens. read: int64[entries], the
    slots that the groups read.
    """

    pool: KVPool | ArenaKVPool
    new: torch.Tensor
    read: torch.Tensor
    groups: list[Group]
    _by_head: dict[tuple[int, int], torch.Tensor] = field(default_factory=dict)

    def gather(self, tensor: torch.Tensor) -> torch.Tensor:
        """The entries that the groups read of one of the pool's tensors, [slots, heads, dim]: [heads, entries, dim].

        A copy, with each head's entries contiguous where possible: attention then reads them twice as fast.
        """
        num_slots, heads, dim = tensor.shape
        step, rest = divmod(tensor.stride(0), dim)
        if heads == 1 or rest:
            return tensor.index_select(0, self.read).transpose(0, 1)
        if (heads, step) not in self._by_head:
            head = torch.arange(heads, device=self.read.device)
            self._by_head[heads, step] = (self.read * step + head[:, None]).flatten()
        rows = tensor.as_strided(((num_slots - 1) * step + heads, dim), (dim, 1))
        return rows.index_select(0, self._by_head[heads, step]).view(heads, -1, dim)


@dataclass(slots=True)
class Plan:
    """One forward pass over `jobs`.

    full, window: the plan of each side, None where the model lacks it. states: int64[jobs], the slots of their
    recurrent states, None where the model has none. sides: the side of each layer.
    """

    jobs: Jobs
    full: SidePlan | None
    window: SidePlan | None
    states: torch.Tensor | None
    sides: list[SidePlan | None] = field(default_factory=list)

    def side(self, layer: int | None) -> SidePlan:
        """The side that a layer attends to; where the model has one side only, that one."""
        side = self.full or self.window
        if self.full and self.window:
            assert layer is not None, "a module of a model with two sides knows its layer"
            side = self.sides[layer]
        assert side is not None, "a layer that attends has entries"
        return side


def plan_forward(manager: KVCacheManager, jobs: Jobs) -> Plan:
    """Plan a pass over rows as they are now. The slots are valid until pages are taken, which may move others."""
    layout = manager.layout
    full = None if manager.pool is None else _plan_side(manager, jobs, None)
    window = None if manager.window_pool is None else _plan_side(manager, jobs, layout.window_rule)
    states = None if manager.state_pool is None else manager.state_slots(jobs.rows)
    kinds = [layer.tokens.kind if layer.tokens else layer.shared_kind for layer in layout.layers]
    sides = [window if kind in BOUNDED else full for kind in kinds]
    return Plan(jobs, full, window, states, sides)


def group(jobs: Jobs, window: Window | None, device: torch.device) -> tuple[list[Group], IntArray, IntArray]:
    """The groups of jobs, which must be in order, for layers with a window (or chunk), or None for full layers.

    Also the entries that they read: table rows and positions, int64[entries] each.
    """
    first = first_read(jobs.starts, window)
    groups: list[Group] = []
    rows, positions = [], []
    query = key = 0
    for begin, end in _bounds(jobs.num_new, jobs.ends - first):
        some = slice(begin, end)
        num_rows, num_new = end - begin, int(jobs.num_new[begin])
        num_read = int((jobs.ends[some] - first[some]).max())
        columns = first[some, None] + np.arange(num_read)
        mask, is_causal = _visible(jobs.starts[some], jobs.ends[some], columns, window, device)
        queries = slice(query, query := query + num_rows * num_new)
        keys = slice(key, key := key + num_rows * num_read)
        groups.append(Group(num_rows, num_read, queries, keys, mask, is_causal))
        rows.append(np.repeat(jobs.rows[some], num_read))
        positions.append(np.minimum(columns, jobs.ends[some, None] - 1).ravel())
    return groups, np.concatenate(rows), np.concatenate(positions)


def first_read(positions: IntArray, window: Window | None) -> IntArray:
    """The first position that tokens at `positions` read, int64 of the same shape."""
    if window is None:
        return np.zeros_like(positions)
    if window.is_chunked:
        return positions - positions % window.span
    return np.maximum(positions - window.span + 1, 0)


def concatenated_ranges(starts: IntArray, ends: IntArray) -> IntArray:
    """The ranges `starts[i]` .. `ends[i]` - 1 one after the other, int64[their total length]."""
    lengths = ends - starts
    return np.arange(lengths.sum()) + np.repeat(ends - np.cumsum(lengths), lengths)


def _plan_side(manager: KVCacheManager, jobs: Jobs, window: Window | None) -> SidePlan:
    pool = manager.pool if window is None else manager.window_pool
    assert pool is not None, "the side has tensors"
    find = manager.physical_slots if window is None else manager.window_slots
    slots, device = manager.table.slots, manager.allocator.device
    groups, rows, positions = group(jobs, window, device)
    new = slots[jobs.rows.repeat(jobs.num_new), jobs.positions()]
    return SidePlan(pool, find(to_device(new, device)), find(to_device(slots[rows, positions], device)), groups)


def _bounds(num_new: IntArray, num_read: IntArray) -> list[tuple[int, int]]:
    """Where groups begin and end: a group grows as long as it needs little padding."""
    bounds = []
    begin = total = longest = 0
    for at, (new, read) in enumerate(zip(num_new.tolist(), num_read.tolist(), strict=True)):
        waste = (at - begin + 1) * max(longest, read) - total - read
        if at > begin and (new != num_new[begin] or waste > max(total // _WASTE, _FREE_WASTE)):
            bounds.append((begin, at))
            begin, total, longest = at, 0, 0
        total += read
        longest = max(longest, read)
    bounds.append((begin, num_new.size))
    return bounds


def _visible(
    starts: IntArray, ends: IntArray, columns: IntArray, window: Window | None, device: torch.device
) -> tuple[torch.Tensor | None, bool]:
    """The mask of a group whose rows read `columns`, int64[rows, entries]; those from `ends` on are padding."""
    num_new = int(ends[0] - starts[0])
    is_full = bool((columns[:, -1] < ends).all())
    if num_new == 1 and is_full:
        return None, False
    entries = to_device(columns, device)[:, None]
    if num_new == 1:
        return (entries < to_device(ends, device)[:, None, None])[:, None], False
    starts_here = bool((columns[:, 0] == starts).all())
    if is_full and starts_here and (window is None or num_new <= window.span):
        return None, True
    tokens = starts[:, None] + np.arange(num_new)
    mask = entries <= to_device(tokens, device)[:, :, None]
    if window is not None:
        mask &= entries >= to_device(first_read(tokens, window), device)[:, :, None]
    return mask[:, None], False
