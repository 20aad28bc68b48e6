"""SGLang's allocator of pages."""

from __future__ import annotations

import os
from typing import Any

import torch

from kvstead.allocators import PagedAllocator
from kvstead.integrations.sglang import leaves
from kvstead.integrations.sglang.allocator.core import OnePoolAllocator


class PagedTokenToKVPoolAllocator(OnePoolAllocator):
    """Slots in pages; freed pages are reused first. Arguments as for `BaseTokenToKVPoolAllocator`.

    `debug_mode` (at first what SGLANG_DEBUG_MEMORY_POOL says) changes nothing: what it turns on is checked always.
    """

    def __init__(
        self, size: int, page_size: int, dtype: torch.dtype, device: str, kvcache: Any, need_sort: bool
    ) -> None:
        super().__init__(size, page_size, dtype, device, kvcache, need_sort)
        self.debug_mode = os.environ.get("SGLANG_DEBUG_MEMORY_POOL", "").lower() in {"1", "true"}

    def _new_core(self) -> PagedAllocator:
        return leaves.paged_pool(self.size, self.page_size, self.device, self.need_sort)
