"""The figures of a run as Markdown."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import date

import machine
from rows import ARENA_ROWS, ROWS, ArenaRow, Row

Figures = Mapping[str, float]

_METHOD = """
Each part of the scenarios runs {rounds} times, each in an interpreter of its own, kvstead and SGLang in turn; a
figure is the median of those rounds, and each of them the median of many single timed calls with the garbage
collector off. kvstead's checks are on, as always; SGLang has its defaults (no checks, plain torch paths on a CPU; on
a GPU it runs other code) and one thread of torch, as where it serves. Slots and lengths come as torch tensors on both
sides; keys of the trees come in each one's own type. Freed memory stays with the process while allocators are
measured, so that copies of SGLang's free list cause no page faults. Token pools are free but for what is measured, so
SGLang's cost, which follows the length of its free list, is at its highest there. SGLang's tree is its unified radix
cache on the Rust core, with the Python core in brackets. Prompts have 512 tokens, half of them shared by four prompts
on average; measured ones are fresh, their first half cached. Trees with windows look back over 128 tokens and hold the
window side of all that is cached; SGLang's are on the Rust core alone. Rows that decode with windows look back over
1,024 tokens and have nothing in the prefix cache; measured is all that a step asks of memory, for one row of 256: on
SGLang its scheduler's `alloc_for_decode`, on kvstead `KVCacheManager.decode`. kvstead releases a page once it has left
the window, SGLang two of them every 128 tokens. Requests with windows are freed by `free`, whose arbitrary slots SGLang
expands to whole pages first, and by segments, as its scheduler does. Device-resident allocators keep their indices on
the GPU if there is one, else on the CPU in its place, where both sides are plain torch on one thread; there kvstead's
checks are those of the host alone, its default. 1M is 2**20. The last column quotes other peers from an earlier run on
such a machine; they are not part of this one.
""".strip()

_ARENAS = """
SGLang's `UnifiedSWATokenToKVPoolAllocator`, `UnifiedMambaTokenToKVPoolAllocator` and
`UnifiedMambaSWATokenToKVPoolAllocator`, as its own factories make them, beside `UnifiedSWAAllocator`,
`UnifiedMambaAllocator` and `UnifiedMambaSWAAllocator`, on an arena of as many real bytes of the host: 32 a token and
side, 2,048 a state, so that books are measured and not memory. Both zero the token pages that they hand out. 1M and 4M
are the tokens that the arena has bytes for; where nothing is said, 1M. A request has its windows where there are
windows and a state where there are states. Eight run at a time; the oldest ends and another one begins. Most of the
arena is free, so SGLang's cost, which follows the length of its list of free ids, is at its highest. Lazy pools keep
holes until somebody needs their bytes; eager ones close them at every free, except, on both sides, those of windows
that lie between states and tokens. A decode step at page 64 begins one page in every other step; SGLang's is a Triton
kernel with nothing in its place on a CPU, so there is no figure for it. At page 1 it is its `alloc`. In the last two
rows of each kind the arena is full, and then every other page of the side that has to give way (windows, or tokens for
states) is freed. kvstead clears the bytes that are asked for. SGLang closes every hole of a side at an end; of windows
between the ends it moves as many pages as shall come free, whatever holes there are among them.
""".strip()


def render(ours: Figures, theirs: Figures, versions: Mapping[str, str], rounds: int, load: float) -> str:
    """A heading, what it ran on, the tables of what was measured, and how."""
    built = "".join(f", {name} {number}" for name, number in versions.items())
    place = f"{machine.num_cores()} cores of {machine.cpu_model()}, load {load:.1f} at the start"
    lines = [f"# Benchmarks, {date.today().isoformat()}", "", f"{place}; kvstead {machine.commit()}{built}.", ""]  # noqa: DTZ011
    head = ["operation", "kvstead", *(["SGLang", "ratio"] if theirs else []), "aim", "met", ""]
    if rows := [line(_cells(row, ours, theirs)) for row in ROWS if row.figure in ours]:
        lines += [line(head), line(["---"] + ["---:"] * (len(head) - 2) + ["---"]), *rows, ""]
        lines += [_METHOD.format(rounds=rounds), ""]
    return "\n".join([*lines, *_arena_lines(ours, theirs)])


def _arena_lines(ours: Figures, theirs: Figures) -> list[str]:
    """The table of the allocators of arenas, lazy and eager side by side."""
    head = ["operation"]
    for mode in ("", ", eager"):
        head += [f"kvstead{mode}", *([f"SGLang{mode}", "ratio"] if theirs else [])]
    lines = ["## Pools that share an arena", "", line(head), line(["---"] + ["---:"] * (len(head) - 1))]
    rows = [line(_arena_cells(row, ours, theirs)) for row in ARENA_ROWS if row.figure("lazy") in ours]
    return [*lines, *rows, "", _ARENAS, ""] if rows else []


def _arena_cells(row: ArenaRow, ours: Figures, theirs: Figures) -> list[str]:
    cells = [row.label]
    for figure in (row.figure("lazy"), row.figure("eager")):
        if figure not in ours:
            cells += [""] * (3 if theirs else 1)
            continue
        cells.append(_quantity(ours[figure] * row.scale, row.unit))
        if figure in theirs:
            cells += [_quantity(theirs[figure] * row.scale, row.unit), f"{theirs[figure] / ours[figure]:.1f}x"]
        elif theirs:
            cells += [row.absent, ""]
    return cells


def _cells(row: Row, ours: Figures, theirs: Figures) -> list[str]:
    value = ours[row.figure] * row.scale
    meets = row.meets(value)
    verdict = "" if meets is None else "yes" if meets else f"{max(value / row.aim, row.aim / value):.1f}x off"
    aim = "" if row.aim is None else f"{'>=' if row.least else '<='} {row.aim:,g} {row.unit}"
    return [row.label, _quantity(value, row.unit), *_peer_cells(row, ours, theirs), aim, verdict, row.note]


def _peer_cells(row: Row, ours: Figures, theirs: Figures) -> list[str]:
    if not theirs:
        return []
    if row.figure not in theirs:
        return ["", ""]
    cell = _quantity(theirs[row.figure] * row.scale, row.unit)
    if (python_core := f"{row.figure} python") in theirs:
        cell += f" ({_quantity(theirs[python_core] * row.scale, row.unit)})"
    return [cell, f"{theirs[row.figure] / ours[row.figure]:.1f}x"]


def _quantity(value: float, unit: str) -> str:
    """Three digits."""
    digits = 0 if value >= 100 else 1 if value >= 10 else 2
    return f"{value:,.{digits}f} {unit}"


def line(cells: list[str]) -> str:
    """One row of a table."""
    return f"| {' | '.join(cells)} |"
