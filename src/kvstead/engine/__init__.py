"""The memory of a serving engine behind one facade, and a scheduler that drives it."""

from kvstead.engine.manager import KVCacheManager, Lease
from kvstead.engine.request import Request, Status
from kvstead.engine.runner import Runner
from kvstead.engine.scheduler import Scheduler
from kvstead.engine.stats import MemoryStats
from kvstead.engine.step import Chunk, Outcome, Step

__all__ = [
    "Chunk",
    "KVCacheManager",
    "Lease",
    "MemoryStats",
    "Outcome",
    "Request",
    "Runner",
    "Scheduler",
    "Status",
    "Step",
]
