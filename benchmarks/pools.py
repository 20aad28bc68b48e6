"""What a pool costs before anything is in it, and what taking one page costs."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from statistics import median
from typing import Protocol

from sides import AllocatorSide
from timing import median_of, microseconds, microseconds_each

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
    yield "pages one", take_and_give(pages, 1)
    yield "pages many", take_and_give(pages, 512) * 1000 / 512


def take_and_give(pages: Pages, num_pages: int) -> float:
    """Microseconds a pair of calls."""
    return median_of(lambda: microseconds_each(lambda: pages.give(pages.take(num_pages)), times=100), repeats=300)


def import_seconds(names: str) -> float:
    """What importing kvstead takes once torch is there and all that can be cached is cached on disk."""
    command = [sys.executable, "-c", _IMPORT.format(names=names)]
    caching = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    seconds = [
        float(subprocess.run(command, check=True, capture_output=True, text=True, env=caching).stdout) for _ in range(6)
    ]
    return median(seconds[1:])
