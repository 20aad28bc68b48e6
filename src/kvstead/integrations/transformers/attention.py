"""Attention over packed requests of different lengths, behind the attention interface of transformers.

By SDPA, one call for each group of similar lengths, or by FlexAttention, one call for all.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch.nn.attention import flex_attention as flex
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface

from kvstead.errors import LayoutError
from kvstead.integrations.transformers.forward_plan import PLAN_KEYWORD, Group, Jobs, Plan, SidePlan, first_read
from kvstead.kernels.array_types import IntArray
from kvstead.kernels.arrays import to_device
from kvstead.model import Window

ATTENTION_NAME = "kvstead"
"""The name that `attend` is registered under. No mask function is registered, so models build no mask."""

_BLOCK = 128  # tokens, and entries, of a block of FlexAttention


@dataclass(frozen=True, slots=True)
class Scoring:
    """How a layer weighs entries.

    scale: of the scores. softcap: bounds the scores by tanh, None where nothing does. sinks: [heads], one more score
    per head that takes weight but has no value, or None.
    """

    scale: float
    softcap: float | None
    sinks: torch.Tensor | None


def register_attention() -> None:
    """Register `attend` with transformers under `ATTENTION_NAME`; may be called again."""
    AttentionInterface.register(ATTENTION_NAME, attend)


def attend(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    *,
    scaling: float | None = None,
    softcap: float | None = None,
    s_aux: torch.Tensor | None = None,
    **keywords: Any,
) -> tuple[torch.Tensor, None]:
    """The attention output of every new token of a pass, over the entries of its own request.

    query: [batch, heads, new, dim], the packed tokens in any split over batch and new. key, value: [1, key heads,
    entries, dim] as the plan's side gathers them. scaling: of the scores, 1 / sqrt(dim) by default. softcap: bounds the
    scores by tanh. s_aux: [heads], one more score per head that takes weight but has no value (sinks). Returns
    ([batch, new, heads, value dim], None). Raises `LayoutError` without a plan, or with a mask.
    """
    plan = keywords.get(PLAN_KEYWORD)
    if not isinstance(plan, Plan | FlexPlan) or attention_mask is not None:
        raise LayoutError(
            "this model computes on kvstead's memory and needs the plan of a `TransformersRunner`. To call the model "
            "directly, set another attention: model.set_attn_implementation('sdpa')."
        )
    batch, heads, new, dim = query.shape
    packed = query.transpose(0, 1).reshape(heads, batch * new, dim)
    scoring = Scoring(dim**-0.5 if scaling is None else scaling, softcap, s_aux)
    layer = getattr(module, "layer_idx", None)
    if isinstance(plan, FlexPlan):
        out = plan.attend(layer, packed, key, value, scoring)
    else:
        out = _by_groups(packed, key[0], value[0], plan.side(layer).groups, scoring)
    return out.view(batch, new, heads, -1), None


def _by_groups(
    packed: torch.Tensor, key: torch.Tensor, value: torch.Tensor, groups: list[Group], scoring: Scoring
) -> torch.Tensor:
    """Attention by SDPA, one group at a time: [tokens, heads, value dim]."""
    outputs = []
    for some in groups:
        q, k, v = _rows(packed, some.queries, some), _rows(key, some.keys, some), _rows(value, some.keys, some)
        changes_scores = scoring.softcap is not None or scoring.sinks is not None
        out = _plain(q, k, v, some, scoring) if changes_scores else _fused(q, k, v, some, scoring.scale)
        outputs.append(out.transpose(1, 2).flatten(0, 1))
    return torch.cat(outputs)


def _rows(packed: torch.Tensor, part: slice, group: Group) -> torch.Tensor:
    """A group's part of [heads, packed, dim] as [rows, heads, each, dim]."""
    heads, _, dim = packed.shape
    return packed[:, part].reshape(heads, group.num_rows, -1, dim).transpose(0, 1)


def _fused(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, group: Group, scale: float) -> torch.Tensor:
    rows, heads, new, _ = q.shape
    key_heads = k.shape[1]
    if new == 1 and heads > key_heads:  # query heads of one key head become tokens, so nothing is copied
        folded = q.reshape(rows, key_heads, heads // key_heads, -1)
        out = scaled_dot_product_attention(folded, k, v, attn_mask=group.mask, scale=scale)
        return out.reshape(rows, heads, 1, -1)
    return scaled_dot_product_attention(
        q, k, v, attn_mask=group.mask, is_causal=group.is_causal, scale=scale, enable_gqa=heads > key_heads
    )


def _plain(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, group: Group, scoring: Scoring) -> torch.Tensor:
    """Attention with caps or sinks, which the fused kernel lacks."""
    rows, heads, new, _ = q.shape
    key_heads, entries = k.shape[1], k.shape[2]
    folded = q.reshape(rows, key_heads, heads // key_heads * new, -1)
    scores = (torch.matmul(folded, k.transpose(2, 3)) * scoring.scale).view(rows, heads, new, entries)
    if scoring.softcap is not None:
        scores = torch.tanh(scores / scoring.softcap) * scoring.softcap
    mask = group.mask
    if group.is_causal:
        mask = torch.ones(new, entries, dtype=torch.bool, device=q.device).tril()
    if mask is not None:
        scores = scores.masked_fill(~mask, float("-inf"))
    if scoring.sinks is not None:
        sinks = scoring.sinks.view(1, -1, 1, 1).expand(rows, -1, new, 1)
        scores = torch.cat((scores, sinks.to(scores.dtype)), -1)
    weights = torch.softmax(scores, -1, dtype=torch.float32).to(q.dtype)[..., :entries]
    out = torch.matmul(weights.reshape(rows, key_heads, -1, entries), v)
    return out.view(rows, heads, new, -1)


def visible(jobs: Jobs, window: Window | None, groups: list[Group]) -> tuple[IntArray, IntArray]:
    """The first and the last of the entries that each token sees, int64[tokens] each, among those `group` lists."""
    begins = [np.arange(some.keys.start, some.keys.stop, some.num_read) for some in groups]
    at_zero = np.concatenate(begins) - first_read(jobs.starts, window)  # where position 0 would be
    positions, offset = jobs.positions(), at_zero.repeat(jobs.num_new)
    return first_read(positions, window) + offset, positions + offset


class FlexAttention:
    """A compiled FlexAttention, one for each runner: one call for all requests, an option for CUDA, where it compiles.

    A token sees one range of the gathered entries. Ranges begin and end later from token to token, because requests
    follow each other both in the tokens and in the entries:

        gathered   a0 a1 a2 a2 b0 b1 b2 b3
        token a2   '------'                       the second a2 is padding
        token b2               '------'
        token b3               '---------'

    So a block of tokens needs the blocks of entries from the start of its first token's range to the end of its last
    one's, and the block mask is made without visiting pairs. On a CPU a score is computed for every pair of token and
    entry, so use it there only to compare. It compiles for a few kinds of lengths.

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
