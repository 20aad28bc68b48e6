"""The torch twins of the kernels of `host`, `growing_rows` and `bitmap`: whole tensors in place of loops, any device.

Names, arguments and results are those of the kernels, with tensors of the same dtypes in place of arrays (the words of
a bitmap as int64, since torch does not shift uint64). A call that is refused changes no state; as with the kernels,
what it left in `out` or the ring then says nothing. Answers that decide what happens next are Python numbers, so on an
accelerator each waits for the device.
"""

from __future__ import annotations

import torch

from kvstead.kernels.growing_rows import Verdict
from kvstead.kernels.host import (
    FAULT_FOREIGN,
    FAULT_LENGTHS,
    FAULT_NONE,
    FAULT_NOT_LIVE,
    FAULT_OFFSET,
    FAULT_SHARED,
    FREE,
    LIVE,
    PADDING,
)

# Pages and states


def write_ring(ring: torch.Tensor, start: int, pages: torch.Tensor) -> None:
    """Twin of `host.write_ring`."""
    ring[(_count_up(pages) + start) % ring.numel()] = pages


def move(state: torch.Tensor, pages: torch.Tensor, before: int, after: int, ring: torch.Tensor, start: int) -> int:
    """Twin of `host.move`. O(k log k)."""
    bad = _first(~_in_state(state, pages, before) | _seen_before(pages))
    if bad < 0 and pages.numel():
        state[pages] = after
        write_ring(ring, start, pages)
    return bad


def take(
    state: torch.Tensor,
    owner: torch.Tensor,
    ring: torch.Tensor,
    head: int,
    num_listed: int,
    listed_at: int,
    fresh: int,
    tag: int,
    out: torch.Tensor,
) -> None:
    """Twin of `host.take`."""
    listed = ring[(_count_up(ring[:num_listed]) + head) % max(ring.numel(), 1)]
    others = _count_up(out[num_listed:]) + fresh
    out[:] = torch.cat([others[:listed_at], listed, others[listed_at:]])
    state[out] = LIVE
    owner[out] = tag


def move_slots(
    state: torch.Tensor, slots: torch.Tensor, page_size: int, after: int, out: torch.Tensor
) -> tuple[int, int]:
    """Twin of `host.move_slots`. O(k log k)."""
    pages = slots // page_size
    bad = _first(~_in_state(state, pages, LIVE))
    if bad >= 0:
        return 0, bad
    distinct = pages[~_seen_before(pages)]
    out[: distinct.numel()] = distinct
    state[distinct] = after
    return distinct.numel(), -1


def free_slots(
    state: torch.Tensor,
    slots: torch.Tensor,
    page_size: int,
    out: torch.Tensor,
    ring: torch.Tensor,
    at: int,
    shift: int,
) -> tuple[int, int]:
    """Twin of `host.free_slots`. O(k log k)."""
    count, bad = move_slots(state, slots, page_size, FREE, out)
    write_ring(ring, at - shift * count, out[:count])
    return count, bad


