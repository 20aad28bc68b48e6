"""A package called `sglang` with the modules, classes and hooks that kvstead's plugin looks for, and nothing else."""

from __future__ import annotations

import importlib
import pkgutil
import sys
from enum import Enum
from types import ModuleType

from kvstead.integrations.sglang import coverage


class HookType(Enum):
    """The one kind of hook that replaces."""

    REPLACE = "replace"


class HookRegistry:
    """Notes hooks, and puts them in place, under other names too, as SGLang does before it starts."""

    def __init__(self):
        self.hooks = {}

    def register(self, target, hook, hook_type):
        """Note a hook."""
        assert hook_type is HookType.REPLACE
        self.hooks[target] = hook

    def apply_hooks(self):
        """Put the classes in place."""
        for target, hook in self.hooks.items():
            module, _, name = target.rpartition(".")
            home = pkgutil.resolve_name(module)
            original = getattr(home, name)
            for place in [module for key, module in sys.modules.items() if key.startswith("sglang.")]:
                for alias in [alias for alias, value in vars(place).items() if value is original]:
                    setattr(place, alias, hook)


def install(monkeypatch, version="0.5.23"):
    """Make the package importable until the test is over; its registry of hooks."""
    registry = HookRegistry()
    module(monkeypatch, "sglang.srt.plugins.hook_registry", HookRegistry=registry, HookType=HookType)
    for seat in coverage.SEATS:
        home, _, name = seat.theirs.rpartition(".")
        ours = getattr(importlib.import_module(seat.ours.rpartition(".")[0]), name)
        namespace = {"__init__": ours.__init__, "__module__": home}
        module(monkeypatch, home, **{name: type(name, (), namespace)})
    monkeypatch.setattr(coverage, "installed_version", lambda: version)
    return registry


def module(monkeypatch, path, **names):
    """A module at `path`, and the packages above it, with some names more."""
    parts = path.split(".")
    for end in range(1, len(parts) + 1):
        whole = ".".join(parts[:end])
        if whole not in sys.modules:
            made = ModuleType(whole)
            made.__path__ = []
            monkeypatch.setitem(sys.modules, whole, made)
            if end > 1:
                setattr(sys.modules[".".join(parts[: end - 1])], parts[end - 1], made)
    for name, value in names.items():
        setattr(sys.modules[path], name, value)
    return sys.modules[path]


def seat(name):
    """The place of a class, by its name."""
    return next(seat for seat in coverage.SEATS if seat.name == name)
