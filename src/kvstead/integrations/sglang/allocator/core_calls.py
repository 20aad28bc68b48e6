"""The calls of SGLang's allocators, passed on to the kvstead allocator that keeps the pages: the core."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import torch

from kvstead.errors import KVSteadError
from kvstead.integrations.sglang.allocator.backends import Core, OnePool
from kvstead.integrations.sglang.allocator.base import Segments
from kvstead.integrations.sglang.allocator.slot_mapping import SlotMapping
from kvstead.integrations.sglang.attribute_of import AttributeOf


class CoreCalls(ABC):
    """The part of a `BaseTokenToKVPoolAllocator` that its `core` answers.

    A subclass makes one in its constructor. Wrong calls raise what the core raises, with nothing changed. `free_group`
    is the core's: None, or a list of `kvstead.pages.Release`. `mappings` are the tensors that say where slots lie on
    another side; they follow every call.
    """

    core: Core
    _kvcache: Any
    mappings: tuple[SlotMapping, ...] = ()

    free_group = AttributeOf[list[Any] | None]("core.free_group")
    num_pages = AttributeOf[int]("core.num_pages")

    def available_size(self) -> int:
        """Slots that can be allocated now. What waits in an open group does not count."""
        return self.core.available_size()

    def clear(self) -> None:
        """Make every slot free, also slots that are in use; an open group is dropped."""
        self.core.clear()
        for mapping in self.mappings:
            mapping.erase_all()

    def alloc(self, need_size: int) -> torch.Tensor | None:
        """Allocate `need_size` slots in whole pages; None when there are too few."""
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

        Each tensor has one entry a row. Only the lengths on the host are read; `extend_num_tokens` and `num_new_pages`
        follow from them. Raises as `alloc_extend` of the core.
        """
        return self._handed_out(self.core.alloc_extend(prefix_lens_cpu, seq_lens_cpu, last_loc))

    def alloc_decode(
        self, seq_lens: torch.Tensor, seq_lens_cpu: torch.Tensor, last_loc: torch.Tensor
    ) -> torch.Tensor | None:
        """Grow each row by one token, which `seq_lens` count: one slot a row, or None when short."""
        return self._handed_out(self.core.alloc_decode(seq_lens_cpu, last_loc))

    def free(self, free_index: torch.Tensor) -> None:
        """Free the pages that the slots lie in, with what they still have on other sides."""
        self.core.free(free_index)
        self._erase(free_index)

    def free_segment(self, free_index: torch.Tensor, *, start_pos: int) -> None:
        """Free `row[start_pos : start_pos + len(free_index)]`, whole pages at a time."""
        self.core.free_segment(free_index, start_pos=start_pos)
        self._erase(free_index)

    def free_segments(self, segments: Segments) -> None:
        """Free several stretches of one row, (slots, start_pos) each, all or none."""
        self.core.free_segments(segments := list(segments))
        for free_index, _ in segments:
            self._erase(free_index)

    def free_group_begin(self) -> None:
        """Let frees wait from now on. Raises `FreeGroupError` when a group is open; the open one is kept."""
        self.core.free_group_begin()

    def free_group_end(self) -> None:
        """Let all frees that wait take effect. Does nothing without an open group."""
        self.core.free_group_end()

    def merge_and_sort_free(self) -> None:
        """Do nothing: with `need_sort` free pages are always sorted."""

    def get_cpu_copy(self, indices: torch.Tensor, mamba_indices: Any = None, req_pool_index: Any = None) -> Any:
        """Copy entries to the host, by way of the pool."""
        return self._kvcache.get_cpu_copy(indices, mamba_indices=mamba_indices, req_pool_index=req_pool_index)

    def load_cpu_copy(
        self, kv_cache_cpu: Any, indices: torch.Tensor, mamba_indices: Any = None, req_pool_index: Any = None
    ) -> Any:
        """Write such a copy back to `indices`."""
        return self._kvcache.load_cpu_copy(
            kv_cache_cpu, indices, mamba_indices=mamba_indices, req_pool_index=req_pool_index
        )

    def verify_byte_accounting(self) -> list[str]:
        """Audit the core: what is wrong, in words; an empty list when nothing is. O(pages of the pool)."""
        try:
            self.core.audit()
        except KVSteadError as error:
            return [str(error)]
        return []

    def _handed_out(self, slots: torch.Tensor | None) -> torch.Tensor | None:
        """New slots of the core as callers get them; None when it was short."""
        if slots is not None:
            for mapping in self.mappings:
                mapping.write(slots)
        return slots

    def _erase(self, slots: torch.Tensor) -> None:
        for mapping in self.mappings:
            mapping.erase(slots)


class OnePoolCalls(ABC):
    """The calls of an allocator of one pool, whose free pages can be listed. It goes before `CoreCalls`.

    free_pages: ids of the free pages, in the order in which they will be handed out: int64[k], a copy. O(pages).
    """

    core: OnePool
    size: int
    page_size: int
    device: str

    free_pages = AttributeOf[torch.Tensor | None]("_free_pages")

    @abstractmethod
    def _new_core(self) -> OnePool:
        """A new core, of the size that the allocator has now."""

    @property
    def num_pages(self) -> int:
        """Pages that can be handed out."""
        return self.core.num_pages

    @num_pages.setter
    def num_pages(self, _number: int) -> None:
        """Ignore it: it follows from `size`. SGLang's composites assign both before they clear."""

    @property
    def _free_pages(self) -> torch.Tensor:
        return torch.as_tensor(self.core.free_pages(), device=self.device)

    def clear(self) -> None:
        """Make every slot free, also slots that are in use; an open group is dropped. A new `size` takes effect."""
        if self.size // self.page_size == self.core.num_pages:
            self.core.clear()
        else:
            self.core = self._new_core()

    def resize(self, config: Any) -> None:
        """Have `config.max_total_num_tokens` slots from now on, all of them free."""
        self.size = config.max_total_num_tokens
        self.core = self._new_core()

    def free_page_ids(self, page_ids: torch.Tensor) -> None:
        """Free pages by id. Raises `DoubleFree` for an id named twice."""
        offsets = torch.arange(self.page_size, device=page_ids.device)
        self.core.free_segment((page_ids[:, None] * self.page_size + offsets).reshape(-1), start_pos=0)
