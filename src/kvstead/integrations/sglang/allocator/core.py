"""Allocators of SGLang that stand on an allocator of kvstead: they pass on what they are told, and keep no books."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

import torch

from kvstead.allocators import Allocator
from kvstead.errors import AuditError
from kvstead.integrations.sglang.allocator.base import BaseTokenToKVPoolAllocator, Segments


class CoreAllocator(BaseTokenToKVPoolAllocator):
    """A `BaseTokenToKVPoolAllocator` whose books are those of `core`, a kvstead allocator.

    A subclass says in `_new_core` which allocator that is, from sizes that it has set before this constructor runs. All
    wrong calls raise what `core` raises, with nothing changed. `free_group` is the group of `core`: None, or a list of
    `kvstead.pages.Release`.
    """

    def __init__(
        self, size: int, page_size: int, dtype: torch.dtype, device: str, kvcache: Any, need_sort: bool
    ) -> None:
        super().__init__(size, page_size, dtype, device, kvcache, need_sort)
        self.core = self._new_core()

    @abstractmethod
    def _new_core(self) -> Allocator:
        """A fresh allocator of the sizes asked for."""

    @property
    def free_group(self) -> list[Any] | None:  # type: ignore[override]  # a plain attribute there, here never written
        """None, or the releases parked since the group began."""
        return self.core.free_group

    @property
    def num_pages(self) -> int:  # type: ignore[override]  # as above
        """Pages that can be handed out."""
        return self.core.num_pages

    def available_size(self) -> int:
        """Slots that can be allocated now. What waits in an open group does not count."""
        return self.core.available_size()

    def clear(self) -> None:
        """Every slot is free again, whoever held it; an open group is dropped."""
        self.core.clear()

    def resize(self, config: Any) -> None:
        """Have `config.max_total_num_tokens` slots from now on, all of them free."""
        self.size = config.max_total_num_tokens
        self.core = self._new_core()

    def alloc(self, need_size: int) -> torch.Tensor | None:
        """`need_size` slots in whole pages, or None when there are not so many."""
        return self.core.alloc(need_size)

    def free(self, free_index: torch.Tensor) -> None:
        """Give back the pages that the slots lie in."""
        self.core.free(free_index)

    def free_segment(self, free_index: torch.Tensor, *, start_pos: int) -> None:
        """Give back `row[start_pos : start_pos + len(free_index)]`, whole pages at a time."""
        self.core.free_segment(free_index, start_pos=start_pos)

    def free_segments(self, segments: Segments) -> None:
        """Give back several stretches of one row, (slots, start_pos) each, all or none."""
        self.core.free_segments(segments)

    def free_group_begin(self) -> None:
        """From now on frees wait. Raises `FreeGroupError` when a group is open; what it holds stays."""
        self.core.free_group_begin()

    def free_group_end(self) -> None:
        """Give back all that waits. Without an open group nothing happens."""
        self.core.free_group_end()

    def merge_and_sort_free(self) -> None:
        """Nothing: what `need_sort` asks for is always sorted."""

    def get_cpu_copy(self, indices: torch.Tensor, mamba_indices: Any = None, req_pool_index: Any = None) -> Any:
        """A copy of entries on the host, made by the pool."""
        return self._kvcache.get_cpu_copy(indices, mamba_indices=mamba_indices, req_pool_index=req_pool_index)

    def load_cpu_copy(
        self, kv_cache_cpu: Any, indices: torch.Tensor, mamba_indices: Any = None, req_pool_index: Any = None
    ) -> Any:
        """Write such a copy back to `indices`."""
        return self._kvcache.load_cpu_copy(
            kv_cache_cpu, indices, mamba_indices=mamba_indices, req_pool_index=req_pool_index
        )

    def verify_byte_accounting(self) -> list[str]:
        """What the audit of `core` finds, in words; empty when nothing is wrong. O(pages of the pool)."""
        try:
            self.core.audit()
        except AuditError as error:
            return [str(error)]
        return []
