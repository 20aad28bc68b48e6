"""SGLang's table of requests: a row of slots each on the device, and which rows are in use on the host."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np
import torch

from kvstead.errors import StaleRow
from kvstead.kernels.host import LIVE
from kvstead.pools import RequestTable


class ReqToTokenPool:
    """Rows 1 .. `size` of `max_context_len` slots; row 0 is padding.

    req_to_token: int32[size + 1, max_context_len] on the device. req_generation: int64[size + 1] on the host, how often
    each row was handed out; it only grows, also across `clear`.

    Freed rows keep their slots until they are written again. Freeing a row twice raises `StaleRow` and changes nothing.
    """

    enable_mamba_extra_buffer_lazy = False
    pre_alloc_size = 0

    def __init__(self, size: int, max_context_len: int, device: str, enable_memory_saver: bool) -> None:
        self.size = size
        self.max_context_len = max_context_len
        self.device = device
        self._alloc_size = size + 1
        with _saved(enable=enable_memory_saver):
            self.req_to_token = torch.zeros((size + 1, max_context_len), dtype=torch.int32, device=device)
        self._rows = RequestTable(size, 0)  # the slots themselves lie on the device
        self.req_generation = torch.from_numpy(self._rows.generation)
        self._aux_cache: Any = None
        self._on_alloc_rows: Callable[[list[int]], None] | None = None

    @property
    def free_slots(self) -> list[int]:
        """Rows that are not in use, ascending. O(rows)."""
        free = np.flatnonzero(self._rows.states[1:] != LIVE) + 1
        return [int(row) for row in free]

    def available_size(self) -> int:
        """Rows that can be handed out."""
        return self._rows.num_free

    def alloc(self, reqs: Sequence[Any]) -> list[int] | None:
        """Give each request a row if it has none: the rows of all; None when short, with nothing changed.

        Raises `StaleRow` for a request that has a row but no slots in it.
        """
        empty = [req.kv.req_pool_idx for req in reqs if req.kv.holds_kv and req.kv.kv_allocated_len <= 0]
        if empty:
            raise StaleRow(f"rows {empty} are held by requests that have no slots. Free them and ask for new ones.")
        waiting = [req for req in reqs if not req.kv.holds_kv]
        rows = self.alloc_rows(len(waiting))
        if rows is None:
            return None
        for req, row in zip(waiting, rows, strict=True):
            req.kv.req_pool_idx = row
        return [req.kv.req_pool_idx for req in reqs]

    def alloc_rows(self, need_size: int) -> list[int] | None:
        """Hand out rows and raise their generations by one; None when short, with nothing changed."""
        rows = self._rows.take(need_size)
        if rows is None:
            return None
        taken: list[int] = rows.tolist()
        if taken and self._on_alloc_rows is not None:
            self._on_alloc_rows(taken)
        return taken

    def free(self, req: Any) -> None:
        """Free a request's row. Raises `StaleRow` for a request that has none."""
        if not req.kv.holds_kv:
            raise StaleRow("the request has no row to free. Free each request once.")
        self.free_rows([req.kv.req_pool_idx])
        req.kv.req_pool_idx = None

    def free_rows(self, indices: Sequence[int]) -> None:
        """Free rows, all or none. Raises `StaleRow` for one that is not in use, or named twice."""
        for row, times in Counter(indices).items():
            self._rows.require_live(row)
            if times > 1:
                raise StaleRow(f"row {row} is freed {times} times in one call. Free each row once.")
        for row in indices:
            if self._aux_cache is not None:
                self._aux_cache.free(row)
            self._rows.give(row)

    def write(self, indices: Any, values: torch.Tensor) -> None:
        """Write slots at `indices`: a row and a range, or tensors of rows and positions."""
        self.req_to_token[indices] = values

    def clear(self) -> None:
        """Free all rows. Generations stay."""
        self._rows.clear()
        if self._aux_cache is not None:
            self._aux_cache.clear()

    def attach_aux_cache(self, aux_cache: Any) -> None:
        """Let another cache follow these rows. Raises `RuntimeError` when one does already."""
        if self._aux_cache is not None:
            raise RuntimeError("A cache is attached already. Attach only one.")
        self._aux_cache = aux_cache

    def register_on_alloc_rows(self, hook: Callable[[list[int]], None]) -> None:
        """Call `hook` with rows that are handed out. Raises `RuntimeError` when there is a hook already."""
        if self._on_alloc_rows is not None:
            raise RuntimeError("A hook is registered already. Register only one.")
        self._on_alloc_rows = hook

    def reset_aux_cache_allocator(self) -> None:
        """Reset the allocator of the attached cache."""
        if self._aux_cache is not None:
            self._aux_cache.reset_allocator()

    def schedulable_token_capacity(self, physical_capacity: int) -> int:
        """Tokens that requests may hold: `physical_capacity`, or the capacity of the attached cache."""
        return physical_capacity if self._aux_cache is None else int(self._aux_cache.dense_capacity)

    def alloc_aux_to_lengths(self, *, req_pool_indices_cpu: torch.Tensor, target_seq_lens_cpu: torch.Tensor) -> None:
        """Let the attached cache allocate up to so many tokens for each row."""
        if self._aux_cache is not None:
            self._aux_cache.alloc_to_lengths(
                req_pool_indices_cpu=req_pool_indices_cpu, target_seq_lens_cpu=target_seq_lens_cpu
            )


def _saved(*, enable: bool) -> AbstractContextManager[Any]:
    """A context whose allocations SGLang's memory saver can release and restore."""
    if not enable:
        return nullcontext()
    from sglang.srt.constants import GPU_MEMORY_TYPE_KV_CACHE
    from sglang.srt.utils.torch_memory_saver_adapter import TorchMemorySaverAdapter

    region: AbstractContextManager[Any] = TorchMemorySaverAdapter.create(enable=True).region(GPU_MEMORY_TYPE_KV_CACHE)
    return region
