"""What a class offers to its callers: members, arguments, and who defines them. Compares SGLang's classes with ours."""

from __future__ import annotations

import dis
import inspect
from collections.abc import Callable, Collection, Iterator
from functools import cache
from itertools import pairwise
from types import CodeType
from typing import Any, Generic, Protocol

_NO_SOURCE = {object, Generic, Protocol}
_VARIADIC = {inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD}


def missing_parameters(theirs: Callable[..., Any], ours: Callable[..., Any]) -> list[str]:
    """Public parameters of `theirs` that `ours` does not take, or takes in another way or place."""
    wanted, given = inspect.signature(theirs).parameters, inspect.signature(ours).parameters
    if any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in given.values()):
        return []
    named = [parameter for parameter in wanted.values() if parameter.kind not in _VARIADIC and parameter.name[0] != "_"]
    places = [
        parameter.name for parameter in given.values() if parameter.kind is inspect.Parameter.POSITIONAL_OR_KEYWORD
    ]
    return [
        parameter.name
        for place, parameter in enumerate(named)
        if parameter.name not in given
        or (
            parameter.default is not inspect.Parameter.empty
            and given[parameter.name].default is inspect.Parameter.empty
        )
        or (parameter.kind is inspect.Parameter.POSITIONAL_OR_KEYWORD and places[place : place + 1] != [parameter.name])
    ]


def changed_calls(theirs: type, ours: type) -> dict[str, list[str]]:
    """Methods of `theirs` that `ours` has too, each with the parameters that ours does not take as theirs does."""
    found = {}
    for name in ["__init__", *_public(member for base in _bases(theirs) for member in vars(base))]:
        method, own = getattr(theirs, name), getattr(ours, name, None)
        if inspect.isroutine(method) and inspect.isroutine(own) and (missing := missing_parameters(method, own)):
            found[name] = missing
    return found


def absent_members(theirs: type, ours: type) -> list[str]:
    """Public attributes of `theirs` that `ours` does not have, those that methods assign to `self` included."""
    return sorted(set(_members(theirs)) - set(_members(ours)))


def inherited_members(theirs: type, ours: type, stand_ins: Collection[type]) -> list[str]:
    """Public members that `theirs` defines itself, and `ours` inherits from another of `stand_ins`.

    SGLang's class says that its answer differs from its base's, and ours gives the base's.
    """
    others = set(stand_ins) - {ours}
    return sorted(name for name in _public(vars(theirs)) if _definer(ours, name) in others)


def _members(cls: type) -> Iterator[str]:
    for base in _bases(cls):
        yield from _public([*vars(base), *_assigned(base)])


@cache
def _assigned(cls: type) -> frozenset[str]:
    """Names that the methods of a class assign to `self`, read from their compiled code."""
    codes = [code for member in vars(cls).values() for code in _codes(member)]
    found = set()
    for code in codes:
        steps = list(dis.get_instructions(code))
        for target, store in pairwise(steps):
            if store.opname == "STORE_ATTR" and target.argval == "self":
                found.add(store.argval)
    return frozenset(found)


def _codes(member: Any) -> list[CodeType]:
    """The code of a method or of a property's functions."""
    functions = (member.fget, member.fset) if isinstance(member, property) else (member,)
    unwrapped = [inspect.unwrap(function) for function in functions if callable(function)]
    return [function.__code__ for function in unwrapped if inspect.isfunction(function)]


def _bases(cls: type) -> list[type]:
    """The class and its bases that are written somewhere."""
    return [base for base in cls.__mro__ if base not in _NO_SOURCE and base.__module__ not in {"abc", "builtins"}]


def _definer(cls: type, name: str) -> type | None:
    return next((base for base in cls.__mro__ if name in vars(base)), None)


def _public(names: Collection[str] | Iterator[str]) -> list[str]:
    return [name for name in dict.fromkeys(names) if not name.startswith("_")]
