"""The table of families, and what it refuses."""

import pytest
from hf_models import CONFIGS, tiny_config

from kvstead.errors import LayoutError
from kvstead.integrations.transformers import FAMILIES, REFUSED
from kvstead.integrations.transformers.families import packing_limit, rope_limit, way_of


def test_every_family_is_compared():
    """Each family in the table has a tiny model in the tests, and none is also refused."""
    assert set(CONFIGS) == set(FAMILIES)
    assert not set(FAMILIES) & set(REFUSED)


@pytest.mark.parametrize("family", REFUSED)
def test_a_family_that_cannot_run_is_refused_by_name(family):
    """The error names the family and the reason in the table."""
    config = tiny_config("llama")
    config.model_type = family
    with pytest.raises(LayoutError, match=family) as caught:
        way_of(config)
    assert REFUSED[family] in str(caught.value)


def test_a_family_outside_the_table_is_refused():
    """The message says that it was never compared."""
    config = tiny_config("llama")
    config.model_type = "bloom"
    with pytest.raises(LayoutError, match="'bloom' do not run here: it was never compared"):
        way_of(config)


def test_a_model_that_looks_ahead_is_refused():
    """A Gemma that attends in both directions is not a causal model."""
    config = tiny_config("gemma3_text", use_bidirectional_attention=True)
    with pytest.raises(LayoutError, match="use_bidirectional_attention"):
        way_of(config)


def test_positions_limit_what_may_be_shared():
    """A rotation by the batch's longest sequence limits rows; a scale by the cache's length limits shared passes."""
    none = 2**62
    llama = tiny_config("llama")
    assert (rope_limit(llama), packing_limit(llama)) == (none, none)
    dynamic = {"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 2.0}
    assert rope_limit(tiny_config("llama", rope_parameters=dynamic)) == 512
    long = {"rope_type": "longrope", "rope_theta": 10000.0, "original_max_position_embeddings": 64}
    long |= {"short_factor": [1.0] * 8, "long_factor": [2.0] * 8}
    phi = tiny_config("phi3")
    phi.rope_parameters = long
    assert rope_limit(phi) == 64
    assert rope_limit(tiny_config("gemma3_text")) == none
    assert packing_limit(tiny_config("llama4_text", floor_scale=20)) == 19
