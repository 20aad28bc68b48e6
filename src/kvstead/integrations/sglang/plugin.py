"""SGLang's plugin: has SGLang's classes replaced by kvstead's in every process that holds a cache.

SGLang calls `register` in each of its processes, before it has set up its log and, in most of them, for no cache at
all. So nothing is imported here: the classes are replaced when the first scheduler or model runner is made.

KVSTEAD_SGLANG says what to do: `1` (the default) replaces what can be replaced, `strict` ends the process unless
everything can be, `audit` keeps SGLang's classes and follows their calls, `off` changes nothing.
"""

from __future__ import annotations

import functools
import importlib.abc
import importlib.machinery
import importlib.util
import logging
import os
import sys
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

from kvstead.integrations.sglang import coverage, tree_backend

SWITCH = "KVSTEAD_SGLANG"
_MODES = ("1", "strict", "audit", "off")
_FIRST_MADE = ("sglang.srt.managers.scheduler.Scheduler", "sglang.srt.model_executor.model_runner.ModelRunner")

_REGISTRY = "sglang.srt.mem_cache.registry"

_log = logging.getLogger("kvstead.sglang")


def register() -> None:
    """Have the classes replaced before the first cache is made, as KVSTEAD_SGLANG says.

    Raises `ValueError` for an unknown value, which SGLang logs, and `SystemExit` under `strict` for a version that is
    not covered: SGLang ignores any other exception of a plugin and goes on without it.
    """
    mode = os.environ.get(SWITCH, "1").lower()
    if mode not in _MODES:
        raise ValueError(f"{SWITCH} is {mode!r}. Use one of {', '.join(_MODES)}, or leave it unset.")
    if mode == "off":
        return
    version = coverage.installed_version()
    if version not in coverage.COVERED_VERSIONS and mode == "strict":
        raise SystemExit(f"kvstead: {_refusal(version)} Set {SWITCH}=1 or off.")
    for path in _FIRST_MADE:
        _call_before_first(path, functools.partial(_begin, mode))
    if version in coverage.COVERED_VERSIONS:
        _call_when_imported(_REGISTRY, _offer_tree)


def _begin(mode: str) -> None:
    """Replace or follow the classes, now that the log is set up."""
    version = coverage.installed_version()
    if version not in coverage.COVERED_VERSIONS:
        _log.warning("%s Nothing was replaced.", _refusal(version))
        return
    from kvstead.integrations.sglang import auditing, replacing

    if mode == "audit":
        auditing.start()
    else:
        replacing.replace_classes(strict=mode == "strict")


def _offer_tree() -> None:
    """Let `--radix-cache-backend kvstead` name our tree."""
    from sglang.srt.mem_cache.registry import get_radix_cache_factory, register_radix_cache_backend

    if get_radix_cache_factory(tree_backend.NAME) is None:
        register_radix_cache_backend(tree_backend.NAME, tree_backend.make_tree)


def _refusal(version: str | None) -> str:
    return f"SGLang {version} is not covered; {' and '.join(coverage.COVERED_VERSIONS)} is."


def _call_before_first(path: str, action: Callable[[], None]) -> None:
    """Call `action` before the first instance of a class of SGLang's is made; once for all classes."""
    module = path.rpartition(".")[0]
    if module in sys.modules:
        _hook_constructor(path, action)
    else:
        _call_when_imported(module, functools.partial(_hook_late, path, action))


def _call_when_imported(module: str, action: Callable[[], None]) -> None:
    """Call `action` when a module of SGLang's has been imported: now, if it is."""
    if module in sys.modules:
        action()
    else:
        sys.meta_path.insert(0, _AfterImport(module, action))


def _hook_constructor(path: str, action: Callable[[], None]) -> None:
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    def construct(original: Callable[..., None], owner: object, *args: Any, **kwargs: Any) -> None:
        if not _begun:
            _begun.append(True)
            action()
        original(owner, *args, **kwargs)

    HookRegistry.register(f"{path}.__init__", construct, HookType.AROUND)


def _hook_late(path: str, action: Callable[[], None]) -> None:
    """Hook a class whose module has just been imported, after SGLang has put its hooks in place."""
    from sglang.srt.plugins.hook_registry import HookRegistry

    _hook_constructor(path, action)
    HookRegistry.apply_hooks()


_begun: list[bool] = []


class _AfterImport(importlib.abc.MetaPathFinder):
    """Calls `action` once, when a module has been imported by whoever finds it."""

    def __init__(self, module: str, action: Callable[[], None]) -> None:
        self._module = module
        self._action = action

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """Find the module by the other finders, and have its loader call the action."""
        if fullname != self._module:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(fullname)
        if spec is not None and spec.loader is not None:
            execute = spec.loader.exec_module

            def execute_and_act(module: ModuleType) -> None:
                execute(module)
                self._action()

            spec.loader.exec_module = execute_and_act  # type: ignore[method-assign]
        return spec
