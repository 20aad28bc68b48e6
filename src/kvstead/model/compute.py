"""How much a model computes: parameters, parameters a token passes through, and the cost of attention.

For a step-time formula: a step over n new tokens does about `2 * active_params * n` FLOPs in its matrices,
`full_flops_per_pair` more for every pair of a new token and a token before it or itself, and `bounded_flops_per_pair`
for every such pair inside a window or chunk.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

from kvstead.model import defaults
from kvstead.model.attention import attention_shape
from kvstead.model.catalog import find_config, preset_config
from kvstead.model.config_fields import ConfigSource, Fields, read_fields
from kvstead.model.kinds import BOUNDED, CacheKind
from kvstead.model.layer_patterns import LayerPlan, read_plans, read_producers
from kvstead.model.state import count_state
from kvstead.model.weights import Weights, count_attention, count_feed_forward


@dataclass(frozen=True, slots=True)
class ComputeProfile:
    """What the text decoder of one model computes, over all ranks.

    total_params: weights of its matrices and embeddings, tied ones once. Norms, biases and convolutions are left out;
        they are below 0.06 % of every bundled model. Neither vision towers nor multi-token prediction are counted.
    active_params: those that one token passes through: of the experts only the shared and the chosen ones. The
        embedding tables count, though only one row of the first is read.
    attention_flops_per_pair: FLOPs for one query token and one token that it attends to, summed over all layers that
        attend: 2 per element of the key and of the value and per query head. Latent attention counts in its expanded
        form, as it runs in prefill.
    bounded_flops_per_pair: the part of it in layers with a window or chunk, which attend to no more than that.
    """

    total_params: int
    active_params: int
    attention_flops_per_pair: int
    bounded_flops_per_pair: int = 0

    @property
    def full_flops_per_pair(self) -> int:
        """The part of `attention_flops_per_pair` in layers that attend to the whole sequence."""
        return self.attention_flops_per_pair - self.bounded_flops_per_pair

    @classmethod
    def from_config(cls, config: ConfigSource, *, name: str | None = None) -> Self:
        """Count from a Hugging Face configuration: a mapping or a path, as for `ModelLayout.from_config`.

        Raises `LayoutError` for a missing key, naming it and its aliases.
        """
        fields = read_fields(config, name)
        plans = read_plans(fields)
        weights = _count(fields, plans)
        per_pair = [(plan.attention, _flops_per_pair(fields, plan.attention)) for plan in plans if plan.attention]
        bounded = sum(flops for kind, flops in per_pair if kind in BOUNDED)
        return cls(weights.total, weights.active, sum(flops for _, flops in per_pair), bounded)

    @classmethod
    def preset(cls, name: str) -> Self:
        """The profile of a bundled model. Raises `LayoutError` for an unknown name."""
        return cls.from_config(preset_config(name), name=name)


def load_profile(name_or_path: str | os.PathLike[str]) -> ComputeProfile:
    """The profile of a bundled model, a `config.json` or its directory. Raises `LayoutError`, with close names."""
    config, name = find_config(name_or_path)
    return ComputeProfile.from_config(config, name=name)


def _flops_per_pair(fields: Fields, kind: CacheKind) -> int:
    shape = attention_shape(fields, kind)
    return 2 * shape.query_heads * (shape.key_dim + shape.value_dim)


def _count(fields: Fields, plans: Sequence[LayerPlan]) -> Weights:
    hidden = fields.size("hidden_size", "n_embd")
    producers = read_producers(fields, plans)
    weights = Weights.dense(fields.size("vocab_size") * hidden * (1 if is_tied(fields) else 2))
    weights += _beside_layers(fields, hidden, len(plans))
    if fields.has("num_mem_blocks"):
        return weights + _shared_blocks(fields, plans, hidden)
    for index, plan in enumerate(plans):
        if plan.attention is not None:
            weights += count_attention(fields, plan.attention, reuses=index in producers)
        if plan.is_stateful:
            weights += Weights.dense(count_state(fields))
        if plan.has_feed_forward:
            weights += count_feed_forward(fields, index)
    return weights


def is_tied(fields: Fields) -> bool:
    """Whether the output uses the embedding's table. Raises `LayoutError` where neither file nor class says so."""
    for key in ("tie_word_embeddings", "tie_embedding"):
        value = fields.outer(key)
        if value is not None:
            return bool(value)
    if fields.model_type in defaults.TIED | defaults.UNTIED:
        return fields.model_type in defaults.TIED
    raise fields.missing("tie_word_embeddings", "tie_embedding")


def _beside_layers(fields: Fields, hidden: int, num_layers: int) -> Weights:
    """What models with per-layer embeddings (Gemma 3n, Gemma 4) have beside the usual parts of their layers."""
    width = fields.number("hidden_size_per_layer_input")
    if not width:
        return Weights()
    packed = num_layers * width
    count = fields.size("vocab_size_per_layer_input") * packed + hidden * packed + num_layers * 2 * hidden * width
    streams = fields.number("altup_num_inputs")
    if streams:
        count += 2 * (streams - 1) * hidden * hidden + num_layers * (hidden * streams + streams**2 + streams**3)
    rank = fields.number("laurel_rank")
    if rank:
        count += num_layers * 2 * hidden * rank
    return Weights.dense(count)


def _shared_blocks(fields: Fields, plans: Sequence[LayerPlan], hidden: int) -> Weights:
    """Zamba2: a few attention blocks are used in turn; each use adds a projection and a low-rank adapter."""
    blocks = fields.size("num_mem_blocks")
    width = fields.size("intermediate_size", "ffn_hidden_size")
    rank = fields.size("adapter_rank", "lora_rank")
    block = count_attention(fields, CacheKind.FULL, reuses=False) + Weights.dense(3 * hidden * width)
    use = Weights.dense(hidden * hidden + hidden * rank + rank * 2 * width)
    if fields.get("use_shared_attention_adapter", "use_shared_attention_lora"):
        use += Weights.dense(3 * 2 * defaults.ATTENTION_WIDTH_FACTOR.get(fields.model_type, 1) * hidden * rank)
    weights = block * blocks
    for plan in plans:
        weights += Weights.dense(count_state(fields))
        if plan.attention is not None:
            weights += use
    return weights
