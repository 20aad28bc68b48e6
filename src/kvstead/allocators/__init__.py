"""The public allocators: who gets which slots, and when they come back."""

from kvstead.allocators.base import Allocator
from kvstead.allocators.paged import PagedAllocator, TokenAllocator
from kvstead.allocators.pure_swa import PureSWAAllocator
from kvstead.allocators.swa import SWAAllocator

__all__ = ["Allocator", "PagedAllocator", "PureSWAAllocator", "SWAAllocator", "TokenAllocator"]
