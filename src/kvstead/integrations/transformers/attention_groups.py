"""Which requests of a forward pass attend together.

Requests are sorted by their new tokens, then by how much they read, and neighbours with equally many new tokens share
one group. All of a group read as many entries as its longest, filled up with the request's own last one:

    request   new   reads                      entries gathered, in the order of the groups
    a          1    3 entries                  a0 a1 a2 a2 | b0 b1 b2 b3 | c0 c1 c2 c3 c4
    b          1    4          one group       '------- 2 rows of 4 ----' '- 1 row of 5 -'
    c          5    5          one group                 ^ hidden by the mask

So attention is a few matrix products a layer, whatever the number of requests, and every entry that is read is one of
the request's own: no kernel meets bytes that nobody has written.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from kvstead.kernels.array_types import IntArray
from kvstead.kernels.arrays import to_device
from kvstead.model import Window

_WASTE = 4  # a group may be filled up by a quarter of what it reads,
_FREE_WASTE = 256  # or by so many entries: less than another group costs


@dataclass(frozen=True, slots=True)
class Jobs:
    """The requests of one forward pass: each computes positions `starts` .. `ends` - 1 of its row, int64[n] each.

    Their tokens are packed one job after the other, best in the order that `order` gives.
    """

    rows: IntArray
    starts: IntArray
    ends: IntArray

    @property
    def num_new(self) -> IntArray:
        """Tokens that each computes, int64[n]."""
        return self.ends - self.starts

    @property
    def last_tokens(self) -> IntArray:
        """Where in the packed tokens each one's last is, int64[n]."""
        return np.cumsum(self.num_new) - 1

    def positions(self) -> IntArray:
        """The position of every packed token, int64[tokens]."""
        return concatenated_ranges(self.starts, self.ends)

    def take(self, which: IntArray) -> Jobs:
        """Some of them, in that order."""
        return Jobs(self.rows[which], self.starts[which], self.ends[which])

    def order(self) -> IntArray:
        """The order in which those with equally many new tokens, and of them those of like lengths, are neighbours."""
        return np.lexsort((self.ends, self.num_new))


@dataclass(frozen=True, slots=True)
class Group:
    """Requests that attend in one call.

    num_rows: how many. queries: their tokens among the packed ones, equally many a row. keys: their entries among
    those gathered, equally many a row. mask: bool[rows, 1, new, entries], true where a token sees an entry, or None
    where each sees all; is_causal: each sees as many as its place among the new tokens says (then there is no mask).
    """

    num_rows: int
    queries: slice
    keys: slice
    mask: torch.Tensor | None
    is_causal: bool

    @property
    def num_read(self) -> int:
        """Entries of each row."""
        num_entries: int = self.keys.stop - self.keys.start
        return num_entries // self.num_rows


def group(jobs: Jobs, window: Window | None, device: torch.device) -> tuple[list[Group], IntArray, IntArray]:
    """The groups of jobs in order, for layers with a window (or chunk), or for those that see everything.

    Also what they read, entry by entry: table rows and positions, int64[entries] each.
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
        groups.append(Group(num_rows, queries, keys, mask, is_causal))
        rows.append(np.repeat(jobs.rows[some], num_read))
        positions.append(np.minimum(columns, jobs.ends[some, None] - 1).ravel())
    return groups, np.concatenate(rows), np.concatenate(positions)


def first_read(positions: IntArray, window: Window | None) -> IntArray:
    """The first position that tokens at `positions` see, int64 of the same shape."""
    if window is None:
        return np.zeros_like(positions)
    first: IntArray = (
        positions - positions % window.span if window.is_chunked else np.maximum(positions - window.span + 1, 0)
    )
    return first


def concatenated_ranges(starts: IntArray, ends: IntArray) -> IntArray:
    """`starts[i]` .. `ends[i]` - 1, one range after the other."""
    lengths = ends - starts
    ranges: IntArray = np.arange(int(lengths.sum())) + np.repeat(starts - (np.cumsum(lengths) - lengths), lengths)
    return ranges


def _bounds(num_new: IntArray, num_read: IntArray) -> list[tuple[int, int]]:
    """Where groups begin and end: a group grows while it has not to be filled up by too much."""
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
    """The mask of a group whose rows read `columns`, int64[rows, entries]; those from `ends` on are filling."""
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
