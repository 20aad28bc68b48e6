"""Allocators of SGLang that stand on an allocator of kvstead: they pass on what they are told, and keep no books."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any, Protocol

import torch

from kvstead.errors import KVSteadError
from kvstead.integrations.sglang import leaves
from kvstead.integrations.sglang.allocator.base import BaseTokenToKVPoolAllocator, Segments


class Core(Protocol):
    """What an adapter needs of a kvstead allocator, wherever that keeps its books."""

    @property
    def num_pages(self) -> int:
        """Pages that can be handed out."""

    @property
    def free_group(self) -> list[Any] | None:
        """None, or what is parked."""

    def available_size(self) -> int:
        """Slots that can be allocated now."""

    def alloc(self, num_tokens: int, /) -> torch.Tensor | None:
        """Whole pages."""

    def alloc_extend(
        self, prefix_lens: torch.Tensor, seq_lens: torch.Tensor, last_locs: torch.Tensor, /
    ) -> torch.Tensor | None:
        """Rows that grow; lengths on the host."""

    def alloc_decode(self, seq_lens: torch.Tensor, last_locs: torch.Tensor, /) -> torch.Tensor | None:
        """Rows that grow by one; lengths on the host."""

    def free(self, slots: torch.Tensor, /) -> None:
        """Slots in any order."""

    def free_segment(self, slots: torch.Tensor, /, *, start_pos: int) -> None:
        """A stretch of a row."""

    def free_segments(self, pairs: Segments, /) -> None:
        """Several stretches."""

    def free_group_begin(self) -> None:
        """Frees wait from here on."""

    def free_group_end(self) -> None:
        """They take effect."""

    def clear(self) -> None:
        """Everything is free."""

    def audit(self) -> None:
        """Raise when the books do not balance."""


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
    def _new_core(self) -> Core:
        """A fresh allocator of the sizes asked for."""

    def _handed_out(self, slots: torch.Tensor | None) -> torch.Tensor | None:
        """What a caller gets for new slots of `core`, None when it was short."""
        return slots

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
        return self._handed_out(self.core.alloc(need_size))

    def alloc_extend(
        self,
        prefix_lens: torch.Tensor,
        prefix_lens_cpu: torch.Tensor,
        seq_lens: torch.Tensor,
        seq_lens_cpu: torch.Tensor,
        last_loc: torch.Tensor,
        extend_num_tokens: int,
        num_new_pages: int | None = None,
    ) -> torch.Tensor | None:
        """Grow rows from `prefix_lens` to `seq_lens` tokens: one slot a new token, row after row, or None when short.

        One entry a row in each tensor; the lengths on the host count. `extend_num_tokens` and `num_new_pages` follow
        from them and are not read. Raises as `alloc_extend` of `core`.
        """
        return self._handed_out(self.core.alloc_extend(prefix_lens_cpu, seq_lens_cpu, last_loc))

    def alloc_decode(
        self, seq_lens: torch.Tensor, seq_lens_cpu: torch.Tensor, last_loc: torch.Tensor
    ) -> torch.Tensor | None:
        """Grow each row by one token, which `seq_lens` count: one slot a row, or None when short."""
        return self._handed_out(self.core.alloc_decode(seq_lens_cpu, last_loc))

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
        except KVSteadError as error:
            return [str(error)]
        return []


class OnePoolAllocator(CoreAllocator):
    """A `CoreAllocator` of one pool, whose free pages can be listed."""

    core: leaves.OnePool

    @abstractmethod
    def _new_core(self) -> leaves.OnePool: ...

    @property
    def num_pages(self) -> int:
        """Pages that can be handed out."""
        return self.core.num_pages

    @num_pages.setter
    def num_pages(self, _number: int) -> None:
        """Nothing: it follows from `size`, which composites of SGLang's assign beside it before they clear."""

    def clear(self) -> None:
        """Every slot is free again, whoever held it; an open group is dropped. A new `size` counts from now on."""
        if self.size // self.page_size == self.core.num_pages:
            self.core.clear()
        else:
            self.core = self._new_core()

    @property
    def free_pages(self) -> torch.Tensor:  # type: ignore[override]  # as above
        """Ids of the free pages, in the order in which they will be handed out: int64[k], a copy. O(pages)."""
        return torch.as_tensor(self.core.free_pages(), device=self.device)

    @property
    def release_pages(self) -> torch.Tensor:  # type: ignore[override]  # as above
        """Free pages that wait to be sorted: there are none."""
        return torch.empty(0, dtype=torch.int64, device=self.device)

    def free_page_ids(self, page_ids: torch.Tensor) -> None:
        """Give back pages by id. Raises `DoubleFree` for an id named twice."""
        offsets = torch.arange(self.page_size, device=page_ids.device)
        self.core.free_segment((page_ids[:, None] * self.page_size + offsets).reshape(-1), start_pos=0)
