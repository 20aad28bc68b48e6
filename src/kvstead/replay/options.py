"""What a replay is asked for, in names and numbers. Imports nothing heavy, so that a command line can list choices."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from kvstead.errors import InvalidSize
from kvstead.replay.figures import require_positive


class Mode(StrEnum):
    """How requests share the memory."""

    BATCHED = "batched"  # continuous batching, each step processed before the next is planned
    OVERLAPPED = "overlapped"  # the next step is planned while one is computed
    SERIAL = "serial"  # one request at a time: what the trace itself allows to reuse


class Layout(StrEnum):
    """How the pools of a model share its memory."""

    STATIC = "static"  # divided once, before the first request


@dataclass(frozen=True, slots=True)
class ReplayOptions:
    """What to replay on what.

    traces: files, or `-` for standard input; several are merged by arrival. model: a bundled name or a configuration
    file. num_bytes (padding pages included) or num_slots: the memory of one rank; exactly one of them. Slots are those
    of whole sequences, or of windows where the model keeps nothing else. gpu: times steps by its roofline, unless
    step_seconds says how long each takes. chunk_tokens: tokens computed in a step at most. max_running: requests on
    the memory at once. tensor_parallel: ranks, each with its share of heads.

    For models with windows: window_ratio is window slots per full slot, or expected_length the tokens of a request for
    which the sides are divided; by default the mean length of the trace's requests. At most one of the two.

    Raises `InvalidSize` for a chunk, a number of requests or an expected length below 1, a ratio that is not above 0,
    and for a ratio beside an expected length.
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

    def __post_init__(self) -> None:
        if min(self.chunk_tokens, self.max_running) < 1:
            raise InvalidSize(
                f"chunk_tokens is {self.chunk_tokens} and max_running {self.max_running}. Both must be 1 or more."
            )
        if self.window_ratio is not None and self.expected_length is not None:
            raise InvalidSize(
                f"window_ratio is {self.window_ratio} and expected_length {self.expected_length}. Give one of them at "
                "most: each divides the memory by itself."
            )
        if self.window_ratio is not None:
            require_positive("window_ratio", self.window_ratio)
        if self.expected_length is not None and self.expected_length < 1:
            raise InvalidSize(f"expected_length is {self.expected_length}. It must be 1 or more tokens.")
