"""Host time of a step of SGLang's real scheduler, on its own classes and on kvstead's: the same requests, run by run.

The runs are those of the tests beside SGLang (tests/integrations/sglang/engine), without its checks of every step.
"""

from __future__ import annotations

import platform
import sys
from collections import defaultdict
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

from peers import SGLANG, sglang_python
from table import line

sys.path.append(str(Path(__file__).resolve().parents[1] / "tests" / "integrations" / "sglang"))

from engine.client import Engines
from engine.configurations import Configuration

ROUNDS = 6
MODES = ("off", "strict")
PARTS = ("get", "run", "result")
KINDS = {
    "get decode": "next batch, decode",
    "get extend": "next batch, prefill",
    "run decode": "run less the model, decode",
    "result decode": "process the result, decode",
    "result extend": "process the result, prefill",
}
_BUSY = {"workload": "stream", "requests": 48, "running": 16, "chunk": 256, "checked": False}
POOLS = [
    Configuration("llama, 2k tokens", "llama", tokens=2048, **_BUSY),
    Configuration("llama, 300k tokens", "llama", tokens=300_000, **_BUSY),
    Configuration("llama, 4M tokens", "llama", tokens=4_000_000, **_BUSY),
    Configuration(
        "the same, nothing cached", "llama", tokens=4_000_000, **_BUSY, settings={"disable_radix_cache": True}
    ),
    Configuration("states, unified, 2k tokens", "lfm2", tokens=2048, overlap=False, unified=True, states=48, **_BUSY),
]

Seconds = Mapping[str, Sequence[float]]

_METHOD = """
SGLang {version}'s `Scheduler` with its worker, model runner and unified radix cache, on its own classes and, with
`KVSTEAD_SGLANG=strict`, on kvstead's: {rounds} runs of each, in turn, each in a process of its own on a CPU. 48
requests of 35 to 215 tokens over four shared prefixes arrive at every other step and decode 16 to 63 tokens greedily,
16 at a time; they come twice, and the second time counts. Pages have one token. The model is tiny, and its forward pass
is left out. Times are what the scheduler's thread spent on a CPU. A cell is the median of a kind of call in a run; "all
of a step" is all three calls in the mean over a run's steps, those at which requests end included. Of the runs the
lowest figure counts, because a neighbour on the same cores adds a third at times. In the 2k pools prefixes are evicted.
In the larger ones everything stays cached and next to nothing is freed, except where nothing is cached: there each end
of a request frees its tokens, which costs SGLang a copy of its list of free ones. SGLang's checks of every step are
off, as they are by default.
""".strip()


def versions() -> dict[str, str]:
    """What it ran on."""
    return {"python": platform.python_version(), "torch": version("torch"), "sglang": SGLANG}


def report() -> str:
    """A table as Markdown, and how it came about; empty where SGLang cannot be installed."""
    python = sglang_python()
    if python is None:
        return ""
    head = ["pool", "part of a step", "kvstead", "SGLang", "ratio"]
    lines = ["## SGLang's scheduler", "", line(head), line(["---", "---", "---:", "---:", "---:"])]
    with TemporaryDirectory() as home, Engines(Path(home), python) as engines:
        for pool in POOLS:
            print(f"steps of SGLang's scheduler: {pool.name}", file=sys.stderr, flush=True)
            lines += _rows(pool, measure(engines, pool))
    return "\n".join([*lines, "", _METHOD.format(version=SGLANG, rounds=ROUNDS), ""])


def measure(engines: Engines, pool: Configuration) -> dict[str, list[dict[str, float]]]:
    """Microseconds of each figure, by mode and run."""
    figures: dict[str, list[dict[str, float]]] = defaultdict(list)
    for number in range(ROUNDS):
        for mode in MODES if number % 2 else reversed(MODES):
            (outcome,) = engines.run(pool, mode)
            assert not outcome["error"], outcome["error"]
            figures[mode].append(_figures(outcome["seconds"][1]))
    return figures


def _figures(seconds: Seconds) -> dict[str, float]:
    found = {kind: 1e6 * median(seconds[kind]) for kind in KINDS if kind in seconds}
    steps = [sum(map(sum, (times for kind, times in seconds.items() if kind.split()[0] == part))) for part in PARTS]
    number = sum(len(times) for kind, times in seconds.items() if kind.startswith("get "))
    return found | {"all of a step": 1e6 * sum(steps) / number}


def _rows(pool: Configuration, figures: Mapping[str, Sequence[Mapping[str, float]]]) -> list[str]:
    rows = []
    theirs, ours = (figures[mode] for mode in MODES)
    for kind, label in (KINDS | {"all of a step": "all of a step"}).items():
        if kind in theirs[0]:
            our, their = (min(run[kind] for run in runs) for runs in (ours, theirs))
            rows.append(line([pool.name, label, f"{our:,.0f} us", f"{their:,.0f} us", f"{their / our:.2f}x"]))
    return rows


if __name__ == "__main__":
    print(report())
