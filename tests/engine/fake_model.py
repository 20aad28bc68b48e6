"""A model without weights: what it caches for a token is a hash of everything up to that token.

Its pool remembers which hash was written to which slot. Every step reads every row back, so a slot that was handed out
twice, freed too early or mapped to the wrong position shows up as a wrong hash, and as wrong output in the end.
"""

import numpy as np

from kvstead.engine import KVCacheManager, Step
from kvstead.model import ModelLayout
from kvstead.prefix import Namespace

VOCABULARY = 5
PLAIN = Namespace()
POISON = -1
_MODULUS = 2**31 - 1


def tiny_layout() -> ModelLayout:
    """Two layers of one head: 32 bytes a token."""
    return ModelLayout.from_config(
        {
            "model_type": "llama",
            "num_hidden_layers": 2,
            "hidden_size": 8,
            "num_attention_heads": 2,
            "num_key_value_heads": 1,
            "head_dim": 4,
            "vocab_size": VOCABULARY,
            "intermediate_size": 8,
        },
        name="tiny",
    )


def tiny_manager(num_slots, page_size=1, **options) -> KVCacheManager:
    """A manager of so many slots that keeps books only."""
    options = {"max_requests": 16, "max_length": 512, "storage": False, **options}
    return KVCacheManager(tiny_layout(), num_slots=num_slots, page_size=page_size, **options)


def prefix_hashes(tokens, namespace=PLAIN) -> list[int]:
    """What the model caches at each position."""
    value = hash(namespace) % _MODULUS
    hashes = []
    for token in tokens:
        value = (value * 48271 + int(token) + 1) % _MODULUS
        hashes.append(value)
    return hashes


def sample(hash_value: int) -> int:
    """The token that follows a prefix."""
    return hash_value // 7 % VOCABULARY


def generate(prompt, max_new_tokens, namespace=PLAIN, stop_tokens=()) -> list[int]:
    """What the model says after a prompt, computed alone and without any cache."""
    tokens = [int(token) for token in prompt]
    for _ in range(max_new_tokens):
        tokens.append(sample(prefix_hashes(tokens, namespace)[-1]))
        if tokens[-1] in stop_tokens:
            break
    return tokens[len(prompt) :]


class _Done:
    def __init__(self, tokens):
        self._tokens = tokens

    def tokens(self):
        return self._tokens


class FakeRunner:
    """Writes to and reads from a pool of hashes, in the order in which steps are launched."""

    def __init__(self, manager: KVCacheManager) -> None:
        self.manager = manager
        self.pool = np.full(manager.num_slots + manager.page_size, POISON, dtype=np.int64)
        self._known: dict[int, list[int]] = {}  # row -> tokens, as far as this runner has sampled them
        self._namespace: dict[int, Namespace] = {}
        self.num_reads = 0

    def launch(self, step: Step) -> _Done:
        """Compute a step at once."""
        sampled = []
        for row, length, slot in zip(step.rows.tolist(), step.lengths.tolist(), step.slots.tolist(), strict=True):
            sampled.append(self._compute(row, length - 1, length, [slot]))
        for chunk in step.chunks:
            request = chunk.request
            self._known[chunk.row] = request.tokens[: chunk.end].tolist()
            self._namespace[chunk.row] = request.namespace
            sampled.append(self._compute(chunk.row, chunk.start, chunk.end, chunk.slots.tolist()))
        return _Done(sampled)

    def poison_free_slots(self) -> None:
        """Overwrite what nobody owns, as another user of the memory might."""
        free = np.flatnonzero(self.manager.allocator.page_states() != 1)
        page_size = self.manager.page_size
        self.pool.reshape(-1, page_size)[free] = POISON

    def _compute(self, row: int, start: int, end: int, slots: list[int]) -> int:
        tokens = self._known[row][:end]
        hashes = prefix_hashes(tokens, self._namespace[row])
        self.pool[slots] = hashes[start:end]
        table_row = self.manager.table.read(row, 0, end)
        assert table_row[start:end].tolist() == slots, "the row holds the slots that the step names"
        assert self.pool[table_row].tolist() == hashes, f"row {row} reads what it wrote, at every position"
        self.num_reads += end
        token = sample(hashes[-1])
        self._known[row] = [*tokens, token]
        return token
