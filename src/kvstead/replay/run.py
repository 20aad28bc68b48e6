"""A replay from names and numbers, as the command line gives them: read, size, run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

from kvstead.engine import KVCacheManager, Scheduler
from kvstead.errors import InvalidSize
from kvstead.model import ModelLayout, load_layout
from kvstead.model.compute import load_profile
from kvstead.replay.cost import FixedCost, RooflineCost, StepCost, gpu
from kvstead.replay.readers import read_trace
from kvstead.replay.records import ReplayResult
from kvstead.replay.serial import SerialReplay
from kvstead.replay.simulate import Progress, Replay, silent
from kvstead.replay.trace import Trace, merge


class Mode(StrEnum):
    """How requests share the memory."""

    BATCHED = "batched"  # continuous batching, each step processed before the next is planned
    OVERLAPPED = "overlapped"  # the next step is planned while one is computed
    SERIAL = "serial"  # one request at a time: what the trace itself allows to reuse


@dataclass(frozen=True, slots=True)
class ReplayOptions:
    """What to replay on what.

    traces: files, or `-` for standard input; several are merged by arrival. model: a bundled name or a configuration
    file. num_bytes (padding page included) or num_slots: the memory of one rank; exactly one of them. gpu: times steps
    by its roofline, unless step_seconds says how long each takes. chunk_tokens: tokens computed in a step at most.
    max_running: requests on the memory at once. tensor_parallel: ranks, each with its share of heads.

    Raises `InvalidSize` for a chunk or a number of requests below 1.
    """

    traces: tuple[str, ...]
    model: str
    num_bytes: int | None = None
    num_slots: int | None = None
    page_size: int = 16
    gpu: str = "h100-sxm"
    step_seconds: float | None = None
    chunk_tokens: int = 8192
    policy: str = "lru"
    mode: Mode = Mode.BATCHED
    max_running: int = 256
    cache_dtype: str = "bfloat16"
    tensor_parallel: int = 1

    def __post_init__(self) -> None:
        if min(self.chunk_tokens, self.max_running) < 1:
            raise InvalidSize(
                f"chunk_tokens is {self.chunk_tokens} and max_running {self.max_running}. Both must be 1 or more."
            )


def run_replay(options: ReplayOptions, report: Callable[[Progress], None] = silent) -> ReplayResult:
    """Replay `options.traces` on a memory that keeps books only, whatever its size.

    report: called now and then with a `Progress`. An interrupt while the replay runs ends it with what was done so far.
    Raises `TraceError`, `LayoutError` or `InvalidSize` for options that make no replay.
    """
    layout = load_layout(options.model, cache_dtype=options.cache_dtype, tensor_parallel=options.tensor_parallel)
    cost = step_cost(options, layout)
    trace = merge([read_trace(path) for path in options.traces])
    manager = _manager(options, layout, trace)
    if options.mode is Mode.SERIAL:
        return SerialReplay(trace, manager, cost, chunk_tokens=options.chunk_tokens, report=report).run()
    scheduler = Scheduler(
        manager,
        chunk_tokens=options.chunk_tokens,
        max_running=options.max_running,
        overlap=options.mode is Mode.OVERLAPPED,
    )
    return Replay(trace, scheduler, cost, report=report).run()


def step_cost(options: ReplayOptions, layout: ModelLayout) -> StepCost:
    """How long steps take: the constant if one is given, else the roofline of the model's weights on the GPUs."""
    if options.step_seconds is not None:
        return FixedCost(options.step_seconds)
    compute = load_profile(options.model)
    return RooflineCost(
        gpu(options.gpu),
        total_params=compute.total_params,
        active_params=compute.active_params,
        attention_flops_per_pair=compute.attention_flops_per_pair,
        # Every rank reads its own share at once, replicated heads and latents included.
        kv_bytes_per_token=layout.full_bytes_per_token * options.tensor_parallel,
        num_gpus=options.tensor_parallel,
    )


def _manager(options: ReplayOptions, layout: ModelLayout, trace: Trace) -> KVCacheManager:
    return KVCacheManager(
        layout,
        options.num_bytes,
        num_slots=options.num_slots,
        page_size=options.page_size,
        policy=options.policy,
        max_requests=1 if options.mode is Mode.SERIAL else options.max_running,
        max_length=int((trace.prompt_lens + trace.output_lens).max()),
        storage=False,
    )
