"""kvstead: the KV-cache memory manager for LLM inference that belongs to no engine.

Importing the package loads no layer: a name is imported from its layer when it is used for the first time. The imports
under `TYPE_CHECKING` tell type checkers what the table `_LAYERS` tells Python; a test holds that both name the same.
"""

import importlib
import importlib.util
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kvstead import errors as errors
    from kvstead.allocators import CompressedHiSparseAllocator as CompressedHiSparseAllocator
    from kvstead.allocators import DeviceHiSparseAllocator as DeviceHiSparseAllocator
    from kvstead.allocators import DevicePagedAllocator as DevicePagedAllocator
    from kvstead.allocators import DeviceSplitSWAAllocator as DeviceSplitSWAAllocator
    from kvstead.allocators import DeviceSWAAllocator as DeviceSWAAllocator
    from kvstead.allocators import DeviceTokenAllocator as DeviceTokenAllocator
    from kvstead.allocators import HiSparseAllocator as HiSparseAllocator
    from kvstead.allocators import MultiEndedAllocator as MultiEndedAllocator
    from kvstead.allocators import PagedAllocator as PagedAllocator
    from kvstead.allocators import PureSWAAllocator as PureSWAAllocator
    from kvstead.allocators import SplitSWAAllocator as SplitSWAAllocator
    from kvstead.allocators import StateAllocator as StateAllocator
    from kvstead.allocators import SWAAllocator as SWAAllocator
    from kvstead.allocators import TokenAllocator as TokenAllocator
    from kvstead.allocators import UnifiedMambaAllocator as UnifiedMambaAllocator
    from kvstead.allocators import UnifiedMambaSWAAllocator as UnifiedMambaSWAAllocator
    from kvstead.allocators import UnifiedSWAAllocator as UnifiedSWAAllocator
    from kvstead.arena import PoolChain as PoolChain
    from kvstead.arena import SharedBytes as SharedBytes
    from kvstead.arena import SharedPool as SharedPool
    from kvstead.engine import Chunk as Chunk
    from kvstead.engine import KVCacheManager as KVCacheManager
    from kvstead.engine import Lease as Lease
    from kvstead.engine import MemoryStats as MemoryStats
    from kvstead.engine import Outcome as Outcome
    from kvstead.engine import Request as Request
    from kvstead.engine import Runner as Runner
    from kvstead.engine import Scheduler as Scheduler
    from kvstead.engine import Status as Status
    from kvstead.engine import Step as Step
    from kvstead.errors import AuditError as AuditError
    from kvstead.errors import CheckpointError as CheckpointError
    from kvstead.errors import DoubleFree as DoubleFree
    from kvstead.errors import ForeignPage as ForeignPage
    from kvstead.errors import FreeGroupError as FreeGroupError
    from kvstead.errors import InvalidSize as InvalidSize
    from kvstead.errors import KVSteadError as KVSteadError
    from kvstead.errors import LayoutError as LayoutError
    from kvstead.errors import LockUnderflow as LockUnderflow
    from kvstead.errors import MisalignedSegment as MisalignedSegment
    from kvstead.errors import MisalignedSize as MisalignedSize
    from kvstead.errors import OpenGroup as OpenGroup
    from kvstead.errors import RequestError as RequestError
    from kvstead.errors import RowOverflow as RowOverflow
    from kvstead.errors import StaleRow as StaleRow
    from kvstead.errors import TraceError as TraceError
    from kvstead.errors import UseAfterFree as UseAfterFree
    from kvstead.errors import WindowTaken as WindowTaken
    from kvstead.integrations.transformers import LLM as LLM
    from kvstead.integrations.transformers import Completion as Completion
    from kvstead.integrations.transformers import FinishReason as FinishReason
    from kvstead.integrations.transformers import Piece as Piece
    from kvstead.integrations.transformers import SamplingParams as SamplingParams
    from kvstead.integrations.transformers import TransformersRunner as TransformersRunner
    from kvstead.model import CacheKind as CacheKind
    from kvstead.model import ComputeProfile as ComputeProfile
    from kvstead.model import LayerCache as LayerCache
    from kvstead.model import LayoutOptions as LayoutOptions
    from kvstead.model import MemorySplit as MemorySplit
    from kvstead.model import ModelLayout as ModelLayout
    from kvstead.model import PaddedPages as PaddedPages
    from kvstead.model import TokenCache as TokenCache
    from kvstead.model import Window as Window
    from kvstead.pages import FreeList as FreeList
    from kvstead.pages import PageTable as PageTable
    from kvstead.pools import ArenaKVPool as ArenaKVPool
    from kvstead.pools import ArenaStatePool as ArenaStatePool
    from kvstead.pools import ByteArena as ByteArena
    from kvstead.pools import EntrySpec as EntrySpec
    from kvstead.pools import KVPool as KVPool
    from kvstead.pools import Place as Place
    from kvstead.pools import RequestTable as RequestTable
    from kvstead.pools import StatePool as StatePool
    from kvstead.prefix import Adapter as Adapter
    from kvstead.prefix import Namespace as Namespace
    from kvstead.prefix import PrefixTree as PrefixTree
    from kvstead.prefix import TokenKey as TokenKey
    from kvstead.report.replays import ReplayedTrace as ReplayedTrace
    from kvstead.report.replays import replay_trace as replay_trace

