"""Which classes of SGLang kvstead replaces, and which of those in the installed version it can.

A class can be replaced if ours takes all arguments that SGLang's takes. Classes of one family use each other's private
attributes, so all of a family are replaced or none.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from typing import Any, NamedTuple

COVERED_VERSIONS = ("0.5.19", "0.5.23")

_OURS = "kvstead.integrations.sglang."
_UNIFIED = "unified"
_LEFT_OUT = {"0.5.19": _UNIFIED}  # a family whose memory is laid out differently in that version
_VARIADIC = {inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD}


class Seat(NamedTuple):
    """A class of SGLang's, and ours that replaces it. family: the classes that are replaced together, "" for none."""

    theirs: str
    ours: str
    family: str = ""

    @property
    def name(self) -> str:
        """The name of the class without its module."""
        return self.theirs.rpartition(".")[2]


def _seats(module: str, *names: str, ours: str = "", family: str = "") -> Iterator[Seat]:
    for name in names:
        yield Seat(f"sglang.srt.{module}.{name}", f"{_OURS}{ours or module.removeprefix('mem_cache.')}.{name}", family)


SEATS: tuple[Seat, ...] = (
    *_seats("mem_cache.allocator.base", "BaseTokenToKVPoolAllocator"),
    *_seats("mem_cache.allocator.token", "TokenToKVPoolAllocator"),
    *_seats("mem_cache.allocator.paged", "PagedTokenToKVPoolAllocator"),
    *_seats("hardware_backend.npu.allocator_npu", "NPUPagedTokenToKVPoolAllocator", ours="allocator.npu"),
    *_seats("mem_cache.allocator.swa", "SWATokenToKVPoolAllocator", "PureSWATokenToKVPoolAllocator"),
    *_seats(
        "mem_cache.allocator.hisparse", "HiSparseTokenToKVPoolAllocator", "DeepSeekV4HiSparseTokenToKVPoolAllocator"
    ),
    *_seats("mem_cache.allocator.mamba", "MambaSlotAllocator"),
    *_seats("mem_cache.memory_pool", "ReqToTokenPool"),
    *_seats("mem_cache.radix_cache", "RadixCache"),
    *_seats("mem_cache.allocator.unified_sub_pool", "MultiEndedAllocator", family=_UNIFIED),
    *_seats("mem_cache.allocator.unified_mamba", "UnifiedMambaTokenToKVPoolAllocator", family=_UNIFIED),
    *_seats(
        "mem_cache.allocator.unified_hybrid_swa",
        "UnifiedSWAAllocatorBase",
        "UnifiedSWATokenToKVPoolAllocator",
        "UnifiedMambaSWATokenToKVPoolAllocator",
        family=_UNIFIED,
    ),
    *_seats(
        "mem_cache.unified_memory_pool",
        "UnifiedKVPool",
        "MHASubPoolSpec",
        "MLASubPoolSpec",
        "MambaSubPoolSpec",
        family=_UNIFIED,
    ),
)

# Classes of SGLang's that derive from these and stay as they are, and why.
KEPT: Mapping[str, str] = {
    "sglang.srt.mem_cache.allocator.page_interleave.PageInterleavePoolAllocator": "has its own free lists, by shard",
    "sglang.srt.mem_cache.allocator.unified_sub_pool.FloatMultiEndedAllocator": "is never made: kvstead's arena "
    "handles pools in the middle itself",
    "sglang.srt.mem_cache.memory_pool.HybridReqToTokenPool": "a subclass writes to the list of free rows directly",
    "sglang.srt.mem_cache.pure_swa_radix_cache.PureSWARadixCache": "uses private attributes of its base",
    "sglang.srt.mem_cache.storage.flexkv.flexkv_radix_cache.FlexKVRadixCache": "uses private attributes of its base",
}

# Classes of SGLang's that use only public attributes of their base, and so get ours as their base.
REBASED = frozenset(
    {
        "sglang.srt.hardware_backend.mlx.kv_cache.auxiliary_state.MlxAuxiliaryStateReqToTokenPool",
        "sglang.srt.hardware_backend.npu.dsv4.dsv4_allocator.DSV4NPUTokenToKVPoolAllocator",
    }
)


@dataclass(frozen=True, slots=True)
class Finding:
    """Whether a class of SGLang's can be replaced. fault: why it cannot, "" if it can."""

    seat: Seat
    fault: str = ""
    theirs: type | None = None
    ours: type | None = None


@dataclass(frozen=True, slots=True)
class Coverage:
    """All findings about one version of SGLang. version: None where SGLang is not installed."""

    version: str | None
    findings: tuple[Finding, ...]

    @property
    def is_covered(self) -> bool:
        """Whether kvstead was tested with this version."""
        return self.version in COVERED_VERSIONS

    @property
    def faults(self) -> tuple[Finding, ...]:
        """Findings about classes that cannot be replaced."""
        return tuple(finding for finding in self.findings if finding.fault)


def installed_version() -> str | None:
    """The version of SGLang in this environment."""
    try:
        return version("sglang")
    except PackageNotFoundError:
        return None


def examine() -> Coverage:
    """Import SGLang's classes and ours, and compare the arguments that they take."""
    installed = installed_version()
    if installed is None:
        return Coverage(None, ())
    found = [_examine(seat) for seat in SEATS if seat.family != _LEFT_OUT.get(installed)]
    lacking = {finding.seat.family: finding.seat.name for finding in found if finding.fault and finding.seat.family}
    return Coverage(installed, tuple(_with_family(finding, lacking) for finding in found))


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


def _examine(seat: Seat) -> Finding:
    try:
        theirs, ours = _load(seat.theirs), _load(seat.ours)
    except Exception as error:  # noqa: BLE001 - a module may raise anything when it is imported
        return Finding(seat, f"cannot be imported: {type(error).__name__}: {error}".splitlines()[0])
    methods = ["__init__", *(name for name in vars(theirs) if not name.startswith("_") and hasattr(ours, name))]
    for name in methods:
        method, own = getattr(theirs, name), getattr(ours, name)
        if inspect.isroutine(method) and inspect.isroutine(own) and (missing := missing_parameters(method, own)):
            return Finding(seat, f"{name} does not take {', '.join(missing)}", theirs, ours)
    return Finding(seat, "", theirs, ours)


def _load(path: str) -> type:
    module, _, name = path.rpartition(".")
    found: type = getattr(import_module(module), name)
    return found


def _with_family(finding: Finding, lacking: Mapping[str, str]) -> Finding:
    if finding.fault or finding.seat.family not in lacking:
        return finding
    return replace(finding, fault=f"it is replaced only together with {lacking[finding.seat.family]}")
