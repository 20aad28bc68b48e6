"""Which stretches of prompts a step computes: those begun go on in their order, then new requests are admitted."""

from __future__ import annotations

from collections import deque

from kvstead.engine.admission import Admission
from kvstead.engine.manager import KVCacheManager
from kvstead.engine.request import Request
from kvstead.engine.running import RunningRequests
from kvstead.engine.step import Chunk


class ChunkPlanner:
    """Plans the prompts of one scheduler, whose running requests and queue it shares.

    waiting: the queue, first come first. max_running: requests on the memory at once.
    """

    def __init__(
        self,
        manager: KVCacheManager,
        admission: Admission,
        running: RunningRequests,
        waiting: deque[Request],
        max_running: int,
    ) -> None:
        self._manager = manager
        self._admission = admission
        self._running = running
        self._waiting = waiting
        self._max_running = max_running
        self._may_wait = manager.memory.may_wait
        self._lengths = manager.table.lengths

    def plan(self, budget: int) -> list[Chunk]:
        """Go on with prompts begun, then admit new ones, within a budget of tokens."""
        chunks: list[Chunk] = []
        for request in list(self._running.prefilling):
            chunk = self._next_chunk(request, budget)
            if chunk is None:
                return chunks
            chunks.append(chunk)
            budget -= chunk.end - chunk.start
        while budget > 0 and (admitted := self._admit()) is not None:
            chunk = self._next_chunk(admitted, budget)
            if chunk is None:
                assert self._may_wait, "admission has counted the pages"
                break
            chunks.append(chunk)
            budget -= chunk.end - chunk.start
        return chunks

    def _next_chunk(self, request: Request, budget: int) -> Chunk | None:
        """The next stretch of a prompt, as long as budget and memory allow; None when neither allows a token."""
        row, known = request.row, int(request.tokens.size)
        start = int(self._lengths[row])
        length = self._manager.growth(row, min(budget, known - start))
        if length <= 0:
            return None
        end = self._manager.chunk_end(row, start + length)
        slots = self._manager.extend([row], [end])
        if slots is None:
            assert self._may_wait, "`growth` has said that it fits"
            return None
        if end == known:
            self._running.start_decoding(request)
        return Chunk(request, row, start, end, slots, is_last=end == known)

    def _admit(self) -> Request | None:
        """Give the first of the queue a row and its cached prefix, if all its pages can be had."""
        if not self._waiting or len(self._running) >= self._max_running:
            return None
        if self._running.active and self._admission.is_hopeless():
            return None
        request = self._waiting[0]
        # What is cached for a request may leave no capacity for it: its state is kept while it is copied.
        fits, running = self._admission.fits, self._running
        if not fits(request, running) and not (self._manager.flush() and fits(request, running)):
            return None
        lease = self._manager.match(
            request.tokens, namespace=request.namespace, keys=request.keys, owner=request.owner_tag
        )
        assert lease is not None, "there is a row for every request that may run"
        self._waiting.popleft()
        if request.num_cached < 0:
            request.num_cached, request.num_dead = lease.num_cached, lease.num_dead
        self._running.begin(request, lease.row)
        if self._manager.row_states is not None and not request.stop_tokens:
            self._manager.row_states.expect_end(lease.row, request.max_length - 1)
        return request
