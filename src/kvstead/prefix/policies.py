"""Which evictable node goes first: each policy ranks a node, and the lowest rank is evicted.

    policy      goes first                                  rank
    lru         the longest unused                          access
    mru         the most recently used                      -access
    fifo        the oldest                                  created
    filo        the youngest                                -created
    lfu         the least matched, then the longest unused  hits, access
    slru        never matched, then the longest unused      hits > 0, access
    priority    the lowest priority, then longest unused    priority, access

Times are readings of a logical clock that ticks once per operation on the tree. One operation touches one path and no
two evictable nodes lie on one path, so ranks of evictable nodes never tie.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Protocol, TypeAlias

from kvstead.errors import InvalidSize


class Usage(Protocol):
    """When and how often something cached was used."""

    access: int
    created: int
    hits: int
    priority: int


Rank: TypeAlias = tuple[int, ...]
Policy: TypeAlias = Callable[[Usage], Rank]


def _lru(usage: Usage) -> Rank:
    return usage.access, 0


def _mru(usage: Usage) -> Rank:
    return -usage.access, 0


def _fifo(usage: Usage) -> Rank:
    return usage.created, 0


def _filo(usage: Usage) -> Rank:
    return -usage.created, 0


def _lfu(usage: Usage) -> Rank:
    return usage.hits, usage.access


def _slru(usage: Usage) -> Rank:
    return min(usage.hits, 1), usage.access


def _priority(usage: Usage) -> Rank:
    return usage.priority, usage.access


POLICIES: Mapping[str, Policy] = MappingProxyType(
    {"lru": _lru, "lfu": _lfu, "fifo": _fifo, "mru": _mru, "filo": _filo, "slru": _slru, "priority": _priority}
)


def policy_named(name: str) -> Policy:
    """The policy of that name. Raises `InvalidSize`, listing the names, when there is none."""
    if name not in POLICIES:
        raise InvalidSize(f"there is no eviction policy {name!r}. Choose one of {', '.join(POLICIES)}.")
    return POLICIES[name]
