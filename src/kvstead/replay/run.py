"""Runs a replay from its options: reads the traces, sizes the memory, replays."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

from kvstead.engine import KVCacheManager, Scheduler
from kvstead.model import ModelLayout, load_layout
from kvstead.model.compute import ComputeProfile, load_profile
from kvstead.model.weight_precision import WeightPrecision, load_precision
from kvstead.replay.card import CardMemory, card_memory
from kvstead.replay.cost import FixedCost, RooflineCost, StepCost, gpu
from kvstead.replay.options import Layout, Mode, ReplayOptions
from kvstead.replay.readers import read_trace
from kvstead.replay.result import ReplayResult
from kvstead.replay.serial import SerialReplay
from kvstead.replay.simulate import Progress, Replay, silent
from kvstead.replay.trace import Trace, merge


def run_replay(
    options: ReplayOptions, report: Callable[[Progress], None] = silent, *, trace: Trace | None = None
) -> ReplayResult:
    """Replay `options.traces` on a memory of any size: page tables are kept, tensors are not allocated.

    trace: what was read of them already. report: called now and then with a `Progress`. An interrupt while the replay
    runs ends it with what was done so far.

    Raises `TraceError`, `LayoutError` or `InvalidSize` for options that cannot be replayed.
    """
    layout = load_layout(
        options.model,
        cache_dtype=options.cache_dtype,
        state_dtype=options.state_dtype,
        tensor_parallel=options.tensor_parallel,
    )
    work = None if options.step_seconds is not None else _work(options)
    cost = step_cost(options, layout, work)
    if trace is None:
        trace = merge([read_trace(path, options.log) for path in options.traces])
    manager = _manager(options, layout, trace)
    card = None if work is None else _card(options, work, manager)
    if card is not None and options.must_fit:
        card.require_fit()
    return replace(_replay(options, trace, manager, cost, report), card=card)


def _replay(
    options: ReplayOptions, trace: Trace, manager: KVCacheManager, cost: StepCost, report: Callable[[Progress], None]
) -> ReplayResult:
    if options.mode is Mode.SERIAL:
        serial = SerialReplay(trace, manager, cost, chunk_tokens=options.chunk_tokens, report=report, slo=options.slo)
        return serial.run()
    scheduler = Scheduler(
        manager,
        chunk_tokens=options.chunk_tokens,
        max_running=options.max_running,
        overlap=options.mode is Mode.OVERLAPPED,
    )
    return Replay(trace, scheduler, cost, report=report, slo=options.slo).run()


class _Work(NamedTuple):
    """What a model computes, and how its weights are stored."""

    profile: ComputeProfile
    precision: WeightPrecision


def _work(options: ReplayOptions) -> _Work:
    profile = load_profile(options.model)
    return _Work(profile, load_precision(options.model, profile, options.weight_dtype))


def _card(options: ReplayOptions, work: _Work, manager: KVCacheManager) -> CardMemory:
    """What one GPU has to hold: its rank's share of the weights, and the cache."""
    return card_memory(
        gpu(options.gpu),
        work.precision,
        num_weights=work.profile.total_params / options.tensor_parallel,
        cache_bytes=manager.total_bytes,
        overhead_bytes=options.engine_bytes,
    )


def step_cost(options: ReplayOptions, layout: ModelLayout, work: _Work | None = None) -> StepCost:
    """How long steps take: a constant if one is given, else the roofline of the model on the GPUs."""
    if options.step_seconds is not None:
        return FixedCost(options.step_seconds)
    compute, precision = work or _work(options)
    return RooflineCost(
        gpu(options.gpu),
        total_params=compute.total_params,
        active_params=compute.active_params,
        attention_flops_per_pair=compute.attention_flops_per_pair - compute.bounded_flops_per_pair,
        bounded_flops_per_pair=compute.bounded_flops_per_pair,
        # Every rank reads its own share at once, replicated heads and latents included.
        kv_bytes_per_token=layout.full_bytes_per_token * options.tensor_parallel,
        window_bytes_per_token=layout.window_bytes_per_token * options.tensor_parallel,
        state_bytes=layout.state_bytes * options.tensor_parallel,
        num_gpus=options.tensor_parallel,
        weight_bytes=precision.bytes_per_weight,
        fp8=precision.is_fp8,
        mfu=options.mfu,
        mbu=options.mbu,
        overhead_seconds=options.overhead_seconds,
    )


def _manager(options: ReplayOptions, layout: ModelLayout, trace: Trace) -> KVCacheManager:
    lengths = trace.prompt_lens + trace.output_lens
    expected_length = options.expected_length
    has_several_sides = layout.full_bytes_per_token > 0 and (layout.window is not None or layout.state_bytes > 0)
    if options.layout is Layout.STATIC and has_several_sides and options.window_ratio is None:
        expected_length = expected_length or round(float(lengths.mean()))
    return KVCacheManager(
        layout,
        options.num_bytes,
        num_slots=options.num_slots,
        num_states=options.num_states,
        window_ratio=options.window_ratio,
        expected_length=expected_length,
        pool_layout=str(options.layout),
        page_size=options.page_size,
        state_interval=options.state_interval,
        policy=options.policy,
        max_requests=1 if options.mode is Mode.SERIAL else min(options.max_running, len(trace)),
        max_length=int(lengths.max()),
        storage=False,
    )
