"""The memory of a serving engine behind one facade, and a scheduler that drives it."""

from kvstead.engine.lease import Lease, Peek
from kvstead.engine.manager import KVCacheManager
from kvstead.engine.request import Request, Status
from kvstead.engine.runner import Runner
from kvstead.engine.scheduler import Scheduler
from kvstead.engine.stats import MemoryStats, SideStats
from kvstead.engine.step import Chunk, Outcome, Step

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
