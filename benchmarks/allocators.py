"""Scenarios of the allocators: one request freed, a step's requests freed in a group, rows that grow."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import torch

from sides import AllocatorSide, Pool
from timing import median_of, microseconds

MILLION = 1 << 20
REQUEST = 2048  # slots of a request
GROUP = 64  # requests that end in one step


def allocator_figures(side: AllocatorSide) -> Iterator[tuple[str, float]]:
    """Name and microseconds of every scenario."""
    for millions in (1, 4, 16):
        yield f"token free contiguous {millions}M", free_contiguous(side, millions * MILLION)
        yield f"token free scattered {millions}M", free_scattered(side, millions * MILLION)
    for millions in (1, 4):
        yield f"token group {millions}M", free_in_group(side, millions * MILLION)
    yield "paged extend", extend(side)
    yield "paged decode", decode(side)
    yield "paged free_segment", free_segment(side)


def free_contiguous(side: AllocatorSide, size: int) -> float:
    """One request's slots, neighbours, in a pool of which all else is free."""
    pool = side.token_pool(size)

    def sample() -> float:
        slots = pool.alloc(REQUEST)
        return microseconds(partial(pool.free, slots))

    return median_of(sample, repeats=100)


def free_scattered(side: AllocatorSide, size: int) -> float:
    """As above with slots from all over the pool, after 127 other requests have been touched."""
    pool = side.token_pool(size)
    shuffle(pool, size)
    waiting = [pool.alloc(REQUEST) for _ in range(128)]

    def sample() -> float:
        spent = microseconds(partial(pool.free, waiting.pop(0)))
        waiting.append(pool.alloc(REQUEST))
        return spent

    return median_of(sample, repeats=100)


def shuffle(pool: Pool, size: int) -> None:
    """Bring the free list into random order."""
    order = torch.randperm(size, generator=torch.Generator().manual_seed(1))
    pool.free(pool.alloc(size)[order])


def free_in_group(side: AllocatorSide, size: int) -> float:
    """All requests of a step, each freed by its own call inside one group, its end included."""
    pool = side.token_pool(size)

    def sample() -> float:
        rows = [pool.alloc(REQUEST) for _ in range(GROUP)]
        return microseconds(partial(end_all, pool, rows))

    return median_of(sample, repeats=60)


def end_all(pool: Pool, rows: list[torch.Tensor]) -> None:
    pool.free_group_begin()
    for row in rows:
        pool.free(row)
    pool.free_group_end()


def extend(side: AllocatorSide, size: int = MILLION) -> float:
    """16 rows of different lengths, most of them in mid-page, grow by 512 tokens each."""
    pool = side.paged_pool(size, 16)
    nothing, prefix = torch.zeros(16, dtype=torch.int64), 37 * torch.arange(16)
    ends = torch.cumsum(prefix, 0)
    outcome: list[torch.Tensor] = []

    def sample() -> float:
        begun = side.extend_call(pool, nothing, prefix, nothing - 1)()
        last = torch.where(prefix > 0, begun[ends - 1], -1)
        call = side.extend_call(pool, prefix, prefix + 512, last)
        spent = microseconds(lambda: outcome.append(call()))
        grown = outcome.pop()
        pool.free(torch.cat((begun, grown)))
        return spent

    return median_of(sample, repeats=200)


def decode(side: AllocatorSide, size: int = MILLION) -> float:
    """32 rows grow by one token; two of them begin a page."""
    pool = side.paged_pool(size, 16)
    seq = 512 + torch.arange(32)
    nothing = torch.zeros(32, dtype=torch.int64)
    last = side.extend_call(pool, nothing, seq, nothing - 1)()[torch.cumsum(seq, 0) - 1]
    outcome = [last]

    def sample() -> float:
        seq.add_(1)
        call = side.decode_call(pool, seq.clone(), outcome.pop())
        return microseconds(lambda: outcome.append(call()))

    return median_of(sample, repeats=500)


def free_segment(side: AllocatorSide, size: int = MILLION) -> float:
    """A whole row of 2,048 tokens, known to begin on a page boundary."""
    pool = side.paged_pool(size, 16)

    def sample() -> float:
        row = pool.alloc(REQUEST)
        return microseconds(partial(pool.free_segment, row, start_pos=0))

    return median_of(sample, repeats=200)
