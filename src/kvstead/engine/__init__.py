"""The memory of a serving engine behind one facade, and a scheduler that drives it."""

from kvstead.engine.manager import KVCacheManager
from kvstead.engine.request import Request, Status
from kvstead.engine.row_prefixes import Lease, Peek
from kvstead.engine.scheduler import Scheduler
from kvstead.engine.stats import MemoryStats, SideStats
from kvstead.engine.step import Chunk, Outcome, Runner, Step

__all__ = [
    "Chunk",
    "KVCacheManager",
    "Lease",
    "MemoryStats",
    "Outcome",
    "Peek",
    "Request",
    "Runner",
    "Scheduler",
    "SideStats",
    "Status",
    "Step",
]
