"""SGLang's plugin: replaces SGLang's classes by kvstead's, in every process that SGLang starts.

SGLang calls `register` before it starts an engine. By then it may have imported any of its modules.

    module.Class              is replaced by SGLang's own hook, also under the names that other modules have imported
    subclass.__bases__        is replaced here, where a class of SGLang's uses only public attributes of its base
    isinstance(x, Class)      stays true for a subclass that keeps SGLang's base: that is registered with our class

KVSTEAD_SGLANG says what to do: `1` (the default) replaces what can be replaced, `strict` ends the process unless
everything can be, `off` changes nothing.
"""

from __future__ import annotations

import logging
import os
from abc import ABCMeta
from collections.abc import Iterable

from kvstead.integrations.sglang.coverage import COVERED_VERSIONS, KEPT, REBASED, SEATS, Coverage, Finding, examine

SWITCH = "KVSTEAD_SGLANG"
_MODES = ("1", "strict", "off")

_log = logging.getLogger("kvstead.sglang")


def register() -> None:
    """Replace SGLang's classes as KVSTEAD_SGLANG says, and log in one line what was replaced, what was not and why.

    Raises `ValueError` for an unknown value, which SGLang logs, and `SystemExit` under `strict`: SGLang ignores any
    other exception of a plugin and goes on without it.
    """
    mode = os.environ.get(SWITCH, "1").lower()
    if mode not in _MODES:
        raise ValueError(f"{SWITCH} is {mode!r}. Use one of {', '.join(_MODES)}, or leave it unset.")
    if mode == "off":
        return
    coverage = examine()
    if mode == "strict" and (coverage.faults or not coverage.is_covered):
        raise SystemExit(f"kvstead: {_version_line(coverage)}{_reasons(coverage.faults)}. Set {SWITCH}=1 or off.")
    if not coverage.is_covered:
        _log.warning("%s Nothing was replaced.", _version_line(coverage))
        return
    replaced = [finding for finding in coverage.findings if not finding.fault]
    _hook(replaced)
    bases = _rebase(replaced)
    _log.info(
        "kvstead replaced %s%s%s. Set %s=off for SGLang's own.",
        ", ".join(finding.seat.name for finding in replaced) or "nothing",
        _reasons(coverage.faults),
        "".join(f"; {line}" for line in bases),
        SWITCH,
    )


def _hook(findings: Iterable[Finding]) -> None:
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    for finding in findings:
        HookRegistry.register(finding.seat.theirs, finding.ours, HookType.REPLACE)
        if isinstance(finding.ours, ABCMeta) and finding.theirs is not None:
            finding.ours.register(finding.theirs)


def _rebase(findings: Iterable[Finding]) -> list[str]:
    """Give existing subclasses their new base where that is possible: what happened to each, in words."""
    ours = {finding.theirs: finding.ours for finding in findings if finding.theirs and finding.ours}
    seats = {seat.theirs for seat in SEATS}
    existing: dict[type, None] = {}  # in order, each once
    for base in ours:
        existing.update(dict.fromkeys(type.__subclasses__(base)))
    lines = []
    for subclass in [subclass for subclass in existing if _path(subclass) not in seats]:
        why = _new_bases(subclass, tuple(ours.get(base, base) for base in subclass.__bases__))
        lines.append(f"{subclass.__name__} {why or 'has the new base'}")
    return lines


def _new_bases(subclass: type, bases: tuple[type, ...]) -> str:
    """Set the bases; if that is not possible, return why."""
    path = _path(subclass)
    if path not in REBASED:
        return f"keeps SGLang's base: {KEPT.get(path, 'kvstead does not know what it needs of it')}"
    try:
        subclass.__bases__ = bases
    except TypeError as error:
        return f"keeps SGLang's base: {error}"
    return ""


def _path(cls: type) -> str:
    return f"{cls.__module__}.{cls.__qualname__}"


def _version_line(coverage: Coverage) -> str:
    versions = " and ".join(COVERED_VERSIONS)
    state = "covered" if coverage.is_covered else f"not covered; those that are: {versions}"
    return f"SGLang {coverage.version} is {state}."


def _reasons(faults: Iterable[Finding]) -> str:
    return "".join(f"; not {finding.seat.name}: {finding.fault}" for finding in faults)
