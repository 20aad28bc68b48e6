"""Layouts of loaded models, and layouts that differ from them."""

import pytest
import torch
from hf_models import CONFIGS, random_model, tiny_config, tiny_model
from transformers.cache_utils import DynamicCache

from kvstead.errors import LayoutError
from kvstead.integrations.transformers import model_layout
from kvstead.integrations.transformers.layout import require_same_layers
from kvstead.model import ModelLayout

_TYPES = {
    "gemma3_text": ["sliding_attention", "sliding_attention", "full_attention", "sliding_attention"],
    "llama4_text": ["chunked_attention", "chunked_attention", "full_attention", "chunked_attention"],
}
_SOME = ("gemma4_text", "deepseek_v3", "qwen3_next", "falcon_h1", "lfm2", "gpt2")


@pytest.mark.parametrize("family", _SOME)
def test_layouts_have_the_bytes_of_transformers_caches(family):
    """Bytes by layer equal those of transformers' own cache after a prompt shorter than a window."""
    model = tiny_model(family)
    tokens = torch.arange(3, 11)[None]
    cache = DynamicCache(config=model.config)
    with torch.no_grad():
        model(input_ids=tokens, cache=cache, use_cache=True)
    for layer, kept in zip(model_layout(model).layers, cache.layers, strict=True):
        entries = [tensor for tensor in (kept.keys, kept.values) if tensor is not None] if hasattr(kept, "keys") else []
        assert layer.token_bytes * tokens.numel() == sum(tensor.nbytes for tensor in entries)
        states = [*getattr(kept, "conv_states", {}).values(), *getattr(kept, "recurrent_states", {}).values()]
        assert layer.state_bytes == sum(state.nbytes for state in states if state is not None)


@pytest.mark.parametrize("family", CONFIGS)
def test_layouts_and_configurations_agree(family):
    """The layers of every family's configuration keep what transformers keeps for them."""
    config = tiny_config(family)
    values = {**config.to_dict(), "num_hidden_layers": config.num_hidden_layers, "per_layer_config": None}
    require_same_layers(ModelLayout.from_config(values, conv_columns="kernel"), config)


def test_dtypes_are_those_of_transformers_caches():
    """Histories are in the model's dtype, recurrent states in float32, entries in the cache dtype."""
    model = random_model(tiny_config("qwen3_next")).to(torch.bfloat16)
    for cache_dtype, expected in ((None, "bfloat16"), ("float32", "float32")):
        layers = model_layout(model, cache_dtype=cache_dtype).layers
        assert {layer.tokens.dtype for layer in layers if layer.tokens} == {expected}
        dtypes = {(part.name, part.dtype) for layer in layers for part in layer.state}
        assert dtypes == {("conv", "bfloat16"), ("recurrent", "float32")}


def test_layers_of_different_shapes_are_refused():
    """Layers whose shapes differ within a kind are not supported."""
    config = tiny_config("gemma4_text", per_layer_config={1: {"head_dim": 32}, 3: {"head_dim": 64}})
    model = type("Model", (), {"config": config, "dtype": torch.float32})()
    with pytest.raises(LayoutError, match="per_layer_config"):
        model_layout(model)


def test_short_histories_are_refused():
    """Transformers keeps the whole kernel of history, so a layout with a column less is not the model's."""
    config = tiny_config("lfm2")
    with pytest.raises(LayoutError, match="kernel-1 columns"):
        require_same_layers(ModelLayout.from_config(config.to_dict()), config)


def test_another_window_is_refused():
    """A layout for another window, or for chunks of its size, is not the model's."""
    config = tiny_config("gemma3_text")
    for other in (tiny_config("gemma3_text", sliding_window=8), tiny_config("llama4_text")):
        layout = ModelLayout.from_config({**other.to_dict(), "layer_types": _TYPES[other.model_type]})
        with pytest.raises(LayoutError, match="in its layout and is a sliding_attention layer of 16 tokens in"):
            require_same_layers(layout, config)
