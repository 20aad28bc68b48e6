"""SGLang's allocator of pages of one token."""

from __future__ import annotations

from typing import Any

import torch

from kvstead.integrations.sglang.allocator import backends
from kvstead.integrations.sglang.allocator.base import BaseTokenToKVPoolAllocator
from kvstead.integrations.sglang.allocator.core_calls import CoreCalls, OnePoolCalls


class TokenToKVPoolAllocator(OnePoolCalls, CoreCalls, BaseTokenToKVPoolAllocator):
    """Slots one by one; freed slots queue behind all others. Arguments as for `BaseTokenToKVPoolAllocator`."""

    core: backends.OnePool

    def __init__(self, size: int, dtype: torch.dtype, device: str, kvcache: Any, need_sort: bool) -> None:
        super().__init__(size, 1, dtype, device, kvcache, need_sort)
        self.release_pages = torch.empty(0, dtype=torch.int64, device=device)  # nothing waits to be sorted
        self.core = self._new_core()

    def _new_core(self) -> backends.OnePool:
        return backends.token_pool(self.size, self.device, self.need_sort)
