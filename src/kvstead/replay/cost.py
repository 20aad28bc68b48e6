"""How long a step of a model takes: a roofline, or a constant."""

from __future__ import annotations

from collections.abc import Sequence
from math import exp, log1p
from typing import Protocol

import numpy as np

from kvstead.kernels.array_types import IntArray
from kvstead.model import Window
from kvstead.replay.checks import require_at_least, require_between, require_positive
from kvstead.replay.gpus import GPU_NAMES, Gpu, gpu

__all__ = ["GPU_NAMES", "FixedCost", "Gpu", "RooflineCost", "StepCost", "StepTimer", "gpu"]

_FLOPS_PER_PARAM = 2.0  # one multiplication and one addition per weight and token
_ALL_TOUCHED = -1e9  # log of the share of weights that one token does not read, if that is 0


class StepCost(Protocol):
    """Answers how long one step takes."""

    def seconds(
        self,
        num_tokens: int,
        kv_tokens_read: int,
        attention_pairs: int,
        window_tokens_read: int = 0,
        window_pairs: int = 0,
        num_states: int = 0,
    ) -> float:
        """Duration of one step, in seconds.

        num_tokens: tokens computed in the step, prefill and decode. kv_tokens_read: tokens whose keys and values are
        read, summed over the rows of the batch. attention_pairs: over the computed tokens, how many tokens each one
        attends to, summed. window_tokens_read, window_pairs: the same in layers with a window or chunk; those of the
        other layers do not count them. num_states: rows of the batch whose recurrent state the step reads and writes.
        """


class FixedCost:
    """Every step takes the same time. Raises `InvalidSize` unless `step_seconds` is positive and finite."""

    __slots__ = ("step_seconds",)

    def __init__(self, step_seconds: float) -> None:
        require_positive("step_seconds", step_seconds)
        self.step_seconds = step_seconds

    def seconds(self, *_counts: int, **_named_counts: int) -> float:
        """`step_seconds`; what the step computes does not matter."""
        return self.step_seconds


