"""What SGLang asks of every allocator, with answers for those that do not say otherwise.

The scheduler, the prefix caches and the transfer code call all of it on any allocator. The classes of this package add
the calls of a kvstead allocator (`CoreCalls`); classes from elsewhere may keep free lists of their own.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Hashable, Iterable, Iterator
from typing import Any, NoReturn, TypeAlias

import torch

from kvstead.errors import DoubleFree, FreeGroupError, MisalignedSegment

Segments: TypeAlias = Iterable[tuple[torch.Tensor, int]]  # slots, and the position in the row where they start


class BaseTokenToKVPoolAllocator(ABC):
    """Slots of a pool, one a token, in pages of `page_size`; page 0 is padding.

    size: slots that can be handed out. dtype: of the pool's entries. device: where slots live. kvcache: the pool whose
    entries the slots index. need_sort: hand out the lowest pages first, for transfers of neighbouring pages.

    A subclass defines `clear`, `alloc` and `free`. It may list free page ids in `free_pages` and `release_pages`, which
    are None without such lists. `free_group` is None, or the list of what was freed since the group began: while it is
    a list, a subclass with its own `free` appends copies, and `free_group_end` passes them to `free` as one tensor.
    """

    free_pages: torch.Tensor | None = None
    release_pages: torch.Tensor | None = None
    free_group: list[Any] | None = None

    @abstractmethod
    def __init__(
        self, size: int, page_size: int, dtype: torch.dtype, device: str, kvcache: Any, need_sort: bool
    ) -> None:
        self.size = size
        self.page_size = page_size
        self.dtype = dtype
        self.device = device
        self._kvcache = kvcache
        self.need_sort = need_sort

    @abstractmethod
    def clear(self) -> None:
        """Make every slot free, also slots that are in use; an open group is dropped."""

    @abstractmethod
    def alloc(self, need_size: int) -> torch.Tensor | None:
        """Allocate `need_size` slots; None when there are too few."""

    @abstractmethod
    def free(self, free_index: torch.Tensor) -> None:
        """Free the pages that the slots lie in."""

    def alloc_extend(self, *_args: Any, **_kwargs: Any) -> torch.Tensor | None:
        """Grow rows. Raises `NotImplementedError` in classes without pages."""
        raise NotImplementedError(f"{type(self).__name__} hands out slots by alloc alone.")

    def alloc_decode(self, *_args: Any, **_kwargs: Any) -> torch.Tensor | None:
        """Grow each row by one. Raises `NotImplementedError` in classes without pages."""
        raise NotImplementedError(f"{type(self).__name__} hands out slots by alloc alone.")

    def free_full(self, free_index: torch.Tensor) -> None:
        """Free slots whose window pages were freed before; without a window side this is `free`."""
        self.free(free_index)

    def free_segment(self, free_index: torch.Tensor, *, start_pos: int) -> None:
        """Free `row[start_pos : start_pos + len(free_index)]`; a partial last page is freed as a whole.

        Raises `MisalignedSegment` when `start_pos` is not on a page boundary.
        """
        self._require_boundary(start_pos)
        self.free(free_index)

    def free_full_segment(self, free_index: torch.Tensor, *, start_pos: int) -> None:
        """`free_full` for a stretch of a row, as `free_segment`."""
        self._require_boundary(start_pos)
        self.free_full(free_index)

    def free_segments(self, segments: Segments) -> None:
        """Free several stretches of one row, (slots, start_pos) each, ascending. They share no page."""
        for free_index, start_pos in self._page_disjoint(segments):
            self.free_segment(free_index, start_pos=start_pos)

    def free_full_segments(self, segments: Segments) -> None:
        """`free_full` for several stretches of one row, as `free_segments`."""
        for free_index, start_pos in self._page_disjoint(segments):
            self.free_full_segment(free_index, start_pos=start_pos)

    def free_group_begin(self) -> None:
        """Let frees wait from now on. Raises `FreeGroupError` when a group is open; the open one is kept."""
        if self.free_group is not None:
            raise FreeGroupError("A free group is open already. End it first; groups do not nest.")
        self.free_group = []

    def free_group_end(self) -> None:
        """Let all frees that wait take effect. Does nothing without an open group."""
        waiting, self.free_group = self.free_group, None
        if waiting:
            self.free(torch.cat(waiting))

    def merge_and_sort_free(self) -> None:
        """Sort what was freed into `free_pages`, for a class that keeps it apart in `release_pages`."""
        if self.free_pages is not None and self.release_pages is not None and len(self.release_pages):
            self.free_pages = torch.cat((self.free_pages, self.release_pages)).sort().values
            self.release_pages = self.release_pages[:0]

    def resize(self, config: Any) -> None:
        """Have `config.max_total_num_tokens` slots from now on, all of them free."""
        self.size = config.max_total_num_tokens
        if self.page_size > 1:
            self.num_pages = self.size // self.page_size
        self.clear()

    @property
    def size_full(self) -> int:
        """Slots for the layers that see everything."""
        return self.size

    def available_size(self) -> int:
        """Slots that can be allocated now. What waits in an open group does not count."""
        lists = (self.free_pages, self.release_pages)
        return sum(len(pages) for pages in lists if pages is not None) * self.page_size

    def get_all_free_pages(self) -> torch.Tensor | None:
        """Ids of all free pages; None for a class that has no list of them."""
        if self.free_pages is None or self.release_pages is None:
            return self.free_pages
        return torch.cat((self.free_pages, self.release_pages))

    def get_kvcache(self) -> Any:
        """The pool whose entries the slots index."""
        return self._kvcache

    def get_cpu_copy(self, indices: torch.Tensor, mamba_indices: Any = None, req_pool_index: Any = None) -> Any:
        """Copy entries to the host. Raises `NotImplementedError` in classes whose pool cannot."""
        raise NotImplementedError(f"{type(self).__name__} cannot copy entries to the host.")

    def load_cpu_copy(
        self, kv_cache_cpu: Any, indices: torch.Tensor, mamba_indices: Any = None, req_pool_index: Any = None
    ) -> Any:
        """Write such a copy back to `indices`. Raises as `get_cpu_copy`."""
        raise NotImplementedError(f"{type(self).__name__} cannot copy entries from the host.")

    def translate_kv_indices_for_transfer(self, kv_indices: torch.Tensor) -> torch.Tensor:
        """Slots as the transfer engine counts them, which is as the pool does."""
        return kv_indices

    def evict_to_free_tokens(self, tree_cache: Any, num_tokens: int) -> bool | None:
        """Evict what is missing to `num_tokens` available slots, as far as the prefix cache can."""
        if tree_cache is not None and tree_cache.supports_prefix_sharing():
            self._evict(tree_cache, num_tokens=num_tokens - self.available_size())
        return None

    def check_decode_capacity(
        self, *, num_tokens: int, tree_cache: Any, requests: Any = None, spec_algorithm: Any = None
    ) -> bool:
        """Whether `num_tokens` can be allocated, after evictions if need be."""
        self.evict_to_free_tokens(tree_cache, num_tokens)
        return self.available_size() >= num_tokens

    def create_prefill_budget(self, tree_cache: Any, *, num_mixed_decode_tokens: int = 0) -> Any:
        """SGLang's budget of what one prefill pass may take."""
        from sglang.srt.mem_cache.prefill_budget import PrefillBudget

        return PrefillBudget(self, tree_cache, num_mixed_decode_tokens=num_mixed_decode_tokens)

    def request_slot_reserve(self, *, has_req_pool_slot: bool, prefill_tokens: int = 0) -> int:
        """Slots that a request takes besides those of its tokens: none."""
        return 0

    def max_new_tokens_for_memory(
        self,
        input_tokens: int,
        max_new_tokens: int,
        *,
        token_capacity: int,
        sliding_window_size: int | None,
        chunk_size: int | None,
    ) -> int | None:
        """How many of `max_new_tokens` fit behind the prompt in an empty pool; a page and a token stay in reserve."""
        input_pages = -(-input_tokens // self.page_size)
        return max(0, min(max_new_tokens, token_capacity - (input_pages + 1) * self.page_size - 1))

    def get_extend_allocation_demand(
        self,
        prefix_lens_cpu: torch.Tensor,
        seq_lens_cpu: torch.Tensor,
        *,
        conservative_num_tokens: int,
        shard_size: int,
    ) -> int:
        """Slots to make available before rows grow: the caller's upper bound."""
        return conservative_num_tokens

    def prealloc_fits_assumes_reclaim(self) -> bool:
        """Whether `prealloc_fits` counts on evictions that are still to come: no."""
        return False

    def prealloc_ceiling_fits(self, full_tokens: int, swa_tokens: int) -> bool | None:
        """Whether so much could ever be allocated; None: only the caller's own figure bounds it."""
        return None

    def prealloc_fits(
        self,
        tree_cache: Any,
        full_tokens: int,
        swa_tokens: int,
        *,
        full_budget_tokens: int,
        swa_budget_tokens: int | None = None,
    ) -> bool:
        """Whether each side stays within the caller's budget for it."""
        fits_window = swa_budget_tokens is None or swa_tokens <= swa_budget_tokens
        return fits_window and full_tokens <= full_budget_tokens

    def mamba_full_cache_donor(self) -> Any:
        """The object that turns slots of tokens into slots of states: none."""
        return None

    def set_hicache_transfer_done_event(self, transfer_key: Hashable, event: Any) -> None:
        """Do nothing: no call waits for a transfer."""

    def verify_byte_accounting(self) -> list[str]:
        """Audit the allocator: what is wrong, in words; an empty list when nothing is."""
        return []

    def debug_print(self) -> str:
        """Figures for the scheduler's log line."""
        return ""

    @staticmethod
    def _copy_for_free_group(free_index: torch.Tensor) -> torch.Tensor:
        """A copy for `free_group`: the caller may overwrite its own tensor."""
        return free_index.clone()

    def _evict(self, tree_cache: Any, **num_tokens: int) -> None:
        """Evict so many tokens of each kind; kinds with 0 or fewer are left out."""
        wanted = {kind: number for kind, number in num_tokens.items() if number > 0}
        if wanted:
            from sglang.srt.mem_cache.base_prefix_cache import EvictParams

            tree_cache.evict_for_alloc(EvictParams(**wanted))

    def _require_boundary(self, start_pos: int) -> None:
        if start_pos % self.page_size:
            raise MisalignedSegment(
                f"a segment starts at position {start_pos}, which is not a multiple of the page size {self.page_size}. "
                "Start it at the next page boundary."
            )

    def _page_disjoint(self, segments: Segments) -> Iterator[tuple[torch.Tensor, int]]:
        """The segments that are not empty. Raises `DoubleFree` for one that starts in the last page of another."""
        first_free_page = 0
        for free_index, start_pos in segments:
            if not free_index.numel():
                continue
            if start_pos // self.page_size < first_free_page:
                raise DoubleFree(
                    f"a segment starts at position {start_pos}, in a page of the segment before it. Pass the segments "
                    "of a row in order and each page once."
                )
            first_free_page = -(-(start_pos + free_index.numel()) // self.page_size)
            yield free_index, start_pos


def refuse_resize(pool: str) -> NoReturn:
    """Raise the error of a pool whose size is fixed when it is made."""
    raise NotImplementedError(f"{pool} keeps its size. Make a new one of another size.")
