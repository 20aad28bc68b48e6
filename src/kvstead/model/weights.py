"""Numbers of parameters of a layer's parts, in total and those that one token passes through.

Matrices only, as the projections of transformers 5.24.0 (`modeling_*.py`) have them.
"""

from __future__ import annotations

from dataclasses import dataclass

from kvstead.errors import LayoutError
from kvstead.model import defaults
from kvstead.model.attention import attention_shape, is_latent
from kvstead.model.config_fields import Fields
from kvstead.model.kinds import CacheKind

_WIDTH = ("intermediate_size", "ffn_hidden_size", "block_ff_dim", "n_inner", "ffn_dim")
NUM_EXPERTS = ("n_routed_experts", "num_experts", "num_local_experts")
CHOSEN_EXPERTS = ("num_experts_per_tok", "num_experts_per_token", "experts_per_token", "moe_topk", "top_k_experts")
_NUM_SHARED = ("n_shared_experts", "num_shared_experts", "num_shared_expert")
_SHARED_WIDTH = ("shared_expert_intermediate_size", "shared_intermediate_size", "moe_shared_expert_intermediate_size")


@dataclass(frozen=True, slots=True)
class Weights:
    """`total` parameters, of which a token passes through `active`."""

    total: int = 0
    active: int = 0

    @staticmethod
    def dense(count: int) -> Weights:
        """`count` parameters, all of which every token passes through."""
        return Weights(count, count)

    def __add__(self, other: Weights) -> Weights:
        return Weights(self.total + other.total, self.active + other.active)

    def __mul__(self, factor: int) -> Weights:
        return Weights(self.total * factor, self.active * factor)


def count_attention(fields: Fields, kind: CacheKind, *, reuses: bool) -> Weights:
    """Parameters of a layer that attends as `kind`; a layer that `reuses` another's cache projects queries only."""
    if is_latent(fields):
        return _latent(fields)
    hidden = fields.size("hidden_size", "n_embd")
    width_in = hidden * defaults.ATTENTION_WIDTH_FACTOR.get(fields.model_type, 1)
    shape = attention_shape(fields, kind)
    is_gated = bool(fields.get("attn_output_gate")) or fields.model_type in defaults.OUTPUT_GATE
    count = width_in * shape.query_heads * shape.key_dim * (2 if is_gated else 1)
    count += shape.query_heads * shape.value_dim * hidden
    if not reuses:
        count += width_in * shape.kv_heads * shape.key_dim
        # Where the values are the keys they have no projection of their own.
        if not (kind is CacheKind.FULL and fields.get("attention_k_eq_v")):
            count += width_in * shape.kv_heads * shape.value_dim
    return Weights.dense(count)


def _latent(fields: Fields) -> Weights:
    hidden, rank, rope = fields.size("hidden_size"), fields.size("kv_lora_rank"), fields.size("qk_rope_head_dim")
    shape = attention_shape(fields, CacheKind.FULL)
    queries = shape.query_heads * shape.key_dim
    query_rank = fields.number("q_lora_rank")
    count = (hidden + queries) * query_rank if query_rank else hidden * queries
    count += hidden * (rank + rope) + rank * shape.query_heads * (shape.key_dim - rope + shape.value_dim)
    count += shape.query_heads * shape.value_dim * hidden
    if fields.has("index_head_dim"):
        heads, dim = fields.size("index_n_heads"), fields.size("index_head_dim")
        count += (query_rank or hidden) * heads * dim + hidden * (dim + heads)
    return Weights.dense(count)


def count_feed_forward(fields: Fields, index: int) -> Weights:
    """Parameters of layer `index`'s feed-forward part. Raises `LayoutError` for a missing width or count."""
    num_experts = fields.number(*NUM_EXPERTS)
    if num_experts and _has_experts(fields, index):
        return _experts(fields, num_experts)
    hidden = fields.size("hidden_size", "n_embd")
    width = _dense_width(fields, index)
    # Granite calls the width of its one dense part that of a shared expert.
    if num_experts == 0 and fields.has("shared_intermediate_size"):
        width = fields.size("shared_intermediate_size")
    return Weights.dense(_matrices(fields) * hidden * width)


def _matrices(fields: Fields) -> int:
    return 2 if fields.model_type in defaults.PLAIN_FEED_FORWARD else 3


def _dense_width(fields: Fields, index: int) -> int:
    if isinstance(fields.get("intermediate_size"), list):
        fields.numbers("intermediate_size")  # raises unless all are whole numbers
        return int(fields.item("intermediate_size", index))
    width = fields.size("intermediate_size_mlp", *_WIDTH)
    if not fields.get("block_auto_adjust_ff_dim"):
        return width
    # LFM2 states the width before it is cut to two thirds, scaled and rounded up.
    factor = fields.get("block_ffn_dim_multiplier")
    if factor is not None and not isinstance(factor, int | float):
        raise LayoutError(f"{fields.name}: block_ffn_dim_multiplier is {factor!r}. It must be a number.")
    width = int(2 * width / 3 * (factor or 1))
    step = fields.size("block_multiple_of")
    return -(-width // step) * step


def _has_experts(fields: Fields, index: int) -> bool:
    """Whether layer `index` has experts, by the first key that says so; without such a key all layers have."""
    if fields.get("enable_moe_block") is False:
        return False
    if fields.has("mlp_layer_types"):
        return bool(fields.item("mlp_layer_types", index) == "sparse")
    if isinstance(fields.get("moe_layer_freq"), list):
        return bool(fields.item("moe_layer_freq", index))
    first = fields.number("first_k_dense_replace", "num_dense_layers") or 0
    is_listed_dense = fields.has("mlp_only_layers") and index in fields.numbers("mlp_only_layers")
    return index >= first and not is_listed_dense and _is_in_step(fields, index)


def _is_in_step(fields: Fields, index: int) -> bool:
    """Whether layer `index` has experts by a period of layers."""
    if fields.has("expert_layer_period"):
        return index % fields.size("expert_layer_period") == (fields.number("expert_layer_offset") or 0)
    step = fields.number("decoder_sparse_step", "interleave_moe_layer_step")
    if step:
        return (index + 1) % step == 0
    return index % (fields.number("moe_layer_freq") or 1) == 0


def _experts(fields: Fields, num_experts: int) -> Weights:
    hidden = fields.size("hidden_size")
    expert = _matrices(fields) * hidden * fields.size("moe_intermediate_size", *_WIDTH)
    chosen = min(fields.size(*CHOSEN_EXPERTS), num_experts)
    shared = hidden * num_experts + _shared_experts(fields, hidden, expert)
    return Weights(shared + num_experts * expert, shared + chosen * expert)


def _shared_experts(fields: Fields, hidden: int, expert: int) -> int:
    width = fields.number(*_SHARED_WIDTH)
    if width:
        return _matrices(fields) * hidden * width
    # Llama 4 has one shared expert of an expert's width; only the second, dense width tells.
    default = 1 if fields.has("intermediate_size_mlp") else 0
    return expert * (fields.number(*_NUM_SHARED) or default)