def move_segment(
    state: torch.Tensor, slots: torch.Tensor, page_size: int, after: int, ring: torch.Tensor, start: int
) -> tuple[int, int]:
    """Twin of `host.move_segment`. O(k log k)."""
    pages = slots[::page_size] // page_size
    position = _count_up(slots)
    misplaced = _first(slots != pages[position // page_size] * page_size + position % page_size)
    dead = _first(~_in_state(state, pages, LIVE) | _seen_before(pages))
    if misplaced >= 0 and (dead < 0 or misplaced // page_size <= dead):
        return FAULT_OFFSET, misplaced // page_size
    if dead >= 0:
        return FAULT_NOT_LIVE, dead
    move(state, pages, LIVE, after, ring, start)
    return FAULT_NONE, -1


def expand_pages(pages: torch.Tensor, page_size: int, out: torch.Tensor) -> None:
    """Twin of `host.expand_pages`."""
    offsets = torch.arange(page_size, device=pages.device)
    out[:] = (pages[:, None] * page_size + offsets).reshape(-1)


# Growing rows


def claim_last_page(state: torch.Tensor, prefix: torch.Tensor, last: torch.Tensor, page_size: int) -> torch.Tensor:
    """Twin of `growing_rows.claim_last_page` for a batch: every row's fault, int64[rows], if all before it have none.

    The states stay as they are; a page is claimed by the first row of the batch that grows in it.
    """
    page = last // page_size
    known = page.clamp(0, state.numel() - 1)
    inside = prefix % page_size != 0
    foreign = (page != known) | (state[known] == PADDING)
    # A row that grows inside no page gets a number of its own, below all page ids, and so meets no other row.
    fault = torch.where(_seen_before(torch.where(inside, known, -1 - _count_up(last))), FAULT_SHARED, FAULT_NONE)
    fault = torch.where(state[known] != LIVE, FAULT_NOT_LIVE, fault)
    fault = torch.where(foreign, FAULT_FOREIGN, fault)
    fault = torch.where(inside, fault, FAULT_NONE)
    return torch.where((last + 1) % page_size != prefix % page_size, FAULT_OFFSET, fault)


def extend_demand(
    state: torch.Tensor, prefix_lens: torch.Tensor, seq_lens: torch.Tensor, last_locs: torch.Tensor, page_size: int
) -> Verdict:
    """Twin of `growing_rows.extend_demand`; with a fault the counts are 0."""
    faults = torch.where((prefix_lens < 0) | (seq_lens < prefix_lens), FAULT_LENGTHS, FAULT_NONE)
    grows = (seq_lens > prefix_lens) & (prefix_lens >= 0)
    faults[grows] = claim_last_page(state, prefix_lens[grows], last_locs[grows], page_size)
    bad = _first(faults != FAULT_NONE)
    if bad >= 0:
        return int(faults[bad]), bad, 0, 0
    num_pages = _new_pages(prefix_lens, seq_lens, page_size).clamp(max=state.numel()).sum()
    return FAULT_NONE, seq_lens.numel(), int((seq_lens - prefix_lens).sum()), int(num_pages)


def extend_slots(
    prefix_lens: torch.Tensor,
    seq_lens: torch.Tensor,
    last_locs: torch.Tensor,
    page_size: int,
    pages: torch.Tensor,
    out: torch.Tensor,
) -> None:
    """Twin of `growing_rows.extend_slots`: every new position of every row at once."""
    lengths = seq_lens - prefix_lens
    new_pages = _new_pages(prefix_lens, seq_lens, page_size)
    row = torch.repeat_interleave(_count_up(lengths), lengths)
    step = _count_up(row) - (lengths.cumsum(0) - lengths)[row]
    position = prefix_lens[row] + step
    nth = position // page_size - -(-prefix_lens // page_size)[row]  # page of the row's new ones; -1 is its last one
    out[:] = last_locs[row] + 1 + step
    fresh = nth >= 0
    first = (new_pages.cumsum(0) - new_pages)[row]
    out[fresh] = pages[(first + nth)[fresh]] * page_size + position[fresh] % page_size


def decode_slots(
    state: torch.Tensor, seq_lens: torch.Tensor, last_locs: torch.Tensor, page_size: int, out: torch.Tensor
) -> Verdict:
    """Twin of `growing_rows.decode_slots`; with a fault the counts are 0."""
    verdict = extend_demand(state, seq_lens - 1, seq_lens, last_locs, page_size)
    out[:] = torch.where((seq_lens - 1) % page_size == 0, -1, last_locs + 1)
    return verdict


def open_pages(pages: torch.Tensor, page_size: int, out: torch.Tensor) -> None:
    """Twin of `growing_rows.open_pages`."""
    opening = (out < 0).nonzero()[:, 0]
    out[opening] = pages[: opening.numel()] * page_size


def tag_rows(
    owner: torch.Tensor,
    prefix_lens: torch.Tensor,
    seq_lens: torch.Tensor,
    page_size: int,
    pages: torch.Tensor,
    tags: torch.Tensor,
) -> None:
    """Twin of `growing_rows.tag_rows`."""
    of_page = torch.repeat_interleave(tags, _new_pages(prefix_lens, seq_lens, page_size))
    owner[pages[: of_page.numel()]] = of_page


# The bitmap


def set_bits(words: torch.Tensor, starts: torch.Tensor, pages: torch.Tensor) -> None:
    """Twin of `bitmap.set_bits`. O(words)."""
    free = _bits(words, starts)
    free[pages] = True
    _write_levels(words, starts, free)


def take_lowest(words: torch.Tensor, starts: torch.Tensor, out: torch.Tensor) -> None:
    """Twin of `bitmap.take_lowest`. O(words)."""
    free = _bits(words, starts)
    out[:] = free.nonzero()[: out.numel(), 0]
    free[out] = False
    _write_levels(words, starts, free)


def _bits(words: torch.Tensor, starts: torch.Tensor) -> torch.Tensor:
    """Level 0 as bool[64 * words of the level]."""
    level = words[: int(starts[1])] if starts.numel() > 1 else words
    return (level[:, None] >> torch.arange(64, device=words.device) & 1).bool().reshape(-1)


def _write_levels(words: torch.Tensor, starts: torch.Tensor, free: torch.Tensor) -> None:
    """Pack the bits of level 0, and above it a bit for every word that is not empty."""
    places = torch.arange(64, device=words.device)
    bits = free
    for start in starts.tolist():
        padded = torch.nn.functional.pad(bits, (0, -bits.numel() % 64))
        level = (padded.reshape(-1, 64).long() << places).sum(1)  # the sum of distinct bits is their union
        words[start : start + level.numel()] = level
        bits = level != 0


# What the twins share


def _count_up(like: torch.Tensor) -> torch.Tensor:
    """0, 1, 2, ... of the same length, on the same device."""
    return torch.arange(like.numel(), device=like.device)


def _first(mask: torch.Tensor) -> int:
    """Index of the first True, or -1."""
    found = mask.nonzero()
    return int(found[0, 0]) if found.numel() else -1


def _in_state(state: torch.Tensor, pages: torch.Tensor, wanted: int) -> torch.Tensor:
    """Which pages are in range and in the wanted state."""
    known = pages.clamp(0, state.numel() - 1)
    return (pages == known) & (state[known] == wanted)


def _new_pages(prefix_lens: torch.Tensor, seq_lens: torch.Tensor, page_size: int) -> torch.Tensor:
    """Pages that each row opens when it grows: ceil(seq / page_size) - ceil(prefix / page_size)."""
    return prefix_lens.neg() // page_size - seq_lens.neg() // page_size


def _seen_before(values: torch.Tensor) -> torch.Tensor:
    """Which values occur earlier in the tensor as well."""
    ordered, place = torch.sort(values, stable=True)
    seen = torch.zeros_like(values, dtype=torch.bool)
    seen[place[1:]] = ordered[1:] == ordered[:-1]
    return seen
