"""A package called `sglang` with the modules, classes and hooks that kvstead's plugin looks for, and nothing else."""

from __future__ import annotations

import functools
import importlib
import pkgutil
import sys
from abc import ABC, ABCMeta
from enum import Enum
from types import ModuleType, SimpleNamespace

from kvstead.integrations.sglang import coverage, plugin


class HookType(Enum):
    """The kinds of hooks that the plugin registers."""

    AROUND = "around"
    AFTER = "after"


class HookRegistry:
    """Notes hooks on methods, and puts them in place, as SGLang does when a plugin has run."""

    def __init__(self):
        self.waiting = []

    def register(self, target, hook, hook_type):
        """Note a hook."""
        self.waiting.append((target, hook, hook_type))

    def apply_hooks(self):
        """Put those in place that are not yet."""
        while self.waiting:
            target, hook, hook_type = self.waiting.pop()
            owner, _, name = target.rpartition(".")
            owner = pkgutil.resolve_name(owner)
            setattr(owner, name, hooked(getattr(owner, name), hook, hook_type))


def hooked(original, hook, hook_type):
    """A method with a hook around or after it."""

    @functools.wraps(original)
    def call(*args, **kwargs):
        if hook_type is HookType.AROUND:
            return hook(original, *args, **kwargs)
        answer = original(*args, **kwargs)
        changed = hook(answer, *args, **kwargs)
        return answer if changed is None else changed

    return call


class Scheduler:
    """Holds a cache, and answers what state it is in."""

    def __init__(self, settings=None):
        self.settings = settings

    def get_internal_state(self):
        """The state that `/server_info` shows."""
        return SimpleNamespace(internal_state={"steps": 1})


class KVCacheEventRecorder(SimpleNamespace):
    """What records events; it keeps what it was made with."""


class BasePrefixCache:
    """The base of SGLang's caches."""


def install(monkeypatch, version="0.5.23"):
    """Make the package importable until the test is over; what its plugins and settings are."""
    registry = HookRegistry()
    memory = SimpleNamespace(enable_hierarchical_cache=False)
    module(monkeypatch, "sglang.srt.plugins.hook_registry", HookRegistry=registry, HookType=HookType)
    module(monkeypatch, "sglang.srt.mem_cache.base_prefix_cache", BasePrefixCache=BasePrefixCache)
    module(monkeypatch, "sglang.srt.mem_cache.events", KVCacheEventRecorder=KVCacheEventRecorder)
    module(monkeypatch, "sglang.srt.runtime_context", get_memory=lambda: memory)
    module(monkeypatch, "sglang.srt.managers.scheduler", Scheduler=type("Scheduler", (Scheduler,), {}))
    module(monkeypatch, "sglang.srt.model_executor.model_runner", ModelRunner=type("ModelRunner", (), {}))
    for seat in coverage.SEATS:
        home, _, name = seat.theirs.rpartition(".")
        ours = getattr(importlib.import_module(seat.ours.rpartition(".")[0]), name)
        namespace = {"__init__": ours.__init__, "__module__": home}
        bases = (ABC,) if isinstance(ours, ABCMeta) else (object,)
        module(monkeypatch, home, **{name: type(bases[0])(name, bases, namespace)})
    monkeypatch.setattr(coverage, "installed_version", lambda: version)
    backends = {}
    calls = {"get_radix_cache_factory": backends.get, "register_radix_cache_backend": backends.__setitem__}
    module(monkeypatch, "sglang.srt.mem_cache.registry", **calls)
    monkeypatch.setattr(plugin, "_begun", [])
    return SimpleNamespace(registry=registry, memory=memory, backends=backends)


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
