"""Attributes that a class takes over from one of its parts, declared as data."""

from __future__ import annotations

from operator import attrgetter
from typing import Any, Generic, Self, TypeVar, overload

T_co = TypeVar("T_co", covariant=True)


class AttributeOf(Generic[T_co]):
    """A read-only attribute: after `num_pages = AttributeOf[int]("core.num_pages")`, it reads `self.core.num_pages`."""

    def __init__(self, path: str) -> None:
        self._read = attrgetter(path)

    @overload
    def __get__(self, instance: None, owner: type) -> Self: ...

    @overload
    def __get__(self, instance: object, owner: type) -> T_co: ...

    def __get__(self, instance: object | None, owner: type) -> Any:
        return self if instance is None else self._read(instance)

    def __set__(self, instance: object, value: Any) -> None:
        raise AttributeError(f"{type(instance).__name__} reads this attribute from a part and cannot set it.")
