"""The scheduler with a runner of one's own. Run it: `python examples/runner.py`.

    Scheduler.step:   schedule  -->  runner.launch(step)  -->  tokens()  -->  process
                      which rows     computes them             the next ids   what has ended, what is cached

The scheduler decides which requests compute what, and where their entries go. The runner computes: here a small
attention model with random weights, whose keys and values lie in the manager's pool.
"""

from __future__ import annotations

import numpy as np
import torch

from kvstead import KVCacheManager, ModelLayout, Request, Scheduler, Step

WIDTH, LAYERS, VOCABULARY = 16, 2, 50
CONFIG = {
    "model_type": "llama",
    "num_hidden_layers": LAYERS,
    "hidden_size": WIDTH,
    "num_attention_heads": 1,
    "num_key_value_heads": 1,
    "head_dim": WIDTH,
    "vocab_size": VOCABULARY,
    "intermediate_size": WIDTH,
}


class Tokens:
    """A step that has been computed. On a GPU `tokens` would wait for it."""

    def __init__(self, ids: list[int]) -> None:
        self._ids = np.array(ids, dtype=np.int64)

    def tokens(self) -> np.ndarray:
        """One id for each decoding row, then one for each chunk: int64[rows + chunks]."""
        return self._ids


class AttentionRunner:
    """Computes steps on the tensors of a manager, row by row; a real one would compute all rows in one batch."""

    def __init__(self, manager: KVCacheManager, seed: int = 0) -> None:
        torch.manual_seed(seed)
        self.manager = manager
        self.embed = torch.randn(VOCABULARY, WIDTH)
        self.place = torch.randn(1024, WIDTH) / 2
        self.unembed = torch.randn(WIDTH, VOCABULARY)
        self.project = torch.randn(LAYERS, WIDTH, 3 * WIDTH) / WIDTH**0.5
        self._next: dict[int, int] = {}  # by row, the token that its last step has produced

    def launch(self, step: Step) -> Tokens:
        """Compute a token for each decoding row and for each chunk of a prompt, in that order."""
        decodes = [(row, length - 1, [self._next[row]]) for row, length in zip(step.rows, step.lengths, strict=True)]
        chunks = [(chunk.row, chunk.start, chunk.request.tokens[chunk.start : chunk.end]) for chunk in step.chunks]
        ids = []
        for row, start, tokens in decodes + chunks:
            self._next[row] = self._compute(row, start, tokens)
            ids.append(self._next[row])
        return Tokens(ids)

    def _compute(self, row: int, start: int, tokens: list[int] | np.ndarray) -> int:
        """The token behind `tokens`, which are at positions from `start` on."""
        end = start + len(tokens)
        slots = self.manager.physical_slots(self.manager.table.read(row)[:end])
        pool = self.manager.pool
        x = self.embed[torch.as_tensor(tokens)] + self.place[start:end]
        sees = torch.arange(end) <= torch.arange(start, end)[:, None]
        for layer in range(LAYERS):
            query, key, value = (x @ self.project[layer]).view(-1, 3, 1, WIDTH).unbind(1)
            pool.write(layer, slots[start:], key, value)
            keys, values = (part[:, 0] for part in pool.read(layer, slots))
            scores = (query[:, 0] @ keys.T / WIDTH**0.5).masked_fill(~sees, -torch.inf)
            x = x + scores.softmax(-1) @ values
        return int((x[-1] @ self.unembed).argmax())


def main() -> None:
    """Sixteen chats of two turns, in a memory that holds five at once."""
    layout = ModelLayout.from_config(CONFIG, name="example", cache_dtype="float32")
    manager = KVCacheManager(layout, num_slots=640, page_size=8, max_requests=8, max_length=256)
    scheduler = Scheduler(manager, chunk_tokens=64, decode_headroom=8)
    runner = AttentionRunner(manager)
    rng = np.random.default_rng(0)
    first = [Request(at, rng.integers(VOCABULARY, size=60 + at), max_new_tokens=30) for at in range(16)]
    waiting, num_steps, num_ended = list(first), 0, 0
    while waiting or not scheduler.is_idle:
        if waiting:
            scheduler.add(waiting.pop())
        outcome = scheduler.step(runner)
        num_steps += 1
        for request in outcome.ended if outcome else ():
            num_ended += 1
            if request in first:  # the chat goes on: what was said, and something new
                prompt = np.concatenate((request.tokens, rng.integers(VOCABULARY, size=10)))
                waiting.append(Request(16 + request.request_id, prompt, max_new_tokens=30))
                print(f"chat {request.request_id} said {request.output[:4].tolist()} ...")
    manager.audit()
    print(f"{num_ended} requests in {num_steps} steps, {scheduler.num_retractions} retractions")
    print(f"bytes now: {dict(manager.stats().by_state)}")


if __name__ == "__main__":
    main()
