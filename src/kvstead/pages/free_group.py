"""The free group: the interval in which freed pages are parked, to become free together at its end.

          begin                    free(x): resolve x to pages now,        end
 None ------------>  list == [] ----- park them, append one Release ---->  list -> None, unpark all at once
   ^  free(x): free now                (a double free is seen here,                    |
   |                                    not at the end)                                |
   +-----------------------------------------------------------------------------------+
 end on None: nothing.   begin on a list: FreeGroupError, the list is kept.   clear: list -> None.

The container is the state; no flag beside it could contradict it. Frees of all pools park their pages in this list.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Generic, NamedTuple, TypeAlias, TypeVar

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


class DefersFrees(Generic[R]):
    """Opens and ends the group: `free_group` is None (frees take effect at once) or the list of parked releases.

    chain: the pools of an arena, for an allocator on one. Where pages move at every free, its fence is called before
    the group ends; if it raises, the group stays open.
    """

    free_group: list[R] | None
    chain: Any = None

    def free_group_begin(self) -> None:
        """Open a group: from now on frees are parked. Raises `FreeGroupError` when one is open."""
        self.free_group = begin(self.free_group)

    def free_group_end(self) -> None:
        """Close the group and make available all that is parked in it. Without an open group nothing happens."""
        if self.free_group and self.chain is not None and self.chain.eager:
            self.chain.order()
        group, self.free_group = self.free_group, None
        end(group)

    def defer_frees(self) -> AbstractContextManager[None]:
        """A free group as a `with` block; an exception inside ends the group too."""
        return _FreeGroup(self)


class FreesAtOnce:
    """Has no group: frees always take effect at once."""

    def free_group_begin(self) -> None:
        """Do nothing: frees take effect at once."""

    def free_group_end(self) -> None:
        """Do nothing: no group is ever open."""

    def defer_frees(self) -> AbstractContextManager[None]:
        """A `with` block in which frees take effect at once, as anywhere."""
        return nullcontext()


class _FreeGroup(AbstractContextManager[None]):
    """What `defer_frees` returns; a class, because a generator costs more and this is entered once a step."""

    __slots__ = ("_allocator",)

    def __init__(self, allocator: DefersFrees[Any]) -> None:
        self._allocator = allocator

    def __enter__(self) -> None:
        self._allocator.free_group_begin()

    def __exit__(self, *_: object) -> None:
        self._allocator.free_group_end()
