"""SGLang's allocator of pages of one token."""

from __future__ import annotations

from typing import Any

import torch

from kvstead.integrations.sglang import leaves
from kvstead.integrations.sglang.allocator.core import OnePoolAllocator


class TokenToKVPoolAllocator(OnePoolAllocator):
    """Slots one by one; freed slots queue behind all others. Arguments as for `BaseTokenToKVPoolAllocator`."""

    def __init__(self, size: int, dtype: torch.dtype, device: str, kvcache: Any, need_sort: bool) -> None:
        super().__init__(size, 1, dtype, device, kvcache, need_sort)

    def _new_core(self) -> leaves.OnePool:
        return leaves.token_pool(self.size, self.device, self.need_sort)
