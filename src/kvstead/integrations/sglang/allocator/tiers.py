"""What SGLang's allocators with a device side share, and their tiers, which callers may ask and use alone."""

from __future__ import annotations

from typing import Any

import torch

from kvstead.allocators import CompressedHiSparseAllocator
from kvstead.integrations.sglang import leaves
from kvstead.integrations.sglang.allocator.base import BaseTokenToKVPoolAllocator, Segments
from kvstead.integrations.sglang.allocator.core import CoreAllocator
from kvstead.integrations.sglang.mapping import TokenMapping


class Tier(BaseTokenToKVPoolAllocator):
    """What both tiers are: a view of `owner`, whose books they share. size: slots of this tier."""

    def __init__(self, owner: Any, size: int, page_size: int) -> None:
        super().__init__(size, page_size, owner.dtype, owner.device, owner.get_kvcache(), owner.need_sort)
        self.owner = owner

    @property
    def free_group(self) -> list[Any] | None:  # type: ignore[override]  # a plain attribute there, here never written
        """The owner's group."""
        group: list[Any] | None = self.owner.free_group
        return group

    @property
    def num_pages(self) -> int:  # type: ignore[override]  # as above
        """Pages that can be handed out."""
        return self.size // self.page_size

    def free_group_begin(self) -> None:
        """Open the owner's group."""
        self.owner.free_group_begin()

    def free_group_end(self) -> None:
        """End the owner's group."""
        self.owner.free_group_end()

    def clear(self) -> None:
        """Raise: all tiers are cleared together."""
        raise NotImplementedError("One tier cannot be cleared alone. Call clear of the allocator that it belongs to.")


class LogicalTier(Tier):
    """Logical slots, without device slots. A free takes the device side along if it is still there."""

    def __init__(self, owner: Any) -> None:
        super().__init__(owner, owner.core.size, owner.page_size)

    @property
    def free_pages(self) -> torch.Tensor:  # type: ignore[override]  # as above
        """Ids of the free pages, in the order in which they will be handed out: int64[k], a copy. O(pages)."""
        return torch.as_tensor(self.owner.core.free_pages(), device=self.device)

    def available_size(self) -> int:
        """Slots that can be allocated now."""
        return int(self.owner.core.logical_available_size())

    def alloc(self, need_size: int) -> torch.Tensor | None:
        """A row of `need_size` tokens, or None when there are not so many."""
        slots: torch.Tensor | None = self.owner.core.alloc_logical_only([0], [need_size], [-1])
        return slots

    def alloc_extend(self, *args: Any, **kwargs: Any) -> torch.Tensor | None:
        """`alloc_logical_only` of the owner."""
        slots: torch.Tensor | None = self.owner.alloc_logical_only(*args, **kwargs)
        return slots

    def alloc_decode(self, *args: Any, **kwargs: Any) -> torch.Tensor | None:
        """`alloc_decode` of the owner."""
        slots: torch.Tensor | None = self.owner.alloc_decode(*args, **kwargs)
        return slots

    def free(self, free_index: torch.Tensor) -> None:
        """`free` of the owner."""
        self.owner.free(free_index)


class DeviceTier(Tier):
    """Device slots that no token stands for: buffers."""

    def __init__(self, owner: Any) -> None:
        super().__init__(owner, owner.core.device_size, owner.hisparse_page_size)

    @property
    def free_pages(self) -> torch.Tensor:  # type: ignore[override]  # as above
        """Ids of the free pages, in the order in which they will be handed out: int64[k], a copy. O(pages)."""
        return torch.as_tensor(self.owner.core.device_free_pages(), device=self.device)

    def available_size(self) -> int:
        """Slots that can be allocated now."""
        return int(self.owner.core.device_available_size())

    def alloc(self, need_size: int) -> torch.Tensor | None:
        """A buffer of `need_size` slots, whole pages, or None when there are not so many."""
        slots: torch.Tensor | None = self.owner.core.alloc_device_buffer((), need_size)
        return slots

    def free(self, free_index: torch.Tensor) -> None:
        """`free_hisparse_indices` of the owner."""
        self.owner.free_hisparse_indices(free_index)


