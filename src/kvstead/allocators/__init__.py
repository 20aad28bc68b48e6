"""The public allocators: who gets which slots, and when they come back."""

from kvstead.allocators.base import Allocator
from kvstead.allocators.paged import PagedAllocator, TokenAllocator

__all__ = ["Allocator", "PagedAllocator", "TokenAllocator"]
