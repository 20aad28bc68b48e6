"""The options of a replay. Imports nothing heavy, so that a command line can list the choices."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from kvstead.errors import InvalidSize
from kvstead.replay.checks import require_positive
from kvstead.replay.logs.options import LogOptions
from kvstead.replay.slo import Slo

_LEAST_ONE = ("chunk_tokens", "max_running", "num_states", "expected_length")


class Mode(StrEnum):
    """How requests share the memory."""

    BATCHED = "batched"  # continuous batching, each step processed before the next is planned
    OVERLAPPED = "overlapped"  # the next step is planned while one is computed
    SERIAL = "serial"  # one request at a time: what the trace itself allows to reuse


class Layout(StrEnum):
    """How the pools of a model share its memory; see `kvstead.engine.memory_plan`."""

    STATIC = "static"  # divided once, before the first request
    PADDED = "padded"  # blocks of one size, to which the pages of every kind are padded: counted, to compare
    UNIFIED = "unified"  # one arena, in which pages move
    IDEAL = "ideal"  # a page costs its own bytes and nothing else: counted, the bound for the others


ONLY_STATIC = ("num_slots", "window_ratio", "expected_length", "num_states")
"""Options that divide the memory; the other layouts do not divide it."""


@dataclass(frozen=True, slots=True)
class ReplayOptions:
    """What to replay on what.

    traces: files, or `-` for standard input; several are merged by arrival. model: a bundled name or a configuration
    file. num_bytes (padding pages included) or num_slots: the memory of one rank; exactly one of them. Slots are those
    of whole sequences, or of windows where the model keeps nothing else. gpu: times steps by its roofline, unless
    step_seconds is given: a constant for every step. chunk_tokens: tokens computed in a step at most. max_running:
    requests on the memory at once. tensor_parallel: ranks, each with its share of heads.

    layout: how windows, states and the rest share the memory. A static one divides it: window_ratio is window slots per
    full slot, num_states a number of states, or expected_length the tokens of a request for which the sides are
    divided; by default the mean length of the trace's requests. At most one of ratio and length.

    state_interval: tokens between further copies of a prompt's recurrent state, 0 for none. state_dtype: of its
    recurrent part. log: how to read the traces, where they do not say it themselves.

    weight_dtype: of the weights; None takes what the checkpoint says. mfu, mbu: shares of the GPU's peak FLOP/s and
    bandwidth that steps reach. overhead_seconds: of each step. engine_bytes: what an engine keeps of a GPU beside
    weights and cache; with must_fit a replay of what does not fit one GPU is refused. slo: a goal to count requests by.

    Raises `InvalidSize` for an interval below 0, a chunk, an expected length or a number of requests or states below 1,
    a ratio that is not above 0, both a ratio and an expected length, and any of `ONLY_STATIC` with another layout.
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
    layout: Layout = Layout.STATIC
    window_ratio: float | None = None
    expected_length: int | None = None
    num_states: int | None = None
    state_interval: int = 512
    state_dtype: str = "float32"
    log: LogOptions = field(default_factory=LogOptions)
    weight_dtype: str | None = None
    mfu: float = 0.5
    mbu: float = 0.8
    overhead_seconds: float = 200e-6
    engine_bytes: int = 2 << 30  # a round number for context, activations and graphs
    must_fit: bool = False
    slo: Slo | None = None

    def __post_init__(self) -> None:
        for name in _LEAST_ONE:
            value = getattr(self, name)
            if value is not None and value < 1:
                raise InvalidSize(f"{name} is {value}. It must be 1 or more.")
        if self.state_interval < 0:
            raise InvalidSize(f"state_interval is {self.state_interval}. It must be 0 or more.")
        if self.window_ratio is not None and self.expected_length is not None:
            raise InvalidSize(
                f"window_ratio is {self.window_ratio} and expected_length {self.expected_length}. Give one of them: "
                "each divides the memory on its own."
            )
        if self.window_ratio is not None:
            require_positive("window_ratio", self.window_ratio)
        dividing = {name: getattr(self, name) for name in ONLY_STATIC if getattr(self, name) is not None}
        if self.layout is not Layout.STATIC and dividing:
            given = " and ".join(f"{name} is {value}" for name, value in dividing.items())
            raise InvalidSize(
                f"{given}. A {self.layout} layout does not divide the memory: give num_bytes alone, or Layout.STATIC."
            )
