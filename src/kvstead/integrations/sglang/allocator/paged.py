"""SGLang's allocator of pages."""

from __future__ import annotations

from typing import Any

import torch

from kvstead.integrations.sglang import leaves
from kvstead.integrations.sglang.allocator.core import OnePoolAllocator


class PagedTokenToKVPoolAllocator(OnePoolAllocator):
    """Slots in pages; freed pages are reused first. Arguments as for `BaseTokenToKVPoolAllocator`.

    `debug_mode` is there for who reads it: whether SGLANG_DEBUG_MEMORY_POOL asked for checks when the pool was made.
    """

    def __init__(
        self, size: int, page_size: int, dtype: torch.dtype, device: str, kvcache: Any, need_sort: bool
    ) -> None:
        super().__init__(size, page_size, dtype, device, kvcache, need_sort)
        self.debug_mode = leaves.is_checked()

    def _new_core(self) -> leaves.OnePool:
        return leaves.paged_pool(self.size, self.page_size, self.device, self.need_sort)
