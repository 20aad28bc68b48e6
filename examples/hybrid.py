"""A serving loop for a hybrid model: three kinds of cache in one memory. Run it: `python examples/hybrid.py`.

    layer 0   full attention      an entry for every token               manager.physical_slots(slots of a row)
    layer 1   sliding window      an entry for each of the last 8        manager.window_slots(slots of a row)
    layer 2   recurrent           one state a request                    manager.state_slots(rows)

In one arena (`pool_layout="unified"`) each kind grows into what the others leave, and pages move to make room: ask for
places anew after each `extend`. A prefix is found again where a copy of its state was kept: `checkpoint` copies states,
and `chunk_end` ends chunks where a copy is useful.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

import numpy as np
import torch

from kvstead import CacheKind, KVCacheManager, LayerCache, ModelLayout, TokenCache
from kvstead.model import StatePart
from kvstead.pools import TokenTensors

WIDTH, WINDOW, VOCABULARY = 16, 8, 50
ENTRY = {"num_heads": 1, "key_dim": WIDTH, "value_dim": WIDTH, "dtype": "float32"}
BYTES = {"key_bytes": 4 * WIDTH, "value_bytes": 4 * WIDTH}
LAYOUT = ModelLayout(
    "hybrid example",
    (
        LayerCache(0, TokenCache(CacheKind.FULL, **ENTRY, **BYTES)),
        LayerCache(1, TokenCache(CacheKind.WINDOW, **ENTRY, **BYTES, span=WINDOW)),
        LayerCache(2, state=(StatePart("memory", (WIDTH,), "float32"),)),
    ),
)


class Model:
    """Random weights; what it caches lies in the manager's pools."""

    def __init__(self, manager: KVCacheManager, seed: int = 0) -> None:
        torch.manual_seed(seed)
        self.manager = manager
        self.embed, self.unembed = torch.randn(VOCABULARY, WIDTH), torch.randn(WIDTH, VOCABULARY)
        self.place = torch.randn(256, WIDTH) / 2
        self.project = torch.randn(2, WIDTH, 3 * WIDTH) / WIDTH**0.5

    def __call__(self, row: int, tokens: list[int], start: int) -> int:
        """The token behind `tokens`, which are at positions from `start` on in the row."""
        manager = self.manager
        slots = manager.table.read(row)
        first = max(0, start - WINDOW + 1)  # what the window of the first new token sees
        x = self.embed[torch.as_tensor(tokens)] + self.place[start : start + len(tokens)]
        x = self._attend(manager.pool, 0, x, manager.physical_slots(slots), start)
        x = self._attend(manager.window_pool, 1, x, manager.window_slots(slots[first:]), start)
        state = manager.state_pool.part(2, "memory")[int(manager.state_slots([row])[0])]
        for token in x:  # the state is read and overwritten in place
            state.mul_(0.9).add_(token.tanh(), alpha=0.1)
        return int(((x[-1] + 4 * state) @ self.unembed).argmax())

    def _attend(self, pool: TokenTensors, layer: int, x: torch.Tensor, slots: torch.Tensor, start: int) -> torch.Tensor:
        """One attention layer over the entries at `slots`, of which the last are those of the new tokens."""
        end = start + len(x)
        query, key, value = (x @ self.project[layer]).view(-1, 3, 1, WIDTH).unbind(1)
        pool.write(layer, slots[len(slots) - len(x) :], key, value)
        keys, values = (part[:, 0] for part in pool.read(layer, slots))
        behind = torch.arange(start, end)[:, None] - torch.arange(end - len(slots), end)
        sees = (behind >= 0) & (behind < (WINDOW if layer == 1 else end))
        scores = (query[:, 0] @ keys.T / WIDTH**0.5).masked_fill(~sees, -torch.inf)
        return x + scores.softmax(-1) @ values


@dataclass(eq=False)
class Request:
    """A prompt, how many tokens to generate, and those that were."""

    prompt: list[int]
    num_new: int
    output: list[int] = field(default_factory=list)
    row: int = 0
    num_cached: int = 0


def serve(manager: KVCacheManager, requests: list[Request], chunk: int = 16) -> int:
    """Answer all requests; how often one of them had to step back for want of memory."""
    model, waiting, running, num_retractions = Model(manager), deque(requests), [], 0
    while waiting or running:
        if waiting and (lease := manager.match(waiting[0].prompt + waiting[0].output)) is not None:
            request = waiting.popleft()
            request.row, request.num_cached = lease.row, lease.num_cached
            running.append(request)
        manager.checkpoint([request.row for request in running])  # between two steps
        for request in list(running):
            if request not in running:  # stepped back for another one
                continue
            row, tokens = request.row, request.prompt + request.output
            start = int(manager.computed[row])
            end = start + manager.growth(row, min(chunk, len(tokens) - start))
            if end == start:  # there is no capacity: the newest request steps back, what it has computed stays cached
                last = running.pop()
                manager.retract(last.row)
                waiting.appendleft(last)
                num_retractions += 1
                continue
            end = manager.chunk_end(row, end)
            manager.extend([row], [end])
            token = model(row, tokens[start:end], start)
            manager.commit([row], [end], [token])
            manager.cache(row)
            if end == len(tokens):
                request.output.append(token)
            if len(request.output) == request.num_new:
                running.remove(request)
                manager.finish(row)
    return num_retractions


def main() -> None:
    """Twelve requests with a system prompt in common, in 36 KiB."""
    memory = KVCacheManager(
        LAYOUT, 36 << 10, pool_layout="unified", page_size=4, state_interval=16, max_requests=6, max_length=256
    )
    rng = np.random.default_rng(0)
    system = rng.integers(VOCABULARY, size=48).tolist()
    requests = [Request(system + rng.integers(VOCABULARY, size=8 + at).tolist(), 24) for at in range(12)]
    num_retractions = serve(memory, requests)
    memory.audit()
    found, total = sum(request.num_cached for request in requests), sum(len(request.prompt) for request in requests)
    print(f"{len(requests)} requests, {num_retractions} retractions, {found} of {total} prompt tokens were cached")
    for side, stats in memory.stats().by_side.items():
        print(f"{side:6}  {stats.total_bytes:6,} bytes now, {stats.cached:6,} of them cached")


if __name__ == "__main__":
    main()
