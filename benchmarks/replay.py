"""The whole program on a production trace, in a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

TRACE = Path(__file__).resolve().parents[2] / "shared" / "traces" / "mooncake_conversation.jsonl"
OPTIONS = ["--memory", "40GiB", "--page-size", "16", "--gpu", "h100-sxm", "--json"]
MODELS = {"replay": "llama-3.1-8b", "replay windows": "gemma-3-27b"}


def replay_figures() -> Iterator[tuple[str, float]]:
    """The figures of a model without windows and of one in which five of six layers have them."""
    for name, model in MODELS.items():
        yield from figures_of(name, model)


def figures_of(name: str, model: str) -> Iterator[tuple[str, float]]:
    """Requests a second, the process's peak memory in bytes, and microseconds of memory management a step."""
    command = [str(Path(sys.executable).with_name("kvstead")), "replay", str(TRACE), "--model", model, *OPTIONS]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        assert process.stdout is not None, "the output is piped"
        summary = json.loads(process.stdout.read())
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    assert process.returncode == 0, "the replay ends well"
    yield f"{name} requests a second", summary["requests"]["total"] / summary["wall_s"]
    yield f"{name} peak bytes", usage.ru_maxrss * 1024
    yield f"{name} memory us a step", summary["memory_us_per_step"]
