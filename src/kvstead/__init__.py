"""kvstead: the KV-cache memory manager for LLM inference that belongs to no engine.

Names of the layers are resolved when first used, so that importing the package costs nothing.
"""

from importlib import import_module
from typing import Any

_HOMES = {
    "ModelLayout": "kvstead.model",
    "FreeList": "kvstead.pages",
    "PageTable": "kvstead.pages",
    "PagedAllocator": "kvstead.allocators",
    "DevicePagedAllocator": "kvstead.allocators",
    "DeviceSWAAllocator": "kvstead.allocators",
    "DeviceHiSparseAllocator": "kvstead.allocators",
    "DeviceTokenAllocator": "kvstead.allocators",
    "PureSWAAllocator": "kvstead.allocators",
    "SWAAllocator": "kvstead.allocators",
    "TokenAllocator": "kvstead.allocators",
    "HiSparseAllocator": "kvstead.allocators",
    "CompressedHiSparseAllocator": "kvstead.allocators",
    "MultiEndedAllocator": "kvstead.allocators",
    "StateAllocator": "kvstead.allocators",
    "UnifiedSWAAllocator": "kvstead.allocators",
    "UnifiedMambaAllocator": "kvstead.allocators",
    "UnifiedMambaSWAAllocator": "kvstead.allocators",
    "RequestTable": "kvstead.pools",
    "Namespace": "kvstead.prefix",
    "PrefixTree": "kvstead.prefix",
    "KVCacheManager": "kvstead.engine",
    "Request": "kvstead.engine",
    "Scheduler": "kvstead.engine",
    "LLM": "kvstead.integrations.transformers",
    "SamplingParams": "kvstead.integrations.transformers",
}

__all__ = [name for name, home in _HOMES.items() if ".integrations." not in home]  # `import *` needs no extra


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'kvstead' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOMES])
