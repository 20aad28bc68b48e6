"""SGLang's batches with sliding windows under the clock: its own scheduler's code, rows and prefix cache."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from types import SimpleNamespace

import torch

from side_sglang import window_cache, window_pool
from sides import WIDTH, Call

# isort: split
from sglang.srt.managers.schedule_batch import ReqKvInfo, ScheduleBatch
from sglang.srt.mem_cache.allocation import alloc_for_decode
from sglang.srt.mem_cache.memory_pool import ReqToTokenPool
from sglang.srt.mem_cache.unified_cache.component_type import ComponentType
from sglang.srt.model_executor.forward_batch_info import ForwardMode


class _Request:
    """What the batch reads of a request when it decodes."""

    decode_batch_idx = 1

    def __init__(self, row: int, length: int) -> None:
        self.kv = ReqKvInfo(req_pool_idx=row, kv_committed_len=length, kv_allocated_len=length)
        self.seqlen = length + 1  # with the token to be computed


class SGLangBatch:
    """A decode batch whose requests have nothing in the prefix cache."""

    def __init__(self, lengths: Sequence[int], span: int, page_size: int) -> None:
        num_rows = len(lengths)
        table = ReqToTokenPool(num_rows, WIDTH, "cpu", enable_memory_saver=False)
        pool = window_pool(num_rows * WIDTH, 2 * num_rows * span, page_size)
        self._seq = torch.tensor(lengths, dtype=torch.int64)
        nothing = torch.zeros_like(self._seq)
        slots = pool.alloc_extend(nothing, nothing, self._seq, self._seq, nothing - 1, int(self._seq.sum()))
        rows = table.alloc_rows(num_rows)
        for row, part in zip(rows, slots.split(list(lengths)), strict=True):
            table.write((row, slice(0, len(part))), part.to(torch.int32))
        self._requests = [_Request(row, length) for row, length in zip(rows, lengths, strict=True)]
        self._batch = ScheduleBatch(
            reqs=self._requests,
            req_to_token_pool=table,
            token_to_kv_pool_allocator=pool,
            tree_cache=window_cache("rust", pool, page_size, span, table),
            model_config=SimpleNamespace(is_encoder_decoder=False),
            device="cpu",
            forward_mode=ForwardMode.DECODE,
            req_pool_indices=torch.tensor(rows),
            req_pool_indices_cpu=torch.tensor(rows),
            seq_lens=self._seq,
            seq_lens_cpu=self._seq.clone(),
        )

    def decode_call(self) -> Call:
        """It frees what has fallen out of windows, allocates and writes the rows."""
        return partial(alloc_for_decode, self._batch, 1)

    def commit(self) -> None:
        """The rows' tokens are computed, and the next ones known."""
        self._batch.seq_lens += 1
        self._batch.seq_lens_cpu += 1
        for request in self._requests:
            request.seqlen += 1

    def released(self) -> int:
        """Window slots freed so far."""
        return sum(request.kv.get_evicted_seqlen(ComponentType.SWA) for request in self._requests)
