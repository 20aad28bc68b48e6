"""The free group: the interval in which freed pages are parked, to become free together at its end.

          begin                    free(x): resolve x to pages now,        end
 None ------------>  list == [] ----- park them, append one Release ---->  list -> None, unpark all at once
   ^  free(x): free now                (a double free is seen here,                    |
   |                                    not at the end)                                |
   +-----------------------------------------------------------------------------------+
 end on None: nothing.   begin on a list: FreeGroupError, the list is kept.   clear: list -> None.

The container is the state; no flag beside it could contradict it. Every free parks its pages in this one list; a
release names its pool.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple, TypeAlias, TypeVar

from kvstead.errors import FreeGroupError
from kvstead.kernels.array_types import IntArray
from kvstead.pages.free_list import FreeList


class Release(NamedTuple):
    """Pages of one pool that were freed inside the group and are PARKED there."""

    pool: FreeList
    pages: IntArray


FreeGroup: TypeAlias = list[Release] | None

R = TypeVar("R", bound=tuple[Any, Any])  # a pool, and pages parked in it


def begin(group: list[R] | None) -> list[R]:
    """Open a group. Raises `FreeGroupError` when one is open, which keeps what it holds."""
    if group is not None:
        raise FreeGroupError(
            f"a free group is open already and holds {len(group)} releases. End it first; groups do not nest."
        )
    return []


def end(releases: Iterable[tuple[Any, Any]] | None) -> None:
    """Make everything that was parked available, pool by pool, in the order of the calls."""
    by_pool: dict[Any, list[Any]] = {}
    for pool, pages in releases or ():
        by_pool.setdefault(pool, []).append(pages)
    for pool, parked in by_pool.items():
        pool.unpark(parked)
