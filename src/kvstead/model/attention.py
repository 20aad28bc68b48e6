"""What an attention layer caches per token: heads and widths by kind of layer, then bytes by dtype and rank."""

from __future__ import annotations

from dataclasses import dataclass

from kvstead.errors import LayoutError
from kvstead.model import defaults
from kvstead.model.config_fields import Fields
from kvstead.model.kinds import BOUNDED, PACKED_LATENT, CacheKind, LayoutOptions, TokenCache, dtype_bytes
from kvstead.model.state import split, split_or_replicate

_QUANTISED_RUN = 128  # elements that share one scale
_SCALE_BYTES = 4
_ROPE_BYTES = 2  # the packed latent keeps its rope part in bfloat16


@dataclass(frozen=True, slots=True)
class AttentionShape:
    """Heads and widths of one attention layer, over all ranks, as its queries, keys and values are computed."""

    query_heads: int
    kv_heads: int
    key_dim: int
    value_dim: int


def is_latent(fields: Fields) -> bool:
    """Whether the model's full-attention layers compress keys and values into one latent (MLA)."""
    return fields.has("kv_lora_rank") or fields.has("qk_nope_head_dim")


def attention_shape(fields: Fields, kind: CacheKind) -> AttentionShape:
    """Heads and widths of a layer of `kind`. Raises `LayoutError` for a missing key, or heads that do not divide."""
    if is_latent(fields):
        return _latent_shape(fields, kind)
    # Some models give their sliding layers, or their global ones, a shape of their own.
    own = "swa_" if kind is CacheKind.WINDOW else ""
    heads = fields.size(*_both(own, "num_attention_heads"), "n_head", "n_heads")
    kv_heads = _kv_heads(fields, kind, own, heads)
    key_dim = _head_dim(fields, kind, own, heads)
    value_dim = fields.number(*_both(own, "v_head_dim")) or key_dim
    return AttentionShape(heads, kv_heads, key_dim, value_dim)


def _both(prefix: str, key: str) -> tuple[str, ...]:
    return (prefix + key, key) if prefix else (key,)


def _kv_heads(fields: Fields, kind: CacheKind, own: str, heads: int) -> int:
    if kind is CacheKind.FULL and fields.get("attention_k_eq_v") and fields.has("num_global_key_value_heads"):
        return fields.size("num_global_key_value_heads")
    keys = _both(own, "num_key_value_heads")
    if fields.number(*keys) is not None:
        return fields.size(*keys)
    if fields.model_type in defaults.KV_HEADS_FOLLOW_HEADS:
        fields.assume(
            f"num_key_value_heads = num_attention_heads = {heads} (as in {fields.model_type} of {defaults.SOURCE})"
        )
        return heads
    raise fields.missing(*_both(own, "num_key_value_heads"))


def _head_dim(fields: Fields, kind: CacheKind, own: str, heads: int) -> int:
    if kind is CacheKind.FULL and fields.get("global_head_dim"):
        return fields.size("global_head_dim")
    keys = (*_both(own, "head_dim"), "attention_head_dim")
    head_dim = fields.number(*keys)
    if head_dim:
        return head_dim
    width = fields.size("hidden_size", "n_embd") * defaults.ATTENTION_WIDTH_FACTOR.get(fields.model_type, 1)
    if width % heads:
        raise LayoutError(
            f"{fields.subject} lacks 'head_dim', and {width} channels do not divide among {heads} heads; looked for "
            f"{', '.join(map(repr, keys))}. Add it to the configuration."
        )
    fields.assume(f"head_dim = {width} / {heads} heads = {width // heads}")
    return width // heads


def _latent_shape(fields: Fields, kind: CacheKind) -> AttentionShape:
    if kind is not CacheKind.FULL:
        raise LayoutError(
            f"{fields.name} has latents in {kind} layers, which are not supported. Use a model with full latent layers."
        )
    heads = fields.size("num_attention_heads")
    key_dim = fields.size("qk_nope_head_dim") + fields.size("qk_rope_head_dim")
    return AttentionShape(heads, heads, key_dim, fields.size("v_head_dim"))


def read_token_cache(fields: Fields, options: LayoutOptions, kind: CacheKind) -> TokenCache:
    """What a layer that attends as `kind` (FULL, WINDOW or CHUNK) keeps per token on one rank.

    Key and value heads are divided among the ranks; where there are fewer heads than ranks, each rank holds a copy of
    one. Every rank holds the whole latent. Raises `LayoutError`.
    """
    shape, cache_dtype = attention_shape(fields, kind), options.cache_dtype
    split(fields, "attention heads", shape.query_heads, options.tensor_parallel)
    if is_latent(fields):
        return _latent_cache(fields, cache_dtype)
    kv_heads = split_or_replicate(fields, "key and value heads", shape.kv_heads, options.tensor_parallel)
    if cache_dtype == PACKED_LATENT:
        raise LayoutError(
            f"{PACKED_LATENT} packs latents only, and {fields.name} has {kind} layers. Use another cache_dtype."
        )
    element = dtype_bytes(cache_dtype)
    return TokenCache(
        kind=kind,
        num_heads=kv_heads,
        key_dim=shape.key_dim,
        value_dim=shape.value_dim,
        dtype=cache_dtype,
        key_bytes=kv_heads * shape.key_dim * element,
        value_bytes=kv_heads * shape.value_dim * element,
        span=_span(fields, kind),
    )


def _span(fields: Fields, kind: CacheKind) -> int | None:
    if kind not in BOUNDED:
        return None
    if kind is CacheKind.CHUNK:
        return fields.size("attention_chunk_size")
    window = fields.size("sliding_window", "sliding_window_size")
    other = fields.number("sliding_window_size")
    if other is not None and other != window:
        raise LayoutError(
            f"{fields.name}: sliding_window is {window} and sliding_window_size is {other}. Remove the wrong one."
        )
    return window


def _latent_cache(fields: Fields, cache_dtype: str) -> TokenCache:
    """Latent and rope part, shared by the keys and values of all heads (DeepSeek-V2 report, section 2.1)."""
    rank, rope = fields.size("kv_lora_rank"), fields.size("qk_rope_head_dim")
    if cache_dtype == PACKED_LATENT:
        num_bytes = rank + _scales(rank) + rope * _ROPE_BYTES
    else:
        num_bytes = (rank + rope) * dtype_bytes(cache_dtype)
    return TokenCache(
        kind=CacheKind.LATENT,
        num_heads=1,
        key_dim=rank + rope,
        value_dim=0,
        dtype=cache_dtype,
        key_bytes=num_bytes,
        value_bytes=0,
        index_bytes=_index_bytes(fields),
    )


def _scales(num_elements: int) -> int:
    return -(-num_elements // _QUANTISED_RUN) * _SCALE_BYTES


def _index_bytes(fields: Fields) -> int:
    """The key of the sparse-attention indexer (DeepSeek-V3.2): fp8 with scales in every engine."""
    if not fields.has("index_head_dim"):
        return 0
    dim = fields.size("index_head_dim")
    fields.assume(
        f"indexer keys in fp8, one float32 scale per {_QUANTISED_RUN}: {dim + _scales(dim)} bytes per token and layer"
    )
    return dim + _scales(dim)
