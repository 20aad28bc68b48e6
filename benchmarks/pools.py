"""What a pool costs before anything is in it, and what taking one page costs."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from statistics import median
from typing import Protocol

from sides import AllocatorSide
from timing import collector_off, median_of, microseconds, microseconds_each

PAGES = 1 << 20

_IMPORT = """
import time, torch
start = time.perf_counter()
from kvstead import {names}
print(time.perf_counter() - start)
"""


class Pages(Protocol):
    """A free list."""

    def take(self, num_pages: int, /) -> object:
        """Hand out pages."""

    def give(self, pages: object, /) -> None:
        """Take them back."""


def pool_figures(side: AllocatorSide) -> Iterator[tuple[str, float]]:
    """Bytes a page and microseconds until a pool of a million pages has handed out its first."""
    yield "pool bytes a page", side.pool_bytes(PAGES) / PAGES
    yield "pool ready", median_of(lambda: microseconds(side.ready_call(PAGES)), repeats=20)


def page_figures(pages: Pages) -> Iterator[tuple[str, float]]:
    """Microseconds to take one page and give it back; nanoseconds a page of 512."""
    for num_pages, figure in ((1, "pages one"), (512, "pages many")):

        def sample(num_pages: int = num_pages) -> float:
            with collector_off():
                return microseconds_each(lambda: pages.give(pages.take(num_pages)), times=1000)

        spent = median(sample() for _ in range(15))
        yield figure, spent if num_pages == 1 else spent * 1000 / num_pages


def import_seconds(names: str) -> float:
    """What importing kvstead takes once torch is there and the compiled kernels are cached on disk."""
    program = _IMPORT.format(names=names)
    seconds = [
        float(subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True).stdout)
        for _ in range(6)
    ]
    return median(seconds[1:])
