"""The smallest models that have a cache, for tests that need one of known size."""

from kvstead.engine import KVCacheManager
from kvstead.model import BOUNDED, CacheKind, LayerCache, ModelLayout, StatePart, TokenCache

VOCABULARY = 5
TOKEN_BYTES = 32
LAYER_BYTES = 16  # one token in one layer, of whatever kind

_SHAPE = {
    "num_hidden_layers": 2,
    "hidden_size": 8,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 4,
    "vocab_size": VOCABULARY,
    "intermediate_size": 8,
}


def tiny_layout() -> ModelLayout:
    """Two layers of one head: `TOKEN_BYTES` a token."""
    return ModelLayout.from_config({"model_type": "llama", **_SHAPE}, name="tiny")


def tiny_window_layout(span: int, *, chunked: bool = False, pure: bool = False) -> ModelLayout:
    """Two layers of one head that keep a window of `span` tokens (or a chunk), one of them whole sequences if not pure.

    `LAYER_BYTES` a token and layer.
    """
    if chunked:
        kinds = ["chunked_attention"] * 2 if pure else ["chunked_attention", "full_attention"]
        config = {"model_type": "llama4_text", "attention_chunk_size": span, "layer_types": kinds}
    elif pure:
        config = {"model_type": "mistral", "sliding_window": span}
    else:
        config = {
            "model_type": "gemma3_text",
            "sliding_window": span,
            "layer_types": ["sliding_attention", "full_attention"],
        }
    name = f"tiny {'chunks' if chunked else 'windows'} of {span}{' alone' if pure else ''}"
    return ModelLayout.from_config({**_SHAPE, **config}, name=name)


def tiny_manager(num_slots, page_size=1, *, layout=None, **options) -> KVCacheManager:
    """A manager of so many slots without storage; those of a model of windows alone are window slots."""
    options = {"max_requests": 16, "max_length": 512, "storage": False, **options}
    return KVCacheManager(layout or tiny_layout(), num_slots=num_slots, page_size=page_size, **options)


def tiny_state_layout(span: int = 0, *, chunked: bool = False, state_rows: int = 4) -> ModelLayout:
    """A layer of whole sequences, one with a window of `span` tokens (or a chunk) if any, and one with a state.

    `LAYER_BYTES` a token and layer; a state has 24 + 16 * `state_rows` bytes, no multiple of a token's.
    """
    kinds = [CacheKind.FULL]
    if span:
        kinds.append(CacheKind.CHUNK if chunked else CacheKind.WINDOW)
    size = LAYER_BYTES // 2
    layers = [
        LayerCache(at, TokenCache(kind, 1, 4, 4, "bfloat16", size, size, span=span if kind in BOUNDED else None))
        for at, kind in enumerate(kinds)
    ]
    state = StatePart("conv", (3, 4), "bfloat16"), StatePart("recurrent", (state_rows, 4), "float32")
    layers.append(LayerCache(len(layers), state=state))
    name = f"tiny states{f' and windows of {span}' if span else ''}"
    return ModelLayout(name, tuple(layers))
