"""Attention over packed requests of different lengths, behind the attention interface of transformers."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface

from kvstead.errors import LayoutError
from kvstead.integrations.transformers.attention_groups import Group, Scoring
from kvstead.integrations.transformers.flex_attention import FlexPlan
from kvstead.integrations.transformers.forward_plan import PLAN_KEYWORD, Plan

ATTENTION_NAME = "kvstead"
"""The name that `attend` is registered under. No mask function is registered, so models build no mask."""


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
