"""One byte buffer for pools of different entry sizes: spans, the chain that moves them, and virtual pages.

Virtual pages come from a `kvstead.pages.FreeList`, one for all pools whose pages live and die together: it hands out
ids from 1 upward in the order wanted, checks what comes back, and parks ids with the free group. An id space of its own
would say the same again. Ask `PoolChain.fits` first and take ids then; a take that fits cannot fail.
"""

from typing import TypeAlias

from kvstead.arena.accounting import ArenaBytes
from kvstead.arena.arrangement import Arrangement
from kvstead.arena.chain import PoolChain
from kvstead.arena.page_map import PageMap
from kvstead.arena.shared_bytes import SharedBytes, SharedPool
from kvstead.arena.span import Extent, Span
from kvstead.arena.sub_pool import PoolBytes, SubPool

Chain: TypeAlias = PoolChain | SharedBytes  # pools that share bytes: in an arena, where pages move, or only counted

__all__ = [
    "ArenaBytes",
    "Arrangement",
    "Chain",
    "Extent",
    "PageMap",
    "PoolBytes",
    "PoolChain",
    "SharedBytes",
    "SharedPool",
    "Span",
    "SubPool",
]
