"""The same attention as one call of FlexAttention for all requests of a pass: an option for CUDA, where it compiles.

What a token sees is one stretch of the gathered entries, and stretches begin and end later from token to token, for
requests follow each other in both:

    gathered   a0 a1 a2 a2 b0 b1 b2 b3
    token a2   '------'                       the second a2 is filling
    token b2               '------'
    token b3               '---------'

So a block of tokens needs no more than the blocks of entries from where its first token's stretch begins to where its
last one's ends, and a mask of blocks is made without a look at any pair. On a CPU scores are computed for every pair of
token and entry all the same: good for a comparison, no more.
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
from kvstead.integrations.transformers.attention_groups import Group, Jobs, first_read
from kvstead.integrations.transformers.forward_plan import Plan, SidePlan
from kvstead.kernels.array_types import IntArray
from kvstead.kernels.arrays import to_device
from kvstead.model import Window

_BLOCK = 128  # tokens, and entries, of a block


@dataclass(frozen=True, slots=True)
class Visible:
    """What the packed tokens see of the gathered entries: `first[t]` .. `last[t]`, int64[tokens] each."""

    first: IntArray
    last: IntArray


def visible(jobs: Jobs, window: Window | None, groups: list[Group]) -> Visible:
    """What each token sees of the entries that `group` lists for these jobs and this window."""
    begins = [np.arange(some.keys.start, some.keys.stop, some.num_read) for some in groups]
    at_zero = np.concatenate(begins) - first_read(jobs.starts, window)  # where position 0 would be
    positions, offset = jobs.positions(), at_zero.repeat(jobs.num_new)
    return Visible(first_read(positions, window) + offset, positions + offset)


class FlexAttention:
    """Attends by FlexAttention, which compiles for a few kinds of lengths; a runner has its own.

    Raises `LayoutError` for a device or a torch that cannot.
    """

    def __init__(self, device: torch.device) -> None:
        if device.type not in {"cpu", "cuda"}:
            raise LayoutError(f"FlexAttention was never tried on {device.type}. Use attention='sdpa'.")
        if "isolate_recompiles" not in inspect.signature(torch.compile).parameters:
            raise LayoutError(
                f"torch {torch.__version__} cannot compile FlexAttention for one runner apart from others. Use torch "
                "2.13, or attention='sdpa'."
            )
        self._device = device
        options: dict[str, Any] = {"dynamic": True, "fullgraph": True, "isolate_recompiles": True}
        options["backend"] = "inductor" if device.type == "cuda" else "eager"
        self._call: Callable[..., Any] = torch.compile(flex.flex_attention, **options)

    def plan(self, plan: Plan, window: Window | None) -> FlexPlan:
        """Settle the masks of a pass. window: that of the layers with one."""
        full = None if plan.full is None else self._mask(plan.jobs, plan.full, None)
        bounded = None if plan.window is None else self._mask(plan.jobs, plan.window, window)
        return FlexPlan(self._call, plan, full, bounded)

    def _mask(self, jobs: Jobs, side: SidePlan, window: Window | None) -> flex.BlockMask:
        seen, num_entries = visible(jobs, window, side.groups), side.groups[-1].keys.stop
        begins = seen.first[::_BLOCK] // _BLOCK
        ends = np.append(seen.last[_BLOCK - 1 : -1 : _BLOCK], seen.last[-1]) // _BLOCK + 1
        # Two columns at least, of which a count may leave out some: dynamo compiles sizes of 1 by themselves.
        columns = np.arange(max(int((ends - begins).max()), 2))
        blocks = np.minimum(begins[:, None] + columns, ends[:, None] - 1)
        first, last = to_device(seen.first, self._device), to_device(seen.last, self._device)

        def sees(_batch: torch.Tensor, _head: torch.Tensor, token: torch.Tensor, entry: torch.Tensor) -> torch.Tensor:
            return (first[token] <= entry) & (entry <= last[token])

        return flex.BlockMask.from_kv_blocks(
            to_device(ends - begins, self._device).int()[None, None],
            to_device(blocks, self._device).int()[None, None],
            BLOCK_SIZE=_BLOCK,
            mask_mod=sees,
            seq_lengths=(seen.first.size, num_entries),
            compute_q_blocks=False,
        )


@dataclass(frozen=True, slots=True)
class FlexPlan:
    """A plan and the masks of its two kinds of layers; it goes to the attention function in the plan's place."""

    call: Callable[..., Any]
    plan: Plan
    full: flex.BlockMask | None
    window: flex.BlockMask | None

    def attend(
        self,
        layer: int | None,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        scale: float,
        softcap: float | None,
        sinks: torch.Tensor | None,
    ) -> torch.Tensor:
        """What a layer's packed queries, [heads, tokens, dim], get: [tokens, heads, value dim]."""
        mask = self.window if self.plan.side(layer) is self.plan.window else self.full
        assert mask is not None, "a side has its mask"
        out, aux = self.call(
            query[None],
            key,
            value,
            score_mod=None if softcap is None else _bend(softcap),
            block_mask=mask,
            scale=scale,
            enable_gqa=True,
            return_aux=flex.AuxRequest(lse=True),
        )
        if sinks is not None:
            out = out * torch.sigmoid(aux.lse - sinks.view(1, -1, 1))[..., None].to(out.dtype)  # what a sink leaves
        packed: torch.Tensor = out[0].transpose(0, 1)
        return packed


def _bend(softcap: float) -> Callable[..., torch.Tensor]:
    def bend(score: torch.Tensor, *_: torch.Tensor) -> torch.Tensor:
        return torch.tanh(score / softcap) * softcap

    return bend
