"""The same attention as one call of FlexAttention for all requests of a pass: an option for CUDA, where it compiles.

A token sees one range of the gathered entries. Ranges begin and end later from token to token, because requests follow
each other both in the tokens and in the entries:

    gathered   a0 a1 a2 a2 b0 b1 b2 b3
    token a2   '------'                       the second a2 is padding
    token b2               '------'
    token b3               '---------'

So a block of tokens needs the blocks of entries from the start of its first token's range to the end of its last one's,
and the block mask is made without visiting pairs. On a CPU FlexAttention computes a score for every pair of token and
entry, so use it there only to compare.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch.nn.attention import flex_attention as flex

from kvstead.errors import LayoutError
from kvstead.integrations.transformers.attention_groups import Group, Jobs, Scoring, first_read
from kvstead.integrations.transformers.forward_plan import Plan, SidePlan
from kvstead.kernels.array_types import IntArray
from kvstead.kernels.arrays import to_device
from kvstead.model import Window

_BLOCK = 128  # tokens, and entries, of a block


def visible(jobs: Jobs, window: Window | None, groups: list[Group]) -> tuple[IntArray, IntArray]:
    """The first and the last of the entries that each token sees, int64[tokens] each, among those `group` lists."""
    begins = [np.arange(some.keys.start, some.keys.stop, some.num_read) for some in groups]
    at_zero = np.concatenate(begins) - first_read(jobs.starts, window)  # where position 0 would be
    positions, offset = jobs.positions(), at_zero.repeat(jobs.num_new)
    return first_read(positions, window) + offset, positions + offset


class FlexAttention:
    """A compiled FlexAttention, one for each runner; it compiles for a few kinds of lengths.

    Raises `LayoutError` for a device or a version of torch that cannot compile it.
    """

    def __init__(self, device: torch.device) -> None:
        if device.type not in {"cpu", "cuda"}:
            raise LayoutError(f"FlexAttention was never tried on {device.type}. Use attention='sdpa'.")
        if "isolate_recompiles" not in inspect.signature(torch.compile).parameters:
            raise LayoutError(
                f"torch {torch.__version__} cannot compile FlexAttention separately for each runner. Use torch 2.13 or "
                "attention='sdpa'."
            )
        self._device = device
        options: dict[str, Any] = {"dynamic": True, "fullgraph": True, "isolate_recompiles": True}
        options["backend"] = "inductor" if device.type == "cuda" else "eager"
        self._call: Callable[..., Any] = torch.compile(flex.flex_attention, **options)

    def plan(self, plan: Plan, window: Window | None) -> FlexPlan:
        """The plan of a pass with its block masks. window: of the layers with one."""
        full = None if plan.full is None else self._mask(plan.jobs, plan.full, None)
        bounded = None if plan.window is None else self._mask(plan.jobs, plan.window, window)
        return FlexPlan(self._call, plan, full, bounded)

    def _mask(self, jobs: Jobs, side: SidePlan, window: Window | None) -> flex.BlockMask:
        firsts, lasts = visible(jobs, window, side.groups)
        begins = firsts[::_BLOCK] // _BLOCK
        ends = np.append(lasts[_BLOCK - 1 : -1 : _BLOCK], lasts[-1]) // _BLOCK + 1
        # At least two columns, which counts may leave unused: dynamo compiles sizes of 1 separately.
        columns = np.arange(max(int((ends - begins).max()), 2))
        blocks = np.minimum(begins[:, None] + columns, ends[:, None] - 1)
        first, last = to_device(firsts, self._device), to_device(lasts, self._device)

        def sees(_batch: torch.Tensor, _head: torch.Tensor, token: torch.Tensor, entry: torch.Tensor) -> torch.Tensor:
            return (first[token] <= entry) & (entry <= last[token])

        return flex.BlockMask.from_kv_blocks(
            to_device(ends - begins, self._device).int()[None, None],
            to_device(blocks, self._device).int()[None, None],
            BLOCK_SIZE=_BLOCK,
            mask_mod=sees,
            seq_lengths=(firsts.size, side.groups[-1].keys.stop),
            compute_q_blocks=False,
        )


@dataclass(frozen=True, slots=True)
class FlexPlan:
    """A plan and the masks of its two sides; the attention function gets it in place of the plan."""

    call: Callable[..., Any]
    plan: Plan
    full: flex.BlockMask | None
    window: flex.BlockMask | None

    def attend(
        self, layer: int | None, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scoring: Scoring
    ) -> torch.Tensor:
        """The attention output of a layer's packed queries, [heads, tokens, dim]: [tokens, heads, value dim]."""
        softcap = scoring.softcap
        mask = self.window if self.plan.side(layer) is self.plan.window else self.full
        assert mask is not None, "a side has its mask"
        out, aux = self.call(
            query[None],
            key,
            value,
            score_mod=None if softcap is None else lambda score, *_: torch.tanh(score / softcap) * softcap,
            block_mask=mask,
            scale=scoring.scale,
            enable_gqa=True,
            return_aux=flex.AuxRequest(lse=True),
        )
        if scoring.sinks is not None:  # they leave less weight
            out = out * torch.sigmoid(aux.lse - scoring.sinks.view(1, -1, 1))[..., None].to(out.dtype)
        packed: torch.Tensor = out[0].transpose(0, 1)
        return packed
