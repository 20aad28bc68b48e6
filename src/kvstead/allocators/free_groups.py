"""The free group of an allocator, on the host or on a device."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any, Generic, TypeVar

from kvstead.pages import free_group

R = TypeVar("R", bound=tuple[Any, Any])  # a release: a pool, and pages parked in it


class DefersFrees(Generic[R]):
    """Opens and ends the group: `free_group` is None (frees take effect at once) or the list of parked releases."""

    free_group: list[R] | None

    def free_group_begin(self) -> None:
        """Open a group: from now on frees are parked. Raises `FreeGroupError` when one is open."""
        self.free_group = free_group.begin(self.free_group)

    def free_group_end(self) -> None:
        """Close the group and make available all that is parked in it. Without an open group nothing happens."""
        group, self.free_group = self.free_group, None
        free_group.end(group)

    def defer_frees(self) -> AbstractContextManager[None]:
        """A free group as a `with` block; an exception inside ends the group too."""
        return _FreeGroup(self)


class _FreeGroup(AbstractContextManager[None]):
    """What `defer_frees` returns; a class, because a generator costs more and this is entered once a step."""

    __slots__ = ("_allocator",)

    def __init__(self, allocator: DefersFrees[Any]) -> None:
        self._allocator = allocator

    def __enter__(self) -> None:
        self._allocator.free_group_begin()

    def __exit__(self, *_: object) -> None:
        self._allocator.free_group_end()
