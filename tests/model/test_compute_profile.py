"""Parameters and attention FLOPs: against published sizes and hand-counted small models."""

import pytest

from kvstead.errors import LayoutError
from kvstead.model import ComputeProfile
from kvstead.model.catalog import preset_config

_DENSE = {
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 1000,
    "tie_word_embeddings": False,
}


@pytest.mark.parametrize(
    ("name", "billions"),
    [
        ("qwen3-30b-a3b", 3.3),
        ("qwen3-235b-a22b", 22),
        ("deepseek-v3", 37),
        ("deepseek-v2-lite", 2.4),
        ("kimi-k2", 32),
        ("gpt-oss-120b", 5.1),
        ("llama-4-scout", 17),
        ("glm-4.5-air", 12),
        ("minimax-m2", 10),
        ("jamba-v0.1", 12),
        ("hunyuan-large", 52),
        ("mimo-v2-flash", 15),
        ("granite-4.0-h-small", 9),
    ],
)
def test_active_parameters_are_the_advertised_ones(name, billions):
    """The parameters a token passes through match what the model's makers say, up to how they count embeddings."""
    profile = ComputeProfile.preset(name)
    embeddings = preset_config(name).get("text_config", preset_config(name))
    table = embeddings["vocab_size"] * embeddings["hidden_size"]
    assert profile.active_params - 2 * table <= billions * 1.03e9
    assert profile.active_params >= billions * 0.97e9


def test_a_dense_model_counted_by_hand():
    """Embeddings twice, and per layer four projections and three feed-forward matrices."""
    layer = 64 * 64 + 2 * 64 * 32 + 64 * 64 + 3 * 64 * 128
    profile = ComputeProfile.from_config(_DENSE)
    assert profile.total_params == profile.active_params == 2 * 64_000 + 3 * layer
    assert profile.attention_flops_per_pair == 3 * 2 * 4 * (16 + 16)
    assert profile.bounded_flops_per_pair == 0


def test_tied_embeddings_count_once():
    """A tied output shares the table; one that no key and no class decides raises."""
    untied = ComputeProfile.from_config(_DENSE).total_params
    assert untied - ComputeProfile.from_config({**_DENSE, "tie_word_embeddings": True}).total_params == 64_000
    with pytest.raises(LayoutError, match="lacks 'tie_word_embeddings'"):
        ComputeProfile.from_config({key: value for key, value in _DENSE.items() if key != "tie_word_embeddings"})


def test_only_chosen_and_shared_experts_are_active():
    """Of 8 experts 2 are chosen; router and shared expert always count; a leading dense layer has no experts."""
    config = {**_DENSE, "n_routed_experts": 8, "num_experts_per_tok": 2, "n_shared_experts": 1}
    config |= {"moe_intermediate_size": 32, "first_k_dense_replace": 1}
    profile = ComputeProfile.from_config(config)
    expert = 3 * 64 * 32
    assert profile.total_params - profile.active_params == 2 * 6 * expert
    dense = ComputeProfile.from_config(_DENSE).total_params
    assert profile.total_params == dense + 2 * (9 * expert + 64 * 8 - 3 * 64 * 128)


@pytest.mark.parametrize(
    ("keys", "num_sparse"),
    [
        ({}, 3),
        ({"mlp_layer_types": ["dense", "sparse", "dense"]}, 1),
        ({"moe_layer_freq": [0, 1, 1]}, 2),
        ({"moe_layer_freq": 2}, 2),
        ({"decoder_sparse_step": 2}, 1),
        ({"mlp_only_layers": [0, 2]}, 1),
        ({"expert_layer_period": 2, "expert_layer_offset": 1}, 1),
        ({"interleave_moe_layer_step": 3}, 1),
        ({"num_dense_layers": 2}, 1),
        ({"enable_moe_block": False}, 0),
    ],
)
def test_which_layers_have_experts(keys, num_sparse):
    """Lists, periods, steps and leading dense layers all say where the experts are."""
    config = {**_DENSE, "num_experts": 4, "num_experts_per_tok": 1, "moe_intermediate_size": 32, **keys}
    profile = ComputeProfile.from_config(config)
    assert profile.total_params - profile.active_params == num_sparse * 3 * 3 * 64 * 32


def test_a_list_that_ends_early_is_named():
    """Lists by layer have an entry for each; one that ends before the last layer raises and names the layer."""
    config = {**_DENSE, "num_experts": 4, "num_experts_per_tok": 1, "moe_layer_freq": [0, 1]}
    with pytest.raises(LayoutError, match="moe_layer_freq has 2 entries, none for layer 2"):
        ComputeProfile.from_config(config)


def test_a_hybrid_without_experts_uses_its_shared_width():
    """Granite hybrids without experts name the width of their dense part as that of a shared expert."""
    config = {**_DENSE, "num_local_experts": 0, "shared_intermediate_size": 256}
    assert ComputeProfile.from_config(config).total_params - ComputeProfile.from_config(_DENSE).total_params == (
        3 * 3 * 64 * 128
    )


def test_bounded_layers_are_told_apart():
    """Layers with a window attend to no more than that, so their share of the FLOPs is given by itself."""
    profile = ComputeProfile.preset("gpt-oss-20b")
    assert profile.attention_flops_per_pair == 24 * 2 * 64 * 128
    assert profile.bounded_flops_per_pair * 2 == profile.attention_flops_per_pair
    chunked = ComputeProfile.preset("llama-4-scout")
    assert chunked.bounded_flops_per_pair * 4 == chunked.attention_flops_per_pair * 3


def test_layers_that_reuse_a_cache_attend_all_the_same():
    """Sharing saves memory and projections, not attention: all 35 layers of Gemma 3n count."""
    assert ComputeProfile.preset("gemma-3n-e4b").attention_flops_per_pair == 35 * 2 * 8 * 512


def test_latent_attention_counts_in_expanded_form():
    """DeepSeek-V3 multiplies 192-wide queries and keys and 128-wide values for each of 128 heads in 61 layers."""
    assert ComputeProfile.preset("deepseek-v3").attention_flops_per_pair == 61 * 2 * 128 * (192 + 128)


def test_automatic_and_adjusted_widths():
    """Jamba's "auto" rank is a sixteenth of the hidden size; LFM2's feed-forward width is cut to 8,192."""
    config = preset_config("jamba-v0.1")
    assert ComputeProfile.from_config({**config, "mamba_dt_rank": "auto"}) == ComputeProfile.from_config(config)
    lfm2 = preset_config("lfm2-1.2b")
    plain = {**lfm2, "block_auto_adjust_ff_dim": False, "block_ff_dim": 8192}
    assert ComputeProfile.from_config(plain) == ComputeProfile.preset("lfm2-1.2b")
    with pytest.raises(LayoutError, match="block_ffn_dim_multiplier is 'x'"):
        ComputeProfile.from_config({**lfm2, "block_ffn_dim_multiplier": "x"})


def test_an_attention_adapter_adds_its_low_rank_parts():
    """Zamba2 files that adapt the shared attention too have three more pairs of matrices per use."""
    config = {**preset_config("zamba2-7b"), "use_shared_attention_lora": True}
    more = ComputeProfile.from_config(config).total_params - ComputeProfile.preset("zamba2-7b").total_params
    assert more == 13 * 3 * 2 * 7168 * 128
