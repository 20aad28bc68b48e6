"""Which allocator of kvstead stands behind a pool."""

from __future__ import annotations

import torch

from kvstead.allocators import PagedAllocator, PureSWAAllocator, TokenAllocator
from kvstead.allocators.split_swa import SplitSWAAllocator


def reuse_order(page_size: int, need_sort: bool) -> str:
    """SGLang's order: freed slots queue behind all others, freed pages are reused first; sorted where asked for."""
    if need_sort:
        return "lowest"
    return "fifo" if page_size == 1 else "lifo"


def token_pool(size: int, device: str | torch.device, need_sort: bool) -> TokenAllocator:
    """Slots one by one."""
    return TokenAllocator(size, device=device, order=reuse_order(1, need_sort))


def paged_pool(size: int, page_size: int, device: str | torch.device, need_sort: bool) -> PagedAllocator:
    """Slots in pages, of one token too."""
    return PagedAllocator(size, page_size, device=device, order="lowest" if need_sort else "lifo")


def window_pools(
    full_size: int, swa_size: int, page_size: int, device: str | torch.device, need_sort: bool
) -> SplitSWAAllocator:
    """Pages with window pages."""
    order = reuse_order(page_size, need_sort)
    return SplitSWAAllocator(full_size, swa_size, page_size, device=device, order=order)


def pure_window_pool(size: int, page_size: int, device: str | torch.device, need_sort: bool) -> PureSWAAllocator:
    """Pages that are their own window pages."""
    return PureSWAAllocator(size, page_size, device=device, order=reuse_order(page_size, need_sort))
