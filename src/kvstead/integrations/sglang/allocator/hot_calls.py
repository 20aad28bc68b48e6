"""The calls about hot slots, of SGLang's allocators for pools that keep some entries on the device as well."""

from __future__ import annotations

from abc import ABC
from typing import Any

import torch

from kvstead.integrations.sglang.allocator.base import refuse_resize
from kvstead.integrations.sglang.allocator.cores import HotCore
from kvstead.integrations.sglang.allocator.pool_view import PoolCalls, PoolView
from kvstead.integrations.sglang.allocator.slot_mapping import SlotMapping
from kvstead.integrations.sglang.attribute_of import AttributeOf


class HotCalls(ABC):
    """The part of an allocator that is about hot slots. It goes before `CoreCalls`.

    full_to_hisparse_device_index_mapping: int64 on the device, by logical entry, 0 for none, and -1 in the last one.
    One tensor for the allocator's whole life, handed to the pool once. SGLang's coordinator writes to it, to point new
    tokens at its buffers; what a row holds does not change with it, and a free undoes it.

    hisparse_attn_allocator: a view of the hot side, whose slots are buffers and stand for no token.
    """

    core: HotCore
    page_size: int
    _kvcache: Any
    compress_ratio = 1  # tokens that are one entry
    _hot_mapping: SlotMapping

    full_to_hisparse_device_index_mapping = AttributeOf[torch.Tensor]("_hot_mapping.tensor")

    @property
    def hisparse_page_size(self) -> int:
        """Device slots of a page, one an entry."""
        return self.page_size // self.compress_ratio

    def alloc_logical_only(
        self,
        prefix_lens: torch.Tensor,
        prefix_lens_cpu: torch.Tensor,
        seq_lens: torch.Tensor,
        seq_lens_cpu: torch.Tensor,
        last_loc: torch.Tensor,
        extend_num_tokens: int,
    ) -> torch.Tensor | None:
        """As `alloc_extend`, but without device slots."""
        slots = self.core.alloc_logical_only(prefix_lens_cpu, seq_lens_cpu, last_loc)
        self._write_windows(slots)
        return slots

    def alloc_device_buffer(self, allocated_indices: torch.Tensor, need_size: int) -> torch.Tensor | None:
        """Make a buffer of `need_size` device slots from those of a row's entries; None if short.

        Raises as `kvstead.allocators.HiSparseAllocator.alloc_device_buffer`.
        """
        entries = self._in_buffer_order(allocated_indices, need_size)
        buffer = self.core.alloc_device_buffer(self._slots_of(entries), need_size)
        if buffer is not None:
            self._hot_mapping.erase(self._slots_of(allocated_indices))
        return buffer

    def free_hisparse(self, free_indices: torch.Tensor) -> None:
        """Free the device slots of the pages that the slots lie in; the logical pages stay."""
        self.core.free_hisparse(free_indices)
        self._hot_mapping.erase(free_indices)

    def free_hisparse_indices(self, buffer_indices: torch.Tensor) -> None:
        """Free the pages of device slots. Slots in the padding page are left out."""
        self.core.free_hisparse_indices(buffer_indices.where(buffer_indices >= self.hisparse_page_size, 0))

    def get_last_loc_compressed(self, last_locs: torch.Tensor) -> torch.Tensor:
        """The last whole entry of rows that end at these slots; -1 for none."""
        return (last_locs - (self.compress_ratio - 1)) // self.compress_ratio

    def get_last_loc_hisparse_device(self, last_locs: torch.Tensor) -> torch.Tensor:
        """The device slot of that entry."""
        return self.full_to_hisparse_device_index_mapping[self.get_last_loc_compressed(last_locs)]

    def resize(self, config: Any) -> None:
        """Raise `NotImplementedError`: the mapping, and the pools that have it, are made for one size."""
        refuse_resize("A pool with a device side")

    def _device_view(self) -> PoolView:
        calls = PoolCalls(
            available_size=self.core.device_available_size,
            free_pages=self.core.device_free_pages,
            alloc=lambda need_size: self.core.alloc_device_buffer((), need_size),
            free=self.free_hisparse_indices,
        )
        return PoolView(self, calls, self.core.device_size, self._kvcache, self.hisparse_page_size)

    def _write_windows(self, slots: torch.Tensor | None) -> None:
        """Note the window slots of new slots, in a class that has windows."""

    def _in_buffer_order(self, entries: torch.Tensor, need_size: int) -> torch.Tensor:
        """A row's entries in the order in which they follow one another in a buffer."""
        return entries

    def _slots_of(self, entries: torch.Tensor) -> torch.Tensor:
        """The slots of the last tokens of entries."""
        return entries * self.compress_ratio + self.compress_ratio - 1
