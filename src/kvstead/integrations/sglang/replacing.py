"""Replaces SGLang's classes by kvstead's in this process.

module.Class              is replaced by SGLang's own hook, also under the names that other modules have imported
a subclass, old or new    keeps SGLang's class as its base, or gets ours where it is known to use only public
attributes: the same whether it is made before or after
isinstance(x, Class)      is true for both
"""

from __future__ import annotations

import logging
import sys
from abc import ABCMeta
from collections.abc import Iterable, Mapping
from types import ModuleType
from typing import Any

from kvstead.integrations.sglang.coverage import KEPT, REBASED, SEATS, UNIFIED, Coverage, Finding, examine

_SCHEDULER = "sglang.srt.managers.scheduler"

_log = logging.getLogger("kvstead.sglang")


def replace_classes(*, strict: bool = False) -> Coverage:
    """Replace what can be replaced, and log in one line what was replaced, what was not and why.

    Returns what was found about each class. A class that cannot be replaced makes the line a warning. strict: raise
    `SystemExit` for it instead, with nothing replaced.
    """
    coverage = examine()
    if _has_host_tier():
        coverage = coverage.without_family(UNIFIED, "HiCache is on, which reserves places in a unified buffer itself")
    if strict and coverage.faults:
        raise SystemExit(f"kvstead: SGLang {coverage.version}{_reasons(coverage.faults)}. Set KVSTEAD_SGLANG=1 or off.")
    replaced = [finding for finding in coverage.findings if not finding.fault]
    ours = {finding.theirs: finding.ours for finding in replaced if finding.theirs and finding.ours}
    bases = _settle_bases(ours)
    _put_in_place(ours)
    _report_in_server_info(coverage)
    _log.log(
        logging.WARNING if coverage.faults else logging.INFO,
        "kvstead replaced %s of SGLang %s%s%s. Set KVSTEAD_SGLANG=off for SGLang's own.",
        ", ".join(finding.seat.name for finding in replaced) or "nothing",
        coverage.version,
        _reasons(coverage.faults),
        "".join(f"; {line}" for line in bases),
    )
    return coverage


def _report_in_server_info(coverage: Coverage) -> None:
    """Add what was replaced to the state that a scheduler answers `/server_info` with, under "kvstead"."""
    if _SCHEDULER not in sys.modules:
        return
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    facts = {
        "replaced": [finding.seat.name for finding in coverage.findings if not finding.fault],
        "not_replaced": {finding.seat.name: finding.fault for finding in coverage.faults},
    }

    def add(answer: Any, *_: Any, **__: Any) -> None:
        answer.internal_state["kvstead"] = facts

    HookRegistry.register(f"{_SCHEDULER}.Scheduler.get_internal_state", add, HookType.AFTER)
    HookRegistry.apply_hooks()


def _has_host_tier() -> bool:
    """Whether this engine keeps a second copy of its cache on the host; False before SGLang has its settings."""
    from sglang.srt.runtime_context import get_memory

    try:
        return bool(get_memory().enable_hierarchical_cache)
    except ValueError:
        return False


def _put_in_place(ours: Mapping[type, type]) -> None:
    """Let every name of a module that stands for SGLang's class stand for ours; instances of either pass for both."""
    for theirs, own in ours.items():
        pairs: tuple[tuple[Any, Any], ...] = ((own, theirs), (theirs, own))
        for first, second in pairs:
            if isinstance(first, ABCMeta) and not issubclass(first, second):
                first.register(second)
        _redirect(theirs, own)
    by_id = {id(theirs): own for theirs, own in ours.items()}  # other objects of modules need not be hashable
    for module in [module for module in list(sys.modules.values()) if isinstance(module, ModuleType)]:
        names = vars(module)
        for name in [name for name, value in list(names.items()) if id(value) in by_id]:
            names[name] = by_id[id(names[name])]


def _redirect(theirs: Any, own: type) -> None:
    """Let SGLang's class itself make ours. Its subclasses make their own."""
    allocate = object.__new__

    def make(cls: type, *args: Any, **kwargs: Any) -> Any:
        return own(*args, **kwargs) if cls is theirs else allocate(cls)

    theirs.__new__ = staticmethod(make)


def _settle_bases(ours: Mapping[type, type]) -> list[str]:
    """Settle which base subclasses have, those that exist and those to come: what happened to each, in words."""
    theirs = {own: their for their, own in ours.items()}
    for own in theirs:
        _keep_base_of_later_subclasses(own, theirs)
    existing: dict[type, None] = {}  # in order, each once
    for base in ours:
        existing.update(dict.fromkeys(type.__subclasses__(base)))
    seats = {seat.theirs for seat in SEATS}
    lines = []
    for subclass in [subclass for subclass in existing if _path(subclass) not in seats]:
        path = _path(subclass)
        why = _rebase(subclass, ours) if path in REBASED else KEPT.get(path, "it may use private attributes")
        lines.append(f"{subclass.__name__} " + (f"keeps SGLang's base: {why}" if why else "has the new base"))
    return lines


def _keep_base_of_later_subclasses(own: Any, theirs: Mapping[type, type]) -> None:
    """Have a subclass of ours that somebody else makes derive from SGLang's class, as if it had been made before."""

    def settle(cls: type[Any], /, **settings: Any) -> None:
        super(own, cls).__init_subclass__(**settings)
        if not cls.__module__.startswith("kvstead.") and _path(cls) not in REBASED:
            _rebase(cls, theirs)

    own.__init_subclass__ = classmethod(settle)


def _rebase(subclass: type, bases: Mapping[type, type]) -> str:
    """Exchange the bases that are named; if that is not possible, return why."""
    try:
        subclass.__bases__ = tuple(bases.get(base, base) for base in subclass.__bases__)
    except TypeError as error:
        return str(error)
    return ""


def _path(cls: type) -> str:
    return f"{cls.__module__}.{cls.__qualname__}"


def _reasons(faults: Iterable[Finding]) -> str:
    return "".join(f"; not {finding.seat.name}: {finding.fault}" for finding in faults)
