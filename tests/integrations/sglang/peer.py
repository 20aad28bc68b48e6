"""SGLang 0.5.23 in this process, as the benchmarks import it: its host paths, and nothing that needs a GPU."""

import importlib
import sys
import warnings

from paths import ROOT

sys.path.append(str(ROOT / "benchmarks"))
with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    importlib.import_module("side_sglang")  # makes SGLang importable without a GPU
    from sglang.srt.hardware_backend.npu.allocator_npu import NPUPagedTokenToKVPoolAllocator
    from sglang.srt.mem_cache.allocator.base import BaseTokenToKVPoolAllocator
    from sglang.srt.mem_cache.allocator.paged import PagedTokenToKVPoolAllocator
    from sglang.srt.mem_cache.allocator.swa import PureSWATokenToKVPoolAllocator, SWATokenToKVPoolAllocator
    from sglang.srt.mem_cache.allocator.token import TokenToKVPoolAllocator
    from sglang.srt.mem_cache.base_swa_memory_pool import BaseSWAKVPool

from drop_in import Storage

BaseSWAKVPool.register(Storage)

__all__ = [
    "BaseTokenToKVPoolAllocator",
    "NPUPagedTokenToKVPoolAllocator",
    "PagedTokenToKVPoolAllocator",
    "PureSWATokenToKVPoolAllocator",
    "SWATokenToKVPoolAllocator",
    "TokenToKVPoolAllocator",
]
