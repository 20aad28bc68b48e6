"""The public allocators: they hand out slots for tokens and take them back."""

from kvstead.allocators.allocator import Allocator
from kvstead.allocators.device_hisparse import DeviceHiSparseAllocator
from kvstead.allocators.device_paged import DevicePagedAllocator, DeviceTokenAllocator
from kvstead.allocators.device_split_swa import DeviceSplitSWAAllocator
from kvstead.allocators.device_swa import DeviceSWAAllocator
from kvstead.allocators.hisparse import CompressedHiSparseAllocator, HiSparseAllocator
from kvstead.allocators.in_arena import (
    ArenaAllocator,
    ArenaSWAAllocator,
    MultiEndedAllocator,
    UnifiedMambaAllocator,
    UnifiedMambaSWAAllocator,
    UnifiedSWAAllocator,
)
from kvstead.allocators.loose_windows import SplitSWAAllocator
from kvstead.allocators.paged import PagedAllocator, PureSWAAllocator, TokenAllocator
from kvstead.allocators.states import StateAllocator
from kvstead.allocators.swa import SWAAllocator, WindowSide

__all__ = [
    "Allocator",
    "ArenaAllocator",
    "ArenaSWAAllocator",
    "CompressedHiSparseAllocator",
    "DeviceHiSparseAllocator",
    "DevicePagedAllocator",
    "DeviceSWAAllocator",
    "DeviceSplitSWAAllocator",
    "DeviceTokenAllocator",
    "HiSparseAllocator",
    "MultiEndedAllocator",
    "PagedAllocator",
    "PureSWAAllocator",
    "SWAAllocator",
    "SplitSWAAllocator",
    "StateAllocator",
    "TokenAllocator",
    "UnifiedMambaAllocator",
    "UnifiedMambaSWAAllocator",
    "UnifiedSWAAllocator",
    "WindowSide",
]
