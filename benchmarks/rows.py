"""The rows of the table: what is measured, in which unit, and what kvstead aims at."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Row:
    """One figure. `scale` turns what was measured into `unit`; `least` means that more is better."""

    figure: str
    label: str
    unit: str = "us"
    aim: float | None = None
    scale: float = 1.0
    least: bool = False
    note: str = ""

    def meets(self, value: float) -> bool | None:
        """Whether a value, in the row's unit, meets the aim; None where there is no aim."""
        if self.aim is None:
            return None
        return value >= self.aim if self.least else value <= self.aim


@dataclass(frozen=True, slots=True)
class ArenaRow:
    """One operation of the allocators of an arena, in lazy and eager mode. `absent` is why the peer has no figure."""

    kind: str
    operation: str
    label: str
    unit: str = "us"
    scale: float = 1.0
    absent: str = ""

    def figure(self, mode: str) -> str:
        """The name of its figure in that mode."""
        return f"unified {self.kind} {self.operation} {mode}"


def _token_rows() -> list[Row]:
    frees = [
        Row(f"token free {how} {pool}", f"token: free 2,048 slots, {how}, pool of {pool}", aim=aim)
        for how, aim in (("contiguous", 6), ("scattered", 40))
        for pool in ("1M", "4M", "16M")
    ]
    groups = [
        Row(f"token group {pool}", f"token: 64 requests (131k slots) in one group, pool of {pool}", aim=350)
        for pool in ("1M", "4M")
    ]
    return frees + groups


def _window_rows() -> list[Row]:
    return [
        Row(f"swa {figure}", f"windows, page 64: {what}", aim=aim)
        for figure, what, aim in (
            ("free 1M", "free a request of 2,048, pool of 1M", 15),
            ("free_segment 1M", "free_segment of a request of 2,048, pool of 1M", None),
            ("group 1M", "64 requests in one group, pool of 1M", 1000),
            ("group by segments 1M", "64 requests in one group by free_segment", 1000),
            ("window release 256", "decode 256 rows, all release pages, a row", 2),
            ("window step 256", "decode 256 rows, few release pages, a row", None),
        )
    ]


def _device_rows() -> list[Row]:
    return [
        Row(f"device {figure} {pool}", f"device-resident: {what}, pool of {pool}")
        for figure, what in (
            ("alloc", "alloc 2,048, page 16"),
            ("extend", "extend 16 rows by 512, page 16"),
            ("decode", "decode 32 rows, page 16"),
            ("free", "free 2,048 in any order, page 16"),
            ("free_segment", "free_segment 2,048, page 16"),
            ("group", "64 requests in one group by free_segment, page 16"),
            ("token group", "64 requests in one group, page 1"),
        )
        for pool in ("1M", "4M")
    ]


def _tree_rows() -> list[Row]:
    return [
        Row(f"{kind}tree {operation} {size}", f"{kind}tree of {size} prompts: {what}", aim=aim)
        for kind in ("", "window ")
        for operation, what, aim in (
            ("match", "match", 15),
            ("insert", "insert", 30),
            ("evict", "evict 8,192 tokens", 1000),
            ("evict windows", "evict the windows of 8,192 tokens", 1000),
        )
        if kind or operation != "evict windows"
        for size in ("10k", "100k")
    ]


def _arena_rows(kind: str, named: str, taken: str) -> list[ArenaRow]:
    return [
        ArenaRow(kind, operation, f"{named}: {what}", absent=absent)
        for operation, what, absent in (
            ("free page 1 1M", "free a request of 2,048, page 1, 1M", ""),
            ("free page 1 4M", "the same, 4M", ""),
            ("free_segment page 1", "free_segment, page 1, 1M", ""),
            ("alloc page 1", "alloc a request of 2,048, page 1", ""),
            ("decode page 1", "decode 32 rows, page 1", ""),
            ("free page 64 1M", "free a request of 2,048, page 64, 1M", ""),
            ("free page 64 4M", "the same, 4M", ""),
            ("free_segment page 64", "free_segment, page 64, 1M", ""),
            ("alloc page 64", "alloc a request of 2,048, page 64", ""),
            ("decode page 64", "decode 32 rows, page 64", "GPU only"),
            ("take", f"alloc {taken} in a full arena, pages move", ""),
        )
    ] + [ArenaRow(kind, "moved", f"{named}: bytes that it moves", "KiB", 2.0**-10)]


def _replay_rows(figure: str, label: str, least: int, note: str = "") -> list[Row]:
    return [
        Row(f"{figure} requests a second", f"{label}: requests a second", "1/s", least, least=True, note=note),
        Row(f"{figure} peak bytes", f"{label}: peak memory of the process", "GiB", 2, scale=2.0**-30),
        Row(f"{figure} memory us a step", f"{label}: memory management, a step"),
    ]


ROWS = [
    *_token_rows(),
    Row("paged extend", "page 16: extend 16 rows by 512", aim=20),
    Row("paged decode", "page 16: decode 32 rows", aim=5),
    Row("paged free_segment", "page 16: free_segment of 2,048, pool of 1M", aim=5),
    *_window_rows(),
    *_device_rows(),
    Row("pages one", "free list: take and give 1 page", aim=1, note="vLLM 0.33.0: 0.9 us"),
    Row("pages many", "free list: take and give 512 pages, each", "ns", 40, note="vLLM: 190 ns a block"),
    Row("pool bytes a page", "bookkeeping of a pool of 1M pages, each", "B", 16, note="vLLM: 136 B"),
    Row("pool ready", "pool of 1M pages ready", "ms", 5, scale=1e-3, note="vLLM: 1 s"),
    Row("import", "import beyond torch, kernels cached", "s", 0.3),
    *_tree_rows(),
    *_replay_rows("replay", "replay", 1000, note="Dynamo: 1,800-5,500"),
    *_replay_rows("replay windows", "replay of gemma-3-27b", 500),
]

ARENA_ROWS = [
    *_arena_rows("windows", "full + windows", "a request"),
    *_arena_rows("states", "full + states", "32 states"),
    *_arena_rows("windows and states", "all three", "a request"),
]
