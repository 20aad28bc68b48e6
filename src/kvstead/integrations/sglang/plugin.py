"""SGLang's plugin: puts kvstead's classes in the place of SGLang's, in every process that SGLang starts.

SGLang calls `register` before it starts an engine, whatever it has imported by then.

    module.Class              by SGLang's own hook, which also finds the names that others have imported
    subclass.__bases__        here: where a class of SGLang's uses nothing but what is public in its base
    isinstance(x, Class)      of a subclass that keeps SGLang's base: still true, for ours take SGLang's for their own

KVSTEAD_SGLANG says what to do: `1` (or nothing) replaces what can be replaced, `strict` ends the process unless all of
it can be, `off` leaves SGLang alone.
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
    """Replace SGLang's classes, as KVSTEAD_SGLANG says, and tell the log once what was replaced, what not and why.

    Raises `ValueError` for another value, which SGLang logs, and `SystemExit` under `strict`: SGLang would survive any
    other exception of a plugin and go on without it.
    """
    mode = os.environ.get(SWITCH, "1").lower()
    if mode not in _MODES:
        raise ValueError(f"{SWITCH} is {mode!r}. Use one of {', '.join(_MODES)}, or leave it out.")
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
    """Give subclasses that exist already their new base, where they can do with it; in words what became of each."""
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
    """Set the bases, or say why not."""
    path = _path(subclass)
    if path not in REBASED:
        return f"keeps SGLang's base: {KEPT.get(path, 'it is not known what it needs of it')}"
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
