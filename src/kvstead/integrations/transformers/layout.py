"""The memory layout of a loaded model, as transformers computes it."""

from __future__ import annotations

from typing import Any

from transformers import PreTrainedModel
from transformers.cache_utils import get_layer_types_and_kwargs

from kvstead.errors import LayoutError
from kvstead.model import BOUNDED, CacheKind, LayerCache, ModelLayout

_BOUNDS = {
    "sliding_attention": CacheKind.WINDOW,
    "hybrid_sliding": CacheKind.WINDOW,
    "chunked_attention": CacheKind.CHUNK,
}
_GLOBAL_KEYS = {"head_dim": "global_head_dim", "num_key_value_heads": "num_global_key_value_heads"}
_STATEFUL = {"linear_attention", "conv", "hybrid", "hybrid_sliding"}
_TOKENLESS = {"linear_attention", "conv", "dummy"}


def model_layout(model: PreTrainedModel, *, cache_dtype: str | None = None) -> ModelLayout:
    """What a model keeps in transformers: recurrent states in float32, and convolution histories of the whole kernel.

    cache_dtype: of keys, values and latents, which are converted to it; the model's own by default. Raises
    `LayoutError` for a configuration that cannot be read, or that transformers reads differently.
    """
    config = model.config
    own = str(model.dtype).removeprefix("torch.")
    layout = ModelLayout.from_config(
        _plain(config),
        name=config.model_type,
        cache_dtype=cache_dtype or own,
        state_dtype="float32",
        conv_dtype=own,
        conv_columns="kernel",
    )
    require_same_layers(layout, config)
    return layout


def require_same_layers(layout: ModelLayout, config: Any) -> None:
    """Raise `LayoutError` unless every layer keeps the same kinds of cache in the layout and in transformers."""
    if layout.state_bytes and layout.options.conv_columns != "kernel":
        raise LayoutError(
            f"{layout.name} keeps {layout.options.conv_columns} columns of convolution history in its layout, and "
            "transformers keeps the whole kernel. Make the layout by `model_layout`."
        )
    types, options = get_layer_types_and_kwargs(config)
    if len(types) != len(layout.layers):
        raise LayoutError(
            f"{layout.name} has {len(layout.layers)} layers in its layout and {len(types)} in transformers. Make the "
            "layout by `model_layout`."
        )
    for layer, name, option in zip(layout.layers, types, options, strict=True):
        span = option.get("sliding_window")
        if not _agree(layer, name, span):
            kept = f"{' and '.join(layer.kinds) or 'nothing'}{_of(layer.tokens.span if layer.tokens else None)}"
            raise LayoutError(
                f"layer {layer.index} of {layout.name} keeps {kept} in its layout and is a {name} layer{_of(span)} in "
                "transformers. Make the layout by `model_layout`."
            )


def _agree(layer: LayerCache, name: str, span: int | None) -> bool:
    tokens = layer.tokens
    if bool(layer.state) != (name in _STATEFUL) or (tokens is None) != (name in _TOKENLESS):
        return False
    bound = tokens.kind if tokens and tokens.kind in BOUNDED else None
    return tokens is None or (tokens.span == span and bound == _BOUNDS.get(name))


def _of(span: int | None) -> str:
    return f" of {span} tokens" if span else ""


def _plain(config: Any) -> dict[str, Any]:
    """A configuration with the keys of its file: in Gemma 4's, a shape that all full layers share has its own keys."""
    values: dict[str, Any] = config.to_dict()
    values.setdefault("num_hidden_layers", config.num_hidden_layers)  # counted as transformers does
    shapes = values.get("per_layer_config") or {}
    whole = {at for at, name in enumerate(values.get("layer_types") or ()) if name == "full_attention"}
    first: dict[str, Any] = next(iter(shapes.values()), {})
    is_global = all(shape == first for shape in shapes.values()) and {int(at) for at in shapes} == whole
    if shapes and is_global and first.keys() <= _GLOBAL_KEYS.keys():
        del values["per_layer_config"]
        values |= {_GLOBAL_KEYS[key]: value for key, value in first.items()}
    return values
