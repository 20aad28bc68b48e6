"""SGLang's allocator of pages."""

from __future__ import annotations

from typing import Any

import torch

from kvstead.integrations.sglang.allocator import backends
from kvstead.integrations.sglang.allocator.base import BaseTokenToKVPoolAllocator
from kvstead.integrations.sglang.allocator.core_calls import CoreCalls, OnePoolCalls


class PagedTokenToKVPoolAllocator(OnePoolCalls, CoreCalls, BaseTokenToKVPoolAllocator):
    """Slots in pages; freed pages are reused first. Arguments as for `BaseTokenToKVPoolAllocator`.

    debug_mode: whether SGLANG_DEBUG_MEMORY_POOL asked for checks when the pool was made; only for others to read.
    """

    core: backends.OnePool

    def __init__(
        self, size: int, page_size: int, dtype: torch.dtype, device: str, kvcache: Any, need_sort: bool
    ) -> None:
        super().__init__(size, page_size, dtype, device, kvcache, need_sort)
        self.debug_mode = backends.is_checked()
        self.release_pages = torch.empty(0, dtype=torch.int64, device=device)  # nothing waits to be sorted
        self.core = self._new_core()

    def _new_core(self) -> backends.OnePool:
        return backends.paged_pool(self.size, self.page_size, self.device, self.need_sort)
