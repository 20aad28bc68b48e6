"""Stands in for packages that only exist for a GPU, so that a peer's host-side modules can be imported without one.

Runs in the peer's interpreter. Nothing measured may call into a stand-in: every one of their attributes is a class that
can be subclassed, decorated with, called, subscripted or a field's type, and does nothing.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterable, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType


class _InertType(type):
    """Makes the class itself as inert as its instances."""

    def __getattr__(cls, name: str) -> type:
        if name.startswith("__"):
            raise AttributeError(name)
        return _inert(name)

    def __getitem__(cls, _item: object) -> type:
        return cls

    def __or__(cls, other: object) -> type:
        return cls

    def __ror__(cls, other: object) -> type:
        return cls


class _Inert(metaclass=_InertType):
    def __init__(self, *_args: object, **_kwargs: object) -> None:
        pass

    def __call__(self, *args: object, **_kwargs: object) -> object:
        """As a decorator: the function itself."""
        return args[0] if len(args) == 1 and callable(args[0]) else self

    def __getattr__(self, name: str) -> type:
        if name.startswith("__"):
            raise AttributeError(name)
        return _inert(name)

    @classmethod
    def __get_pydantic_core_schema__(cls, *_: object) -> dict[str, str]:
        """As a field of a model of pydantic's: any value will do."""
        return {"type": "any"}


def _inert(name: str) -> type:
    return _InertType(name, (_Inert,), {})


class _AbsentModule(ModuleType):
    __path__: Sequence[str] = ()
    __version__ = "0.0.0"

    def __getattr__(self, name: str) -> type:
        if name.startswith("__"):
            raise AttributeError(name)
        made = _inert(name)
        setattr(self, name, made)
        return made


class _Finder(MetaPathFinder, Loader):
    """Comes last: whatever is really installed is found before it."""

    def __init__(self, names: Iterable[str]) -> None:
        self.names = frozenset(names)

    def find_spec(self, fullname: str, _path: object = None, _target: object = None) -> ModuleSpec | None:
        if fullname.partition(".")[0] not in self.names:
            return None
        return ModuleSpec(fullname, self, is_package=True)

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return _AbsentModule(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        """There is nothing to run."""


def stand_in(names: Iterable[str]) -> None:
    """Make `import` of the named top-level packages, and of anything below them, succeed where they are absent.

    Code that asks `importlib.util.find_spec` whether one is there is still told the truth.
    """
    finder = _Finder(names)
    ask = importlib.util.find_spec

    def find_spec(name: str, package: str | None = None) -> ModuleSpec | None:
        loaded = sys.modules.get(name.partition(".")[0])
        if name.partition(".")[0] not in finder.names or (loaded and not isinstance(loaded, _AbsentModule)):
            return ask(name, package)
        for other in sys.meta_path:
            if other is not finder and (found := other.find_spec(name.partition(".")[0], None)):
                return found
        return None

    importlib.util.find_spec = find_spec
    sys.meta_path.append(finder)
