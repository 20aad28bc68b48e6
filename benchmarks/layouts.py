"""How much of a memory is usable: four ways to lay out the caches of a model, filled and churned by the same requests.

Nothing is timed. A request grows by chunks to its full length and its windows slide with it; no prefixes are shared.
When one is refused, the bytes that requests hold are noted, one of them goes at random, and the refused one is tried
again.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from kvstead.engine import KVCacheManager, MemoryStats
from kvstead.model import ModelLayout
from table import line

MEMORY = 40 << 30
PAGE_SIZE = 16
CHUNK = 2048  # tokens
CHAT_MEAN = 1200  # tokens; what the static layout is divided for
SIGMA = 0.7
LONGEST = 65_536
LAYOUTS = ("static", "padded", "unified", "ideal")
MODELS = {
    "gemma-3-27b": ModelLayout.preset("gemma-3-27b"),
    "gpt-oss-120b": ModelLayout.preset("gpt-oss-120b"),
    "qwen3-next-80b-a3b, bf16 states": ModelLayout.preset("qwen3-next-80b-a3b", state_dtype="bfloat16"),
    "qwen3-next-80b-a3b, fp32 states": ModelLayout.preset("qwen3-next-80b-a3b"),
}
_TURNOVERS = 1.0  # how many times as many requests go during the churn as were there at the first refusal
_LEAST_REFUSALS = 200


_METHOD = f"""
Requests fill {MEMORY >> 30} GiB in pages of {PAGE_SIZE}; nothing is timed. Each grows by chunks of {CHUNK:,} tokens
to its full length, its windows slide with it, and no prefix is shared. When one is refused, what requests hold is
noted, one of them goes at random, and the refused one tries again, until as many have gone as there were at first. A
cell is the share of the memory that held live pages and states at the first refusal / in the mean over all refusals, in
percent; in brackets, in the mean, that of the tokens alone, without the empty ends of pages and of windows. Mixes:
short, 64-512 tokens in and 32-256 out; chat, lognormal with a mean of {CHAT_MEAN:,} tokens (sigma {SIGMA}); long,
16k-64k tokens; and shares of short and long ones. `static` is divided for chat; `padded` counts what one size of page
for all kinds costs, with layers grouped as by vLLM's hybrid manager; `ideal` counts the bytes of pages and nothing
else. Where `unified` falls short of 100 %, the last request did not fit (as in `ideal`), or bytes are in the sink or
between spans: the second table says how many.
""".strip()


def short(rng: np.random.Generator) -> int:
    """64 .. 512 tokens in, 32 .. 256 out."""
    return int(rng.integers(64, 513) + rng.integers(32, 257))


def chat(rng: np.random.Generator) -> int:
    """Lognormal with a mean of 1,200 tokens."""
    return min(LONGEST, max(2, round(rng.lognormal(np.log(CHAT_MEAN) - SIGMA**2 / 2, SIGMA))))


def long(rng: np.random.Generator) -> int:
    """16k .. 64k tokens."""
    return int(rng.integers(16_384, LONGEST + 1))


def mixed(share: float) -> Callable[[np.random.Generator], int]:
    """Short ones with this probability, else long ones."""
    return lambda rng: short(rng) if rng.random() < share else long(rng)


MIXES = {"short": short, "chat": chat, "50/50": mixed(0.5), "90/10": mixed(0.9), "long": long}


@dataclass(slots=True)
class Usage:
    """What was found for one model, layout and mix.

    held, tokens: shares of the memory at refusals, of what requests hold and of their tokens alone. first: the memory
    at the first refusal. moved_per_freed: bytes moved for every byte given back.
    """

    held: list[float] = field(default_factory=list)
    tokens: list[float] = field(default_factory=list)
    first: MemoryStats | None = None
    moved_per_freed: float = 0.0


class Churn:
    """One manager, filled to the brim and then kept there."""

    def __init__(self, layout: ModelLayout, pool_layout: str, mix: Callable[[np.random.Generator], int]) -> None:
        self.layout = layout
        self.manager = KVCacheManager(layout, MEMORY, **self._options(pool_layout))
        self.usage = Usage()
        self._mix = mix
        self._rng = np.random.default_rng(11)
        self._tokens: dict[int, int] = {}  # row -> bytes of its tokens and state
        self._taken = 0  # bytes

    def run(self) -> Usage:
        """Until so many requests have gone."""
        most = None
        while most is None or len(self.usage.held) < most:
            self._serve(self._mix(self._rng))
            if most is None and self.usage.held:
                most = max(_LEAST_REFUSALS, int(_TURNOVERS * len(self._tokens)))
        chain, freed = self.manager.chain, self._taken - self.manager.stats().live
        self.usage.moved_per_freed = chain.bytes_moved / freed if chain else 0.0
        return self.usage

    def _serve(self, length: int) -> None:
        while (lease := self.manager.match(np.zeros(length, dtype=np.int32))) is None:
            self._refuse()
        row, end = lease.row, 0
        self._taken += self.manager.state_bytes
        while end < length - 1:
            start, end = end, min(end + CHUNK, length - 1)
            while self.manager.extend([row], [end]) is None:
                self._refuse(row)
            self._computed(row, start, end)
        while self.manager.decode([row]) is None:
            self._refuse(row)
        self._computed(row, end, length)

    def _computed(self, row: int, start: int, end: int) -> None:
        self.manager.commit([row], [end], [0])
        self._tokens[row] = self.layout.sequence_bytes(end)
        pages = self.manager.pages(end) - self.manager.pages(start)
        self._taken += pages * (self.manager.plan.own_page_bytes["full"] + self.manager.plan.own_page_bytes["window"])

    def _refuse(self, row: int | None = None) -> None:
        """Note how full the memory is, and let another request go."""
        stats = self.manager.stats()
        if self.usage.first is None:
            self.usage.first = stats
        self.usage.held.append(stats.live / MEMORY)
        self.usage.tokens.append(sum(self._tokens.values()) / MEMORY)
        others = [other for other in self._tokens if other != row]
        gone = others[self._rng.integers(len(others))]
        del self._tokens[gone]
        self.manager.abort(gone)

    def _options(self, pool_layout: str) -> dict[str, object]:
        options = {
            "pool_layout": pool_layout,
            "page_size": PAGE_SIZE,
            "prefix_cache": False,
            "storage": False,
            "max_requests": 8192,
            "max_length": LONGEST + 1,
        }
        if pool_layout == "static":
            options["expected_length"] = CHAT_MEAN
            if self.layout.state_bytes:
                options["num_states"] = MEMORY // self.layout.sequence_bytes(CHAT_MEAN)
        return options


def report() -> str:
    """Two tables as Markdown: what is usable, and what becomes of the rest in an arena."""
    lines = ["## Usable memory by layout", "", line(["model", "layout", *MIXES]), line(["---"] * (2 + len(MIXES)))]
    arenas: list[str] = []
    for model, layout in MODELS.items():
        for pool_layout in LAYOUTS:
            cells = []
            for mix, draw in MIXES.items():
                usage = Churn(layout, pool_layout, draw).run()
                held, tokens = 100 * np.array(usage.held), 100 * np.array(usage.tokens)
                cells.append(f"{held[0]:.1f} / {held.mean():.1f} ({tokens.mean():.1f})")
                if pool_layout == "unified":
                    arenas.append(line([model, mix, *_arena_cells(usage)]))
            lines.append(line([model, pool_layout, *cells]))
    head = ["arena of", "mix", "page ends %", "holes %", "gaps %", "sink %", "padding %", "bytes moved a byte freed"]
    return "\n".join([*lines, "", line(head), line(["---"] * len(head)), *arenas, "", _METHOD, ""])


def _arena_cells(usage: Usage) -> list[str]:
    """What the bytes of an arena that are no tokens were at the first refusal, and what moving costs."""
    stats = usage.first
    assert stats is not None, "the memory was filled"
    lost = [stats.by_state[state] / MEMORY for state in ("hole", "gap", "sink", "padding")]
    shares = [stats.live / MEMORY - usage.tokens[0], *lost]
    return [*(f"{100 * share:.2f}" for share in shares), f"{usage.moved_per_freed:.3f}"]


if __name__ == "__main__":
    print(report())
