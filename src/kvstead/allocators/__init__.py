"""The public allocators: who gets which slots, and when they come back."""

from kvstead.allocators.base import Allocator
from kvstead.allocators.device import DevicePagedAllocator, DeviceTokenAllocator
from kvstead.allocators.device_hisparse import DeviceHiSparseAllocator
from kvstead.allocators.device_split_swa import DeviceSplitSWAAllocator
from kvstead.allocators.device_swa import DeviceSWAAllocator
from kvstead.allocators.hisparse import CompressedHiSparseAllocator, HiSparseAllocator
from kvstead.allocators.multi_ended import MultiEndedAllocator
from kvstead.allocators.paged import PagedAllocator, TokenAllocator
from kvstead.allocators.pure_swa import PureSWAAllocator
from kvstead.allocators.split_swa import SplitSWAAllocator
from kvstead.allocators.states import StateAllocator
from kvstead.allocators.swa import SWAAllocator
from kvstead.allocators.unified import UnifiedSWAAllocator
from kvstead.allocators.unified_states import UnifiedMambaAllocator, UnifiedMambaSWAAllocator

__all__ = [
    "Allocator",
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
]
