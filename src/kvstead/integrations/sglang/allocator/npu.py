"""SGLang's allocator of pages for Ascend devices, which index by int32."""

from __future__ import annotations

import torch

from kvstead.integrations.sglang.allocator.paged import PagedTokenToKVPoolAllocator


class NPUPagedTokenToKVPoolAllocator(PagedTokenToKVPoolAllocator):
    """A `PagedTokenToKVPoolAllocator` that hands out int32 slots."""

    def _handed_out(self, slots: torch.Tensor | None) -> torch.Tensor | None:
        return None if slots is None else slots.int()