_LAYERS = {
    "kvstead.errors": """
        AuditError CheckpointError DoubleFree ForeignPage FreeGroupError InvalidSize KVSteadError LayoutError
        LockUnderflow MisalignedSegment MisalignedSize OpenGroup RequestError RowOverflow StaleRow TraceError
        UseAfterFree WindowTaken
    """,
    "kvstead.model": """
        CacheKind ComputeProfile LayerCache LayoutOptions MemorySplit ModelLayout PaddedPages TokenCache Window
    """,
    "kvstead.pages": "FreeList PageTable",
    "kvstead.pools": "ArenaKVPool ArenaStatePool ByteArena EntrySpec KVPool Place RequestTable StatePool",
    "kvstead.arena": "PoolChain SharedBytes SharedPool",
    "kvstead.allocators": """
        CompressedHiSparseAllocator DeviceHiSparseAllocator DevicePagedAllocator DeviceSWAAllocator
        DeviceSplitSWAAllocator DeviceTokenAllocator HiSparseAllocator MultiEndedAllocator PagedAllocator
        PureSWAAllocator SWAAllocator SplitSWAAllocator StateAllocator TokenAllocator UnifiedMambaAllocator
        UnifiedMambaSWAAllocator UnifiedSWAAllocator
    """,
    "kvstead.prefix": "Adapter Namespace PrefixTree TokenKey",
    "kvstead.engine": "Chunk KVCacheManager Lease MemoryStats Outcome Request Runner Scheduler Status Step",
    "kvstead.report.replays": "ReplayedTrace replay_trace",
    "kvstead.integrations.transformers": "Completion FinishReason LLM Piece SamplingParams TransformersRunner",
}
_HOMES = {name: layer for layer, names in _LAYERS.items() for name in names.split()}

__all__ = [name for name, layer in _HOMES.items() if ".integrations." not in layer]  # `import *` needs no extra


if not TYPE_CHECKING:  # a type checker that saw it would accept any name

    def __getattr__(name: str) -> object:
        if name == "__version__":
            return importlib.import_module("importlib.metadata").version("kvstead")
        if name == "errors":
            return importlib.import_module("kvstead.errors")
        if name not in _HOMES:
            raise AttributeError(f"module 'kvstead' has no attribute {name!r}")
        if not _is_installed(_HOMES[name]):
            raise ImportError(f"kvstead.{name} needs transformers. Install it with: pip install 'kvstead[hf]'")
        return getattr(importlib.import_module(_HOMES[name]), name)


def _is_installed(layer: str) -> bool:
    """Whether a layer's packages are there: all are, but those of the extra `hf`."""
    return ".integrations." not in layer or importlib.util.find_spec("transformers") is not None


def __dir__() -> list[str]:
    named = [name for name, layer in _HOMES.items() if _is_installed(layer)]
    hidden = {"TYPE_CHECKING", "importlib"}
    return sorted({*globals(), *named, "__version__", "errors"} - hidden)
