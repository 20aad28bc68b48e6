"""The pools as a model's cache, and what a model may not write to it."""

from dataclasses import replace

import pytest
from hf_models import random_model, tiny_config, tiny_model
from hf_runs import FIRST, Run

from kvstead.errors import InvalidSize, LayoutError
from kvstead.integrations.transformers import model_layout


def test_entries_of_another_shape_are_refused():
    """A pool whose entries are wider than the model's stops the first pass."""
    layout = model_layout(random_model(tiny_config("llama", head_dim=32)))
    with pytest.raises(InvalidSize, match="key entries of shape"):
        Run(tiny_model("llama"), {"num_slots": 256}, layout=layout).serve(FIRST)


def test_states_that_a_layout_leaves_out_are_refused():
    """A model with a state that the layout lacks stops the first pass instead of losing the state."""
    model = tiny_model("qwen3_next")
    layout = model_layout(model)
    layers = tuple(replace(layer, state=layer.state[:1]) for layer in layout.layers)
    with pytest.raises(LayoutError, match="layer 0 of the model keeps more than its layout says"):
        Run(model, {"num_slots": 256, "num_states": 8}, layout=replace(layout, layers=layers)).serve(FIRST)