class TieredAllocator(CoreAllocator):
    """What the two classes here share: a tensor that says where the device side of entries lies.

    full_to_hisparse_device_index_mapping: int64 on the device, by logical entry, 0 for none, and -1 in the last one.
    One tensor for the allocator's whole life, handed to the pool once. SGLang's coordinator writes to it, to point new
    tokens at its buffers; that changes nothing in the books, and a free undoes it.
    """

    core: leaves.TwoTiers | CompressedHiSparseAllocator
    compress_ratio = 1  # tokens that are one entry
    _mapping: TokenMapping

    @property
    def full_to_hisparse_device_index_mapping(self) -> torch.Tensor:
        """Where the device side of each entry lies."""
        return self._mapping.tensor

    @property
    def hisparse_page_size(self) -> int:
        """Device slots of a page."""
        return self.page_size // self.compress_ratio

    @property
    def hisparse_attn_allocator(self) -> BaseTokenToKVPoolAllocator:
        """The device side, for whoever needs device slots that no token stands for."""
        return DeviceTier(self)

    def alloc_device_buffer(self, allocated_indices: torch.Tensor, need_size: int) -> torch.Tensor | None:
        """`need_size` device slots, made of those of a row's entries; None when too few are free, with nothing changed.

        Raises as `kvstead.allocators.HiSparseAllocator.alloc_device_buffer`.
        """
        entries = self._in_buffer_order(allocated_indices, need_size)
        buffer = self.core.alloc_device_buffer(self._slots_of(entries), need_size)
        if buffer is not None:
            self._mapping.erase(allocated_indices)
        return buffer

    def free_hisparse(self, free_indices: torch.Tensor) -> None:
        """Give back the device side of the pages that the slots lie in; the logical pages stay."""
        self.core.free_hisparse(free_indices)
        self._erase(free_indices)

    def free_hisparse_indices(self, buffer_indices: torch.Tensor) -> None:
        """Give back the pages of device slots. Slots in the padding page stand for none."""
        self.core.free_hisparse_indices(buffer_indices.where(buffer_indices >= self.hisparse_page_size, 0))

    def get_last_loc_compressed(self, last_locs: torch.Tensor) -> torch.Tensor:
        """The last entry that is whole, of rows that end at these slots; -1 for none."""
        return (last_locs - (self.compress_ratio - 1)) // self.compress_ratio

    def get_last_loc_hisparse_device(self, last_locs: torch.Tensor) -> torch.Tensor:
        """Where the device side of that entry lies."""
        return self.full_to_hisparse_device_index_mapping[self.get_last_loc_compressed(last_locs)]

    def free(self, free_index: torch.Tensor) -> None:
        """Give back the pages that the slots lie in, with the device pages that they still have."""
        self._logical.free(free_index)
        self._erase(free_index)

    def free_segment(self, free_index: torch.Tensor, *, start_pos: int) -> None:
        """`free` for a stretch of a row, whole pages at a time."""
        self._logical.free_segment(free_index, start_pos=start_pos)
        self._erase(free_index)

    def free_segments(self, segments: Segments) -> None:
        """`free` for several stretches of one row, (slots, start_pos) each, all or none."""
        self._logical.free_segments(segments := list(segments))
        for free_index, _ in segments:
            self._erase(free_index)

    def clear(self) -> None:
        """Every slot of all sides is free again, whoever held it."""
        self._logical.clear()
        self._mapping.erase_all()

    def resize(self, config: Any) -> None:
        """Raise: the mapping and the pools behind it were made for one size."""
        raise NotImplementedError("A pool with a device side keeps its size. Make a new one.")

    @property
    def _logical(self) -> Any:
        """Whoever takes slots back."""
        return self.core

    def _in_buffer_order(self, entries: torch.Tensor, need_size: int) -> torch.Tensor:
        """A row's entries as they are to follow one another in a buffer."""
        return entries

    def _slots_of(self, entries: torch.Tensor) -> torch.Tensor:
        """The slots that end entries."""
        return entries * self.compress_ratio + self.compress_ratio - 1

    def _erase(self, slots: torch.Tensor) -> None:
        self._mapping.erase(torch.div(slots, self.compress_ratio, rounding_mode="floor"))
