"""How much of what a prefix cache finds is lost to windows, and how much no order of eviction could keep.

    python benchmarks/lost_windows.py trace.jsonl gpt-oss-20b 40

A replay says of each request how many tokens it found, and from how many it could continue. The bound knows the future.
It keeps a window from the last request that passed a place to the next one that continues there: an interval of
requests, worth the tokens found. At most K overlap, as many windows as the window side has room for beside running
requests, on average. For any price p of a window for one request, no choice is worth more than p times K times the
requests, and what each interval is worth above its price; the bound is the least of these sums.
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

from kvstead.engine import KVCacheManager, Scheduler
from kvstead.model import load_layout
from kvstead.replay.options import ReplayOptions
from kvstead.replay.readers import read_trace
from kvstead.replay.run import step_cost
from kvstead.replay.simulate import Replay

PAGE_SIZE = 16
_PRICES = np.geomspace(1e-4, 1e6, 400)  # tokens for each request that a window is kept


class Matches:
    """What each admitted request found: takes the place of a manager's `match`."""

    def __init__(self, manager: KVCacheManager, grain: int) -> None:
        self.found: list[int] = []
        self.cached: list[int] = []
        self.kept: list[tuple[int, int]] = []  # for how many requests a window would be kept, and the tokens it saves
        self._match, self._grain = manager.match, grain
        self._passed: dict[int, int] = {}  # by the tokens up to a place, the last request that had them

    def __call__(self, tokens: Any, **options: Any) -> Any:
        """Match, and note it."""
        lease = self._match(tokens, **options)
        if lease is not None:
            number, found = len(self.found), lease.num_cached + lease.num_dead
            self.found.append(found)
            self.cached.append(lease.num_cached)
            places = {hash(tokens[:end].tobytes()) for end in range(self._grain, len(tokens) + 1, self._grain)}
            here = hash(tokens[:found].tobytes())
            if found:
                self.kept.append((number - self._passed.get(here, number - 1), found))
            last_page = hash(tokens[: (len(tokens) - 1) // PAGE_SIZE * PAGE_SIZE].tobytes())
            self._passed |= dict.fromkeys(places | {here, last_page}, number)
        return lease


def most_kept(kept: list[tuple[int, int]], room: int, num_requests: int) -> int:
    """The bound on the tokens of which at most `room` windows at a time can keep the windows."""
    lengths, tokens = np.array(kept, dtype=np.float64).T
    sums = [price * room * num_requests + np.maximum(tokens - price * lengths, 0).sum() for price in _PRICES]
    return int(min([*sums, tokens.sum()]))


def main(path: str, model: str, gib: int) -> None:
    """Replay one trace on one model, and print what was found, used and lost, and the bound."""
    trace, layout = read_trace(path), load_layout(model)
    lengths = trace.prompt_lens + trace.output_lens
    manager = KVCacheManager(
        layout,
        gib << 30,
        expected_length=round(float(lengths.mean())),
        page_size=PAGE_SIZE,
        max_length=int(lengths.max()),
        storage=False,
    )
    matches = Matches(manager, trace.block_size or PAGE_SIZE)
    manager.match = matches  # type: ignore[method-assign]
    cost = step_cost(ReplayOptions((path,), model, num_bytes=gib << 30), layout)
    figures = Replay(trace, Scheduler(manager), cost).run().figures
    assert manager.window is not None, f"{model} has no window"
    side, window_bytes = figures.memory.by_side["window"], manager.window.pages(PAGE_SIZE) * PAGE_SIZE
    room = int((side["total_bytes"] - side["live"]) // (window_bytes * manager.window_token_bytes))
    found, cached = sum(matches.found), sum(matches.cached)
    kept = max(cached, most_kept(matches.kept, room, len(matches.found)))
    print(
        f"{model}, {gib} GiB: {found:,} tokens found, {1 - cached / found:.1%} lost; room for {room} windows beside "
        f"running requests, with which at least {1 - kept / found:.1%} is lost"
    )


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