class RooflineCost:
    """A step is bound by arithmetic or by memory, whichever takes longer, and has a constant overhead.

        seconds = overhead + max(flops / (gpus * peak * mfu), bytes / (gpus * bandwidth * mbu))
        flops   = 2 * active_params * num_tokens + attention_flops_per_pair * attention_pairs
                  + bounded_flops_per_pair * window_pairs
        bytes   = weight_bytes * params_touched(num_tokens) + kv_bytes_per_token * (kv_tokens_read + num_tokens)
                  + window_bytes_per_token * (window_tokens_read + num_tokens) + 2 * state_bytes * num_states

    The roofline is Williams, Waterman and Patterson, "Roofline: an insightful visual performance model" (CACM 52(4),
    2009); 2 FLOP per weight and token is the forward pass of Kaplan et al., "Scaling laws for neural language models"
    (2020), section 2.1. Keys and values are read for `kv_tokens_read` tokens and written for the new ones; in layers
    with a window or chunk they are read for `window_tokens_read` tokens. A recurrent state is read and written once for
    each row, however many of its tokens the step computes; the arithmetic of the recurrence is not modelled.

    Mixture of experts: a batch reads every expert that some token chose. With each token taking a share
    a = active / total of the weights, independently of the others, `params_touched(n) = total * (1 - (1 - a)^n)`:
    `active` for one token, `total` for many. Weights that every token uses are counted as if they were chosen too, so
    the figure is a little high for batches of a few tokens; for a dense model, a = 1, it is exact.

    gpu: its published peaks. total_params, active_params: weights of the model, and those used for one token.
    attention_flops_per_pair: FLOP per (new token, attended token), over all layers that attend to whole sequences.
    kv_bytes_per_token: bytes of keys and values read for one token, over all layers that cache whole sequences.
    bounded_flops_per_pair, window_bytes_per_token: the same two for the layers with a window or chunk.
    state_bytes: of one sequence, over all layers with a recurrent state.
    weight_bytes: bytes per weight. fp8: multiply matrices in fp8 where the GPU has it, else in bfloat16.
    mfu, mbu: the shares of peak FLOP/s and of bandwidth that are reached; the defaults are round numbers, not measured.
    overhead_seconds: launches, sampling and scheduling, per step.
    num_gpus: tensor parallel, scaling ideally; communication is not modelled.

    Raises `InvalidSize` for a figure out of range.
    """

    def __init__(
        self,
        gpu: Gpu,
        *,
        total_params: float,
        active_params: float,
        attention_flops_per_pair: float,
        kv_bytes_per_token: float,
        bounded_flops_per_pair: float = 0.0,
        window_bytes_per_token: float = 0.0,
        state_bytes: float = 0.0,
        weight_bytes: float = 2.0,
        fp8: bool = False,
        mfu: float = 0.5,
        mbu: float = 0.8,
        overhead_seconds: float = 200e-6,
        num_gpus: int = 1,
    ) -> None:
        require_positive("total_params", total_params)
        require_between("active_params", active_params, total_params)
        require_positive("weight_bytes", weight_bytes)
        require_between("mfu", mfu, 1.0)
        require_between("mbu", mbu, 1.0)
        require_positive("num_gpus", num_gpus)
        pairs = {"attention_flops_per_pair": attention_flops_per_pair, "bounded_flops_per_pair": bounded_flops_per_pair}
        tokens = {"kv_bytes_per_token": kv_bytes_per_token, "window_bytes_per_token": window_bytes_per_token}
        others = {"state_bytes": state_bytes, "overhead_seconds": overhead_seconds}
        for name, figure in (pairs | tokens | others).items():
            require_at_least(name, figure, 0)
        flops_per_second = num_gpus * gpu.peak_flops(fp8=fp8) * mfu
        bytes_per_second = num_gpus * gpu.bandwidth * mbu
        self._token_seconds = _FLOPS_PER_PARAM * active_params / flops_per_second
        self._pair_seconds = attention_flops_per_pair / flops_per_second
        self._weight_seconds = total_params * weight_bytes / bytes_per_second
        self._window_pair_seconds = bounded_flops_per_pair / flops_per_second
        self._kv_seconds, self._window_seconds = (each / bytes_per_second for each in tokens.values())
        self._state_seconds = 2 * state_bytes / bytes_per_second  # read and written
        self._log_untouched = log1p(-active_params / total_params) if active_params < total_params else _ALL_TOUCHED
        self._overhead = float(overhead_seconds)
        self.compute_seconds = self.traffic_seconds = 0.0  # of all steps so far, what each would take alone

    def seconds(
        self,
        num_tokens: int,
        kv_tokens_read: int,
        attention_pairs: int,
        window_tokens_read: int = 0,
        window_pairs: int = 0,
        num_states: int = 0,
    ) -> float:
        """The roofline of one step; the overhead alone for a step that computes nothing."""
        compute = num_tokens * self._token_seconds + attention_pairs * self._pair_seconds
        compute += window_pairs * self._window_pair_seconds
        weights = self._weight_seconds * (1.0 - exp(num_tokens * self._log_untouched))
        memory = weights + (kv_tokens_read + num_tokens) * self._kv_seconds
        memory += (window_tokens_read + num_tokens) * self._window_seconds + num_states * self._state_seconds
        self.compute_seconds += compute
        self.traffic_seconds += memory
        return self._overhead + max(compute, memory)


class StepTimer:
    """Counts what a step reads and computes, and asks a cost how long that takes.

    window: what the model's layers with a window or chunk read, None where it has none. has_states: whether rows have
    recurrent states. Copies of states and moves of pages take no time.
    """

    __slots__ = ("_cost", "_has_states", "_window")

    def __init__(self, cost: StepCost, window: Window | None, *, has_states: bool) -> None:
        self._cost = cost
        self._window = window
        self._has_states = has_states

    def seconds(self, lengths: IntArray, chunks: Sequence[tuple[int, int]] = ()) -> float:
        """Duration of one step, in seconds.

        lengths: int64[d], tokens of each row in decode, the one computed now included. chunks: start and end of the
        positions that the step computes of each other row.
        """
        num_tokens = lengths.size
        read = pairs = int(np.add.reduce(lengths))
        for start, end in chunks:
            new = end - start
            num_tokens += new
            read += end
            pairs += new * start + new * (new + 1) // 2
        window_read, window_pairs = self._in_windows(lengths, chunks)
        num_states = lengths.size + len(chunks) if self._has_states else 0
        return self._cost.seconds(num_tokens, read, pairs, window_read, window_pairs, num_states)

    def _in_windows(self, lengths: IntArray, chunks: Sequence[tuple[int, int]]) -> tuple[int, int]:
        """Tokens that layers with a window read, and how many the computed tokens attend to there, summed."""
        window = self._window
        if window is None:
            return 0, 0
        read = pairs = int(np.add.reduce(window.live_tokens(lengths)))
        for start, end in chunks:
            read += window.live_tokens(start + 1) + end - start - 1  # from the first that `start` reads to the last one
            pairs += window.pairs(start, end)
        return read, pairs
