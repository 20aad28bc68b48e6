"""kvstead's device-resident allocators under the clock."""

from __future__ import annotations

from functools import partial

import torch

from device import device
from kvstead.allocators import DevicePagedAllocator, DeviceTokenAllocator
from side_kvstead import KVSteadSide
from sides import Call


class KVSteadDeviceSide(KVSteadSide):
    """With their defaults: what only the device could see is not checked."""

    def __init__(self) -> None:
        torch.set_num_threads(1)  # as on the other side

    def token_pool(self, size: int) -> DeviceTokenAllocator:
        """Page size 1, first in, first out."""
        return DeviceTokenAllocator(size, device=device())

    def paged_pool(self, size: int, page_size: int) -> DevicePagedAllocator:
        """Last in, first out."""
        return DevicePagedAllocator(size, page_size, device=device())

    def extend_call(
        self, pool: DevicePagedAllocator, prefix: torch.Tensor, seq: torch.Tensor, last: torch.Tensor
    ) -> Call:
        """Grow rows from `prefix` to `seq` tokens, which it wants on the host."""
        return partial(pool.alloc_extend, prefix.cpu(), seq.cpu(), last)

    def decode_call(self, pool: DevicePagedAllocator, seq: torch.Tensor, last: torch.Tensor) -> Call:
        """Grow rows by one token to `seq`."""
        return partial(pool.alloc_decode, seq.cpu(), last)
