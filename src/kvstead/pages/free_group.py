"""The free group: the interval in which frees wait, to be handed back together at its end.

          begin                    free(x): resolve x to pages now,        end
 None ------------>  list == [] ----- park them, append one Release ---->  list -> None, give all back at once
   ^  free(x): give back now           (a double free is seen here,                    |
   |                                    not at the end)                                |
   +-----------------------------------------------------------------------------------+
 end on None: nothing.   begin on a list: FreeGroupError, the list is kept.   clear: list -> None.

The container is the state: there is no flag beside it that could say something else. Every kind of free parks in this
one list; a release names its pool.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple, Protocol, TypeAlias, TypeVar

from kvstead.errors import FreeGroupError
from kvstead.kernels.array_types import IntArray
from kvstead.pages.free_list import FreeList


class Release(NamedTuple):
    """Pages of one pool that were freed inside the group and are marked PARKED there."""

    pool: FreeList
    pages: IntArray


FreeGroup: TypeAlias = list[Release] | None

R = TypeVar("R")
P = TypeVar("P")
P_contra = TypeVar("P_contra", contravariant=True)


class Lot(Protocol[P_contra]):
    """What pages are parked in: a free list, whatever its pages are kept in."""

    def unpark(self, pages: P_contra) -> None:
        """Make parked pages available."""
        ...


def begin(group: list[R] | None) -> list[R]:
    """Open a group. Raises `FreeGroupError` when one is open; what it holds stays."""
    if group is not None:
        raise FreeGroupError(
            f"a free group is open already and holds {len(group)} releases. End it first; groups do not nest."
        )
    return []


def end(releases: Iterable[tuple[Lot[P], P]] | None) -> None:
    """Hand back everything that was parked, in the order of the calls."""
    for pool, pages in releases or ():
        pool.unpark(pages)
