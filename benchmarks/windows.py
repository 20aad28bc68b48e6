"""Scenarios of the allocator with a window side: requests that end, and windows that move on."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from statistics import median

import torch

from sides import Batch, Pool, WindowSide
from timing import FEWEST, collector_off, median_of, microseconds

FULL = 1 << 20
WINDOW_SIDE = 1 << 19
PAGE = 64
REQUEST = 2048  # tokens of a request that ends
GROUP = 64  # requests that end in one step

ROWS = 256  # requests that decode
SPAN = 1024  # tokens of their windows
CYCLE = 128  # tokens after which every row has released window pages, on all sides
CYCLES = 10

EndAll = Callable[[Pool, list[torch.Tensor]], None]


def window_figures(side: WindowSide) -> Iterator[tuple[str, float]]:
    """Name and microseconds of every scenario, those of decode steps for one request of the batch."""
    yield "swa free 1M", free_one(side, lambda pool, slots: pool.free(slots))
    yield "swa free_segment 1M", free_one(side, lambda pool, slots: pool.free_segment(slots, start_pos=0))
    yield "swa group 1M", free_in_group(side, end_all)
    yield "swa group by segments 1M", free_in_group(side, end_all_segments)
    yield "swa window release 256", release(side)
    yield "swa window step 256", step(side)


def free_one(side: WindowSide, free: Callable[[Pool, torch.Tensor], None]) -> float:
    """One request with all its window pages; all else in the pool is free."""
    pool = side.window_pool(FULL, WINDOW_SIDE, PAGE)

    def sample() -> float:
        (slots,) = begin(side, pool, 1)
        return microseconds(partial(free, pool, slots))

    return median_of(sample, repeats=200)


def free_in_group(side: WindowSide, end: EndAll) -> float:
    """All requests of a step with all their window pages, each freed by its own call, the group's end included."""
    pool = side.window_pool(FULL, WINDOW_SIDE, PAGE)

    def sample() -> float:
        rows = begin(side, pool, GROUP)
        return microseconds(partial(end, pool, rows))

    return median_of(sample, repeats=60)


def begin(side: WindowSide, pool: Pool, num_rows: int) -> list[torch.Tensor]:
    """Requests of `REQUEST` tokens with a window page for every page."""
    nothing = torch.zeros(num_rows, dtype=torch.int64)
    return list(side.extend_call(pool, nothing, nothing + REQUEST, nothing - 1)().split(REQUEST))


def end_all(pool: Pool, rows: list[torch.Tensor]) -> None:
    pool.free_group_begin()
    for row in rows:
        pool.free(row)
    pool.free_group_end()


def end_all_segments(pool: Pool, rows: list[torch.Tensor]) -> None:
    pool.free_group_begin()
    for row in rows:
        pool.free_segment(row, start_pos=0)
    pool.free_group_end()


def release(side: WindowSide) -> float:
    """A decode step in which every row of the batch releases window pages, a request.

    All rows are equally long, so that they all release in the same steps. kvstead releases a page as soon as it has
    fallen out of the window; SGLang, by default, waits for 128 tokens and then releases their two pages at once. What
    is measured is all that the step asks of memory: windows move on, then every row gets a slot, with a new page and
    a window page where the last is full (in kvstead's case in the same step), and it is written to the row. On SGLang
    that is `alloc_for_decode`, which goes through `ScheduleBatch.maybe_evict_swa`; on kvstead the manager's `decode`.
    """
    batch = side.batch([SPAN] * ROWS, SPAN, PAGE)
    samples = [spent for spent, released in steps(batch, CYCLE * CYCLES) if released >= ROWS * PAGE][1:]
    assert len(samples) >= FEWEST, "all rows release together"
    return median(samples) / ROWS


def step(side: WindowSide) -> float:
    """As above for rows of all lengths, of which a few release pages in each step (kvstead 4, SGLang 2), a request."""
    batch = side.batch([SPAN + number % CYCLE for number in range(ROWS)], SPAN, PAGE)
    samples = list(steps(batch, CYCLE * 3))[CYCLE:]
    assert all(0 < released < ROWS * PAGE / 32 for _, released in samples), "a few rows release in every step"
    return median(spent for spent, _ in samples) / ROWS


def steps(batch: Batch, num_steps: int) -> Iterator[tuple[float, int]]:
    """Microseconds that each decode step spends on memory, and window slots that come back in it."""
    with collector_off():
        for _ in range(num_steps):
            call = batch.decode_call()
            before = batch.released()
            spent = microseconds(call)
            yield spent, batch.released() - before
            batch.commit()
