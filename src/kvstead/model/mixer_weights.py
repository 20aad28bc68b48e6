"""Parameters of what mixes tokens: attention and recurrent layers.

Matrices only, as the projections of transformers 5.24.0 (`modeling_*.py`) have them.
"""

from __future__ import annotations

from collections.abc import Callable

from kvstead.model import defaults
from kvstead.model.attention import attention_shape, is_latent
from kvstead.model.config_fields import Fields
from kvstead.model.kinds import CacheKind
from kvstead.model.mamba import mamba1_rank, mamba1_width, mamba2_sizes
from kvstead.model.state import StateFamily, require_family
from kvstead.model.weights import Weights


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


def count_state(fields: Fields) -> Weights:
    """Parameters of a layer with a state. Raises `LayoutError` for an unknown family."""
    return Weights.dense(_COUNTS[require_family(fields)](fields, fields.size("hidden_size")))


def _gated_delta_net(fields: Fields, hidden: int) -> int:
    keys = fields.size("linear_num_key_heads") * fields.size("linear_key_head_dim")
    value_heads = fields.size("linear_num_value_heads")
    values = value_heads * fields.size("linear_value_head_dim")
    return hidden * (2 * keys + 2 * values + 2 * value_heads) + values * hidden


def _kimi_delta_attention(fields: Fields, hidden: int) -> int:
    inner = fields.inner("linear_attn_config")
    heads, dim = inner.size("num_heads"), inner.size("head_dim")
    low_rank = 2 * (hidden * dim + dim * heads * dim)  # decay and output gate
    return 4 * hidden * heads * dim + low_rank + hidden * heads


def _mamba1(fields: Fields, hidden: int) -> int:
    width, state = mamba1_width(fields), fields.size("mamba_d_state", "state_size")
    rank = mamba1_rank(fields)
    return hidden * 2 * width + width * (rank + 2 * state) + rank * width + width * state + width * hidden


def _mamba2(fields: Fields, hidden: int) -> int:
    sizes = mamba2_sizes(fields)
    return hidden * (sizes.width + sizes.conv_channels + sizes.heads) + sizes.width * hidden


def _short_convolution(_fields: Fields, hidden: int) -> int:
    return 4 * hidden * hidden  # in for the input and its two gates, and out


_COUNTS: dict[StateFamily, Callable[[Fields, int], int]] = {
    StateFamily.GATED_DELTA_NET: _gated_delta_net,
    StateFamily.KIMI_DELTA_ATTENTION: _kimi_delta_attention,
    StateFamily.SHORT_CONVOLUTION: _short_convolution,
    StateFamily.MAMBA1: _mamba1,
    StateFamily.MAMBA2: _mamba2,
}
