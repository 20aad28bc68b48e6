"""A serving engine on a `KVCacheManager`, and nothing else of kvstead. Run it: `python examples/engine.py`.

    waiting -- match --> prefilling -- extend, commit, cache --> decoding -- decode, commit --> finish
       ^                                                             |
       '------------------------- retract --------------------------'

The engine decides what is computed; the manager says where keys and values go and whether they fit.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

import numpy as np
import torch

from kvstead import KVCacheManager, ModelLayout
from kvstead.pools import KVPool

HEADS, HEAD_DIM, LAYERS, VOCABULARY = 2, 8, 2, 50
WIDTH = HEADS * HEAD_DIM
CONFIG = {
    "model_type": "llama",
    "num_hidden_layers": LAYERS,
    "hidden_size": WIDTH,
    "num_attention_heads": HEADS,
    "num_key_value_heads": HEADS,
    "head_dim": HEAD_DIM,
    "vocab_size": VOCABULARY,
    "intermediate_size": WIDTH,
}


class Model:
    """A small attention model with random weights; its keys and values live in the manager's pool."""

    def __init__(self, seed: int = 0) -> None:
        torch.manual_seed(seed)
        self.embed = torch.randn(VOCABULARY, WIDTH)
        self.place = torch.randn(4096, WIDTH) / 2
        self.project = torch.randn(LAYERS, WIDTH, 3 * WIDTH) / WIDTH**0.5

    def __call__(self, pool: KVPool, tokens: list[int], start: int, slots: torch.Tensor) -> int:
        """The token behind `tokens`, which are at positions from `start` on; `slots` are those of the whole row."""
        end = start + len(tokens)
        x = self.embed[torch.as_tensor(tokens)] + self.place[start:end]
        sees = torch.arange(end) <= torch.arange(start, end)[:, None]
        for layer in range(LAYERS):
            query, key, value = (x @ self.project[layer]).view(-1, 3, HEADS, HEAD_DIM).unbind(1)
            pool.write(layer, slots[start:], key, value)
            keys, values = pool.read(layer, slots)
            scores = torch.einsum("qhd,khd->hqk", query, keys) / HEAD_DIM**0.5
            mixed = scores.masked_fill(~sees, -torch.inf).softmax(-1)
            x = x + torch.einsum("hqk,khd->qhd", mixed, values).reshape(-1, WIDTH)
        return int((x[-1] @ self.embed.T).argmax())


@dataclass(eq=False)
class Request:
    """A prompt, how many tokens to generate, and those that were."""

    prompt: list[int]
    num_new: int
    output: list[int] = field(default_factory=list)
    row: int = 0
    num_cached: int = 0


class Engine:
    """Continuous batching: decodes every running request in a step, and computes prompts by chunks beside them."""

    def __init__(self, model: Model, manager: KVCacheManager, chunk: int = 32) -> None:
        self.model, self.manager, self.chunk = model, manager, chunk
        self.waiting: deque[Request] = deque()
        self.running: list[Request] = []
        self.num_retractions = 0

    def step(self) -> None:
        """Every running request gets on; one waiting request may join them."""
        if self.waiting and (lease := self.manager.match(self._tokens(self.waiting[0]))) is not None:
            request = self.waiting.popleft()
            request.row, request.num_cached = lease.row, lease.num_cached
            self.running.append(request)
        for request in list(self.running):
            if request in self.running:
                self._advance(request)

    def _advance(self, request: Request) -> None:
        manager, row, tokens = self.manager, request.row, self._tokens(request)
        start = int(manager.computed[row])
        end = start + manager.growth(row, min(self.chunk, len(tokens) - start))
        if end == start:  # nothing fits: the newest request steps back, its tokens stay known
            self._retract(self.running[-1])
            return
        manager.extend([row], [end])
        slots = manager.physical_slots(manager.table.read(row))
        token = self.model(manager.pool, tokens[start:end], start, slots)
        manager.commit([row], [end], [token])
        manager.cache(row)  # whole pages can be shared from now on
        if end == len(tokens):
            request.output.append(token)
        if len(request.output) == request.num_new:
            self.running.remove(request)
            manager.finish(row)

    def _retract(self, request: Request) -> None:
        self.running.remove(request)
        self.manager.retract(request.row)
        self.waiting.appendleft(request)
        self.num_retractions += 1

    def _tokens(self, request: Request) -> list[int]:
        return request.prompt + request.output


def main() -> None:
    """Twelve requests that share a system prompt, in a memory that is too small for all of them at once."""
    layout = ModelLayout.from_config(CONFIG, name="example", cache_dtype="float32")
    manager = KVCacheManager(layout, num_slots=200, page_size=8, max_requests=8, max_length=512)
    rng = np.random.default_rng(0)
    system = rng.integers(VOCABULARY, size=48).tolist()
    requests = [Request(system + rng.integers(VOCABULARY, size=8 + at).tolist(), 24) for at in range(12)]
    engine = Engine(Model(), manager)
    engine.waiting.extend(requests)
    num_steps = 0
    while engine.waiting or engine.running:
        engine.step()
        num_steps += 1
    manager.audit()
    found = sum(request.num_cached for request in requests)
    total = sum(len(request.prompt) for request in requests)
    print(f"{len(requests)} requests in {num_steps} steps, {engine.num_retractions} retractions")
    print(f"{found} of {total} prompt tokens were cached; bytes now: {dict(manager.stats().by_state)}")


if __name__ == "__main__":
    main()
