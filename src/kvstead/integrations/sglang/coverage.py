"""Which classes of SGLang kvstead replaces, and which of those in the installed version it can.

A class can be replaced if ours has all public members of SGLang's, save those in `differences`, and takes all arguments
that they take. Classes of one family use each other's private attributes, so all of a family are replaced or none.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from typing import NamedTuple

from kvstead.integrations.sglang.differences import ABSENT, INHERITED
from kvstead.integrations.sglang.surface import absent_members, changed_calls, inherited_members

COVERED_VERSIONS = ("0.5.23",)  # those in which the engine was run and all scripts were compared

_OURS = "kvstead.integrations.sglang."
UNIFIED = "unified"  # the family of classes over one buffer


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
    *_seats("mem_cache.radix_cache", "RadixCache", ours="engine_radix_cache"),
    *_seats("mem_cache.allocator.unified_sub_pool", "MultiEndedAllocator", family=UNIFIED),
    *_seats("mem_cache.allocator.unified_mamba", "UnifiedMambaTokenToKVPoolAllocator", family=UNIFIED),
    *_seats(
        "mem_cache.allocator.unified_hybrid_swa",
        "UnifiedSWAAllocatorBase",
        "UnifiedSWATokenToKVPoolAllocator",
        "UnifiedMambaSWATokenToKVPoolAllocator",
        family=UNIFIED,
    ),
    *_seats(
        "mem_cache.unified_memory_pool",
        "UnifiedKVPool",
        "MHASubPoolSpec",
        "MLASubPoolSpec",
        "MambaSubPoolSpec",
        family=UNIFIED,
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

    @property
    def left_out(self) -> Mapping[str, str]:
        """Public members of SGLang's class that ours does not have, each with the reason."""
        return ABSENT.get(self.seat.name, {})

    @property
    def inherited(self) -> Mapping[str, str]:
        """Members that SGLang's class defines itself and ours inherits, each with the reason."""
        return INHERITED.get(self.seat.name, {})


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

    def without_family(self, family: str, why: str) -> Coverage:
        """The same with a fault for each class of a family that has none."""
        findings = [
            replace(finding, fault=finding.fault or why) if finding.seat.family == family else finding
            for finding in self.findings
        ]
        return replace(self, findings=tuple(findings))


def installed_version() -> str | None:
    """The version of SGLang in this environment."""
    try:
        return version("sglang")
    except PackageNotFoundError:
        return None


def examine() -> Coverage:
    """Import SGLang's classes and ours, and compare what they offer."""
    installed = installed_version()
    if installed is None:
        return Coverage(None, ())
    stand_ins = {cls for seat in SEATS if isinstance(cls := _loaded(seat.ours), type)}
    found = [_examine(seat, stand_ins) for seat in SEATS]
    lacking = {finding.seat.family: finding.seat.name for finding in found if finding.fault and finding.seat.family}
    return Coverage(installed, tuple(_with_family(finding, lacking) for finding in found))


def _examine(seat: Seat, stand_ins: set[type]) -> Finding:
    theirs, ours = _loaded(seat.theirs), _loaded(seat.ours)
    if not isinstance(theirs, type) or not isinstance(ours, type):
        return Finding(seat, next(found for found in (theirs, ours) if isinstance(found, str)))
    calls = changed_calls(theirs, ours)
    finding = Finding(seat, "", theirs, ours)
    absent = [name for name in absent_members(theirs, ours) if name not in finding.left_out]
    inherited = [name for name in inherited_members(theirs, ours, stand_ins) if name not in finding.inherited]
    faults = [
        *(f"{name} does not take {', '.join(missing)}" for name, missing in calls.items()),
        *([f"it has no {', '.join(absent)}"] if absent else []),
        *([f"it inherits {', '.join(inherited)}, which SGLang's class defines itself"] if inherited else []),
    ]
    return replace(finding, fault="; ".join(faults))


def _loaded(path: str) -> type | str:
    """The class at a path, or why it cannot be imported, in one line."""
    module, _, name = path.rpartition(".")
    try:
        found: type = getattr(import_module(module), name)
    except Exception as error:  # noqa: BLE001 - a module may raise anything when it is imported
        return f"cannot be imported: {type(error).__name__}: {error}".splitlines()[0]
    return found


def _with_family(finding: Finding, lacking: Mapping[str, str]) -> Finding:
    if finding.fault or finding.seat.family not in lacking:
        return finding
    return replace(finding, fault=f"it is replaced only together with {lacking[finding.seat.family]}")
