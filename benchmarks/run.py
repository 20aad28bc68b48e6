"""`make bench`: kvstead beside SGLang and transformers, part by part in turn.

Prints tables and keeps them in `benchmarks/results/`. Parts may be named on the command line; by default all are
measured.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import defaultdict
from datetime import date
from pathlib import Path
from statistics import median

import engine_steps
import layouts
import machine
import models
from peers import sglang_python
from replay import TRACE
from table import render

HERE = Path(__file__).resolve().parent
ROUNDS = 3
# glibc keeps what is freed. Else each copy of a long free list, which only the peer makes, is mostly page faults.
KEEP_FREED = {"MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": str(1 << 34)}
BOTH = ("allocators", "windows", "device", "unified", "pools", "tree", "window_tree")
OURS = ("pages", "import", "replay")
ALL = [*BOTH, *OURS, "engine", "layouts", "models"]


def main(parts: list[str]) -> None:
    load = os.getloadavg()[0]
    if load > machine.num_cores() / 4:
        print(f"The machine is busy (load {load:.1f}); figures of a quiet one mean more.", flush=True)
    if "replay" in parts and not TRACE.exists():
        print("The conversation trace is not beside the project: no replay is measured.")
    medians, versions = measure_in_turn(parts)
    if "models" in parts:
        versions |= models.versions()
    if "engine" in parts:
        versions |= engine_steps.versions()
    table = render(medians["kvstead"], medians["sglang"], versions, ROUNDS, load)
    if "engine" in parts:
        table += "\n" + engine_steps.report()
    if "layouts" in parts:
        print("usable memory by layout", file=sys.stderr, flush=True)
        table += "\n" + layouts.report()
    if "models" in parts:
        table += "\n" + models.report()
    print(table)
    some = "" if parts == ALL else f"-{'-'.join(parts)}"
    target = HERE / "results" / f"{date.today().isoformat()}-{machine.label()}{some}.md"  # noqa: DTZ011
    target.parent.mkdir(exist_ok=True)
    target.write_text(table)
    print(f"Written to benchmarks/results/{target.name}", file=sys.stderr)


def measure_in_turn(parts: list[str]) -> tuple[dict[str, dict[str, float]], dict[str, str]]:
    """The medians of a few rounds, by library and figure, and the versions of what they ran on."""
    has_peer = any(part in BOTH for part in parts)
    pythons = {"kvstead": Path(sys.executable), "sglang": sglang_python() if has_peer else None}
    samples: dict[str, dict[str, list[float]]] = {library: defaultdict(list) for library in pythons}
    versions: dict[str, str] = {}
    for round_number in range(ROUNDS):
        for part in [part for part in BOTH + OURS if part in parts]:
            for library, python in pythons.items():
                if (
                    python is None
                    or (library != "kvstead" and part in OURS)
                    or (part == "replay" and not TRACE.exists())
                ):
                    continue
                print(f"round {round_number + 1} of {ROUNDS}: {part} of {library}", file=sys.stderr, flush=True)
                outcome = measure(python, library, part)
                versions |= outcome["versions"]
                for figure, value in outcome["figures"].items():
                    samples[library][figure].append(value)
    medians = {library: {name: median(values) for name, values in got.items()} for library, got in samples.items()}
    return medians, versions


def measure(python: Path, library: str, part: str) -> dict[str, dict]:
    """One part on one side, in an interpreter of its own."""
    command = [str(python), str(HERE / "side.py"), library, part]
    settings = KEEP_FREED if part in {"allocators", "windows", "device", "unified"} else {}
    done = subprocess.run(command, stdout=subprocess.PIPE, check=True, text=True, env=os.environ | settings)
    return json.loads(done.stdout.splitlines()[-1])


if __name__ == "__main__":
    main(sys.argv[1:] or ALL)
