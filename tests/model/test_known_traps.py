"""Geometries that sizing tools get wrong; each test is named after the mistake."""

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvstead.errors import InvalidSize, LayoutError
from kvstead.model import (
    CacheKind,
    ComputeProfile,
    ModelLayout,
    concurrent_requests,
    equal_page,
    preset_names,
    split_bytes,
    split_memory,
    split_slots,
)
from kvstead.model.catalog import preset_config

_TWO_SHAPES = {
    "model_type": "mimo_v2_flash",
    "hidden_size": 4096,
    "num_hidden_layers": 8,
    "num_attention_heads": 64,
    "num_key_value_heads": 4,
    "head_dim": 192,
    "v_head_dim": 128,
    "swa_num_key_value_heads": 8,
    "sliding_window": 128,
    "hybrid_layer_pattern": [0, 1, 1, 1, 0, 1, 1, 1],
}


def test_layers_of_gemma3_are_no_multiple_of_the_pattern():
    """Every sixth layer is full and the rest slide, also where the number of layers is no multiple of six."""
    layout = ModelLayout.preset("gemma-3-27b")
    full = [layer.index for layer in layout.layers if CacheKind.FULL in layer.kinds]
    assert full == [5, 11, 17, 23, 29, 35, 41, 47, 53, 59]
    assert len(layout.layers) == 62
    assert layout.sequence_bytes(131_072) == 81_920 * 131_072 + 425_984 * 1024
    assert round(layout.sequence_bytes(131_072) / 1e9, 2) == 11.17


@pytest.mark.parametrize(("name", "layers"), [("gpt-oss-20b", 24), ("gpt-oss-120b", 36)])
def test_head_size_is_not_hidden_size_by_heads(name, layers):
    """gpt-oss has heads of 64 though 2880 / 64 is 45: 2,048 bytes per token and layer, capped in every other layer."""
    layout = ModelLayout.preset(name)
    assert {layer.token_bytes for layer in layout.layers} == {2048}
    half = layers // 2 * 2048
    for length in (0, 1, 127, 128, 129, 100_000):
        assert layout.sequence_bytes(length) == half * (length + min(length, 128))


def test_a_window_smaller_than_a_page_still_sizes_by_tokens():
    """A window of 128 with pages of 256 is legal: the layout counts tokens and leaves rounding to the pool."""
    layout = ModelLayout.preset("gpt-oss-20b")
    full, window = split_slots(layout, 10**9, 256, Fraction(1, 4))
    assert full % 256 == window % 256 == 0
    assert window > 0


def test_a_model_of_sliding_layers_only_has_no_full_pool():
    """Mistral v0.1 caps a sequence at 512 MiB, holds nothing per token in full, and is still one pool of slots."""
    layout = ModelLayout.preset("mistral-7b-v0.1")
    assert layout.kinds == (CacheKind.WINDOW,)
    assert layout.full_bytes_per_token == 0
    assert layout.sequence_bytes(4096) == layout.sequence_bytes(1_000_000) == 512 * 2**20
    assert layout.slots_for(2**30, 16) == 8192 - 16


def test_a_null_window_means_full_attention():
    """Mistral v0.3 gives sliding_window as null, which is no window, not the class default of 4096."""
    layout = ModelLayout.preset("mistral-7b-v0.3")
    assert layout.kinds == (CacheKind.FULL,)
    assert layout.window is None


def test_a_missing_window_is_the_class_default_and_the_layout_says_so():
    """A Mistral file without the key slides over 4096 tokens, as its class does, and the assumption is on record."""
    config = {key: value for key, value in preset_config("mistral-7b-v0.1").items() if key != "sliding_window"}
    layout = ModelLayout.from_config(config)
    assert layout.window == 4096
    assert any("sliding_window = 4096" in text and "transformers" in text for text in layout.assumptions)


@pytest.mark.parametrize(
    ("length", "held"), [(0, 0), (1, 1), (8192, 8192), (8193, 1), (16_384, 8192), (16_385, 1), (20_000, 3616)]
)
def test_chunks_are_dropped_whole(length, held):
    """Llama 4 holds the tokens of the current chunk: the live span swings between 1 and 8,192."""
    layout = ModelLayout.preset("llama-4-scout")
    assert layout.window_kind == "chunked"
    assert layout.sequence_bytes(length) == 49_152 * length + 147_456 * held


def test_the_layers_without_positions_are_the_full_ones():
    """In Llama 4 every fourth layer has no rotary positions and attends to everything."""
    layout = ModelLayout.preset("llama-4-scout")
    assert [layer.index for layer in layout.layers if CacheKind.FULL in layer.kinds] == list(range(3, 48, 4))


def test_gated_delta_state_and_its_options():
    """Qwen3-Next keeps 2,146,304 bytes of state per layer, 3,144 tokens worth; half as wide it is 39.5 MB."""
    layout = ModelLayout.preset("qwen3-next-80b-a3b")
    stateful = [layer for layer in layout.layers if layer.state]
    assert {layer.state_bytes for layer in stateful} == {2_146_304}
    conv, recurrent = stateful[0].state
    assert (conv.shape, conv.dtype) == ((8192, 3), "bfloat16")
    assert (recurrent.shape, recurrent.dtype) == ((32, 128, 128), "float32")
    assert layout.state_bytes == 77_266_944 == 3144 * layout.full_bytes_per_token
    assert ModelLayout.preset("qwen3-next-80b-a3b", state_dtype="bfloat16").state_bytes == 39_518_208
    assert ModelLayout.preset("qwen3-next-80b-a3b", conv_columns="kernel").layers[0].state[0].shape == (8192, 4)


def test_a_state_dtype_against_the_configuration_is_noted():
    """Qwen3.5 states float32 for its recurrent part; another choice is obeyed and noted, the same one is not."""
    assert ModelLayout.preset("qwen3.5-27b").assumptions == ()
    (note,) = ModelLayout.preset("qwen3.5-27b", state_dtype="bfloat16").assumptions
    assert "mamba_ssm_dtype is float32" in note


def test_feed_forward_layers_of_a_pattern_hold_no_cache():
    """Nemotron-H-8B: the pattern string decides, 24 state, 24 feed-forward and 4 attention layers."""
    layout = ModelLayout.preset("nemotron-h-8b")
    pattern = preset_config("nemotron-h-8b")["hybrid_override_pattern"]
    expected = {"M": (CacheKind.STATE,), "*": (CacheKind.FULL,), "-": ()}
    assert [layer.kinds for layer in layout.layers] == [expected[letter] for letter in pattern]
    assert layout.layers[0].state[0].shape == (10_240, 3)


def test_the_pattern_wins_over_the_number_of_layers():
    """Where num_hidden_layers disagrees with the pattern string, the pattern counts and the layout says so."""
    config = {**preset_config("nemotron-h-8b"), "num_hidden_layers": 28}
    layout = ModelLayout.from_config(config)
    assert layout.layers == ModelLayout.preset("nemotron-h-8b").layers
    assert any("num_hidden_layers says 28" in text for text in layout.assumptions)


def test_period_and_offset_name_the_attention_layers():
    """Jamba has no list of layers: every eighth attends, from the fourth on, and a Mamba-1 state has no head."""
    layout = ModelLayout.preset("jamba-v0.1")
    assert [layer.index for layer in layout.layers if layer.tokens] == [4, 12, 20, 28]
    conv, recurrent = layout.layers[0].state
    assert (conv.shape, recurrent.shape) == ((8192, 3), (8192, 16))


def test_bamba_lists_only_the_attention_layers():
    """Bamba's index list names the attention layers; all others have a state."""
    layout = ModelLayout.preset("bamba-9b")
    assert [layer.index for layer in layout.layers if layer.tokens] == [9, 18, 27]
    assert all(bool(layer.state) != bool(layer.tokens) for layer in layout.layers)


@pytest.mark.parametrize("ranks", [1, 2, 8, 16])
def test_a_latent_does_not_split(ranks):
    """DeepSeek-V3 keeps 70,272 bytes per token on every rank, with no factor 2; in fp8 half of it, packed 40,016."""
    assert ModelLayout.preset("deepseek-v3", tensor_parallel=ranks).full_bytes_per_token == 70_272
    flat = ModelLayout.preset("deepseek-v3", cache_dtype="float8_e4m3fn", tensor_parallel=ranks)
    assert flat.full_bytes_per_token == 35_136
    packed = ModelLayout.preset("deepseek-v3", cache_dtype="fp8_ds_mla", tensor_parallel=ranks)
    assert packed.full_bytes_per_token == 61 * 656 == 40_016
    assert packed.kinds == (CacheKind.LATENT,)


def test_indexer_keys_add_to_the_latent():
    """DeepSeek-V3.2 keeps 132 bytes of indexer key per token and layer beside the packed latent."""
    config = {**preset_config("deepseek-v3"), "model_type": "deepseek_v32"}
    config |= {"index_head_dim": 128, "index_n_heads": 64, "index_topk": 2048}
    layout = ModelLayout.from_config(config, cache_dtype="fp8_ds_mla")
    assert layout.full_bytes_per_token == 61 * (656 + 132) == 48_068
    assert any("indexer" in text for text in layout.assumptions)
    assert ComputeProfile.from_config(config).total_params > ComputeProfile.preset("deepseek-v3").total_params


def test_packed_latents_are_for_latents_only():
    """Asking for packed latents of a model with keys and values raises."""
    with pytest.raises(LayoutError, match="packs latents only"):
        ModelLayout.preset("llama-3.1-8b", cache_dtype="fp8_ds_mla")


def test_shared_layers_read_the_last_owner_of_their_type():
    """Gemma 3n: the last 15 layers own nothing; each reads the last of the first 20 that attends as it does."""
    layout = ModelLayout.preset("gemma-3n-e4b")
    for layer in layout.layers[20:]:
        owner = 19 if layer.shared_kind is CacheKind.FULL else 18
        assert (layer.kinds, layer.token_bytes, layer.shared_with) == ((), 0, owner)
        assert layout.layers[owner].kinds == (layer.shared_kind,)
    assert all(layer.shared_kind is None for layer in layout.layers[:20])
    assert layout.sequence_bytes(10_000) == 8192 * 10_000 + 32_768 * 512


def test_a_draft_model_may_share_every_layer():
    """A model whose layers all read another model's cache owns nothing, names no owner, and is no pool."""
    text = {**preset_config("gemma-3n-e4b")["text_config"], "num_kv_shared_layers": 35}
    layout = ModelLayout.from_config(text)
    assert layout.kinds == ()
    assert layout.sequence_bytes(1000) == 0
    assert {layer.shared_with for layer in layout.layers} == {None}
    with pytest.raises(LayoutError, match="keeps nothing"):
        layout.slots_for(2**30, 16)


def test_a_shared_layer_without_an_owner_of_its_type_raises():
    """A full layer cannot read a cache when only sliding layers come before the shared ones."""
    config = {**_TWO_SHAPES, "hybrid_layer_pattern": [1, 1, 1, 1, 1, 1, 1, 0], "num_kv_shared_layers": 1}
    with pytest.raises(LayoutError, match=r"layer 7 shares a full cache.*0 \.\. 6"):
        ModelLayout.from_config(config)


def test_layers_that_do_not_attend_share_nothing():
    """Among the last layers, which share, a state or feed-forward layer stays what it is."""
    config = {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8, "num_kv_shared_layers": 2}
    layout = ModelLayout.from_config({**config, "hybrid_override_pattern": "*-*-"})
    assert [layer.shared_with for layer in layout.layers] == [None, None, 0, None]
    assert [layer.kinds for layer in layout.layers] == [(CacheKind.FULL,), (), (), ()]


def test_cross_layer_sharing_halves_hunyuan():
    """Hunyuan-Large: every second layer reads the one before it, so 64 layers have 32 owners."""
    layout = ModelLayout.preset("hunyuan-large")
    assert [layer.shared_with for layer in layout.layers] == [None if i % 2 == 0 else i - 1 for i in range(64)]
    unshared = ModelLayout.from_config({**preset_config("hunyuan-large"), "use_cla": False})
    assert unshared.full_bytes_per_token == 2 * layout.full_bytes_per_token == 163_840


@pytest.mark.parametrize("name", ["falcon-h1-7b", "zamba2-7b"])
def test_layers_may_have_attention_and_state(name):
    """Falcon-H1 and Zamba2 keep a state in every layer, also in those that attend."""
    layout = ModelLayout.preset(name)
    assert all(layer.state for layer in layout.layers)
    assert any(layer.kinds == (CacheKind.FULL, CacheKind.STATE) for layer in layout.layers)


def test_an_automatic_head_size_follows_the_inner_width():
    """Falcon-H1: `mamba_d_head` "auto" is mamba_d_ssm by heads, and mamba_d_ssm overrides expand times hidden size."""
    config = preset_config("falcon-h1-7b")
    assert ModelLayout.from_config({**config, "mamba_d_head": "auto"}).layers == ModelLayout.from_config(config).layers
    with pytest.raises(LayoutError, match="24 Mamba heads of 128 are not 6144 wide"):
        ModelLayout.from_config({**config, "mamba_d_ssm": None})


def test_zamba2_attends_at_twice_the_hidden_size():
    """Zamba2's head size is 224 though kv_channels says 112, and its positions are irregular and share no cache."""
    layout = ModelLayout.preset("zamba2-7b")
    hybrid = [layer for layer in layout.layers if layer.tokens]
    assert {(layer.tokens.key_dim, layer.tokens.value_dim) for layer in hybrid} == {(224, 224)}
    assert [layer.index for layer in hybrid][:3] == [6, 11, 17]
    assert len(hybrid) == 13


def test_later_and_early_names_of_zamba2_agree():
    """The early export's key names and the later ones give the same state."""
    config = dict(preset_config("zamba2-7b"))
    for early, later in (
        ("state_size", "mamba_d_state"),
        ("conv_dimension", "mamba_d_conv"),
        ("expansion_factor", "mamba_expand"),
    ):
        config[later] = config.pop(early)
    config["n_mamba_heads"] = 112
    del config["mamba_headdim"]
    assert ModelLayout.from_config(config).layers == ModelLayout.preset("zamba2-7b").layers


def test_kimi_lists_count_from_one_and_its_head_dim_is_no_cache_width():
    """Kimi-Linear: layers 4, 8 .. 24 and 27 of 1 .. 27 keep a latent of 576; three convolutions precede the state."""
    layout = ModelLayout.preset("kimi-linear-48b-a3b")
    latent = [layer.index + 1 for layer in layout.layers if layer.kinds == (CacheKind.LATENT,)]
    assert latent == [4, 8, 12, 16, 20, 24, 27]
    assert layout.full_bytes_per_token == 7 * 576 * 2 == 8064
    assert [part.shape for part in layout.layers[0].state] == [(4096, 3)] * 3 + [(32, 128, 128)]


def test_full_and_sliding_layers_may_differ_in_shape():
    """Gemma 4 has 4 heads of 512 in full layers and 16 of 256 in sliding ones, and stores keys and values in both."""
    layout = ModelLayout.preset("gemma-4-31b")
    shapes = {(e.kind, e.num_heads, e.key_dim, e.value_dim) for layer in layout.layers if (e := layer.tokens)}
    assert shapes == {(CacheKind.WINDOW, 16, 256, 256), (CacheKind.FULL, 4, 512, 512)}
    assert layout.bytes_per_token(CacheKind.FULL) == 81_920
    assert layout.bytes_per_token(CacheKind.WINDOW) == 819_200


def test_keys_and_values_may_differ_in_width():
    """MiMo-V2-Flash: K 192 and V 128 wide; it slides although a chunk size is present."""
    layout = ModelLayout.preset("mimo-v2-flash")
    entry = layout.layers[0].tokens
    assert (entry.key_bytes, entry.value_bytes) == (4 * 192 * 2, 4 * 128 * 2)
    assert (layout.window_kind, layout.window) == ("sliding", 128)


def test_an_unknown_class_with_a_list_of_layers_is_read_by_the_list():
    """An unknown class is charged for its full layers only, when its file lists sliding ones."""
    config = {
        "model_type": "spark_x2_5",
        "num_hidden_layers": 36,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "sliding_window": 512,
        "layer_types": [*["sliding_attention"] * 3, "full_attention"] * 9,
    }
    layout = ModelLayout.from_config(config, cache_dtype="float8_e4m3fn")
    assert layout.full_bytes_per_token == 9 * 2048 == 18_432
    assert layout.window_bytes_per_token == 27 * 2048


def test_a_short_convolution_is_all_the_state_there_is():
    """LFM2 keeps 2 columns of 2,048 channels per convolution layer and no recurrent part."""
    (part,) = ModelLayout.preset("lfm2-1.2b").layers[0].state
    assert (part.name, part.shape, part.num_bytes) == ("conv", (2048, 2), 8192)


def test_phi3_slides_as_its_file_says():
    """Phi-3-mini declares a window of 2047, and every layer has it."""
    layout = ModelLayout.preset("phi-3-mini-4k")
    assert (layout.window, layout.window_bytes_per_token, layout.full_bytes_per_token) == (2047, 393_216, 0)


def test_minimax_m2_attends_everywhere():
    """MiniMax-M2 is full attention in all layers; the lightning-attention models of that name raise."""
    assert ModelLayout.preset("minimax-m2").kinds == (CacheKind.FULL,)
    with pytest.raises(LayoutError, match="'attn_type_list'"):
        ModelLayout.from_config({**preset_config("minimax-m2"), "attn_type_list": [0, 1] * 31})


def test_budget_of_asymmetric_pools():
    """2 full and 6 sliding layers at a ratio of 1/2: 20,480,000 bytes hold 1,000 full and 500 window tokens, 0 left."""
    layout = ModelLayout.from_config(_TWO_SHAPES)
    assert (layout.full_bytes_per_token, layout.window_bytes_per_token) == (5120, 30_720)
    padding = 5120 + 30_720
    assert split_slots(layout, 20_480_000 + padding, 1, Fraction(1, 2)) == (1000, 500)
    assert split_slots(layout, 20_480_000 + padding - 1, 1, Fraction(1, 2)) == (999, 499)
    split = split_memory(layout, 20_480_000 + padding, 1, window_ratio=0.5)
    assert (split.num_slots, split.num_window_slots) == (1000, 500)
    assert split_bytes(layout, 1000, 500, 1) == 20_480_000 + padding
    # The window side rounds down, so one full token fits where a token and a half would not.
    assert split_slots(layout, 5120 + padding, 1, Fraction(1, 2)) == (1, 0)
    uniform = ModelLayout.from_config({**_TWO_SHAPES, "hybrid_layer_pattern": [0] * 8})
    assert uniform.slots_for(uniform.bytes_for(1000, 1), 1) == 1000


def test_a_draft_model_is_sized_by_the_slots_after_the_split():
    """A draft of full layers needs as many slots as the full side has, more than if its target had full layers only."""
    layout, draft = ModelLayout.preset("gpt-oss-120b"), ModelLayout.preset("smollm2-135m")
    split = split_memory(layout, 10**10, 16)
    assert draft.slots_for(draft.bytes_for(split.num_slots, 16), 16) == split.num_slots
    assert split.num_slots > 10**10 // (layout.full_bytes_per_token + layout.window_bytes_per_token)


def test_uniform_and_hybrid_sizes_of_gpt_oss():
    """gpt-oss-120b: 73,728 bytes per token if every layer were full, 36,864 and a capped 36,864 as it is."""
    layout = ModelLayout.preset("gpt-oss-120b")
    assert layout.full_bytes_per_token + layout.window_bytes_per_token == 73_728
    assert layout.sequence_bytes(1000) == 36_864 * 1000 + 36_864 * 128


@given(
    st.integers(0, 10**9),
    st.integers(1, 300),
    st.fractions(min_value=0, max_value=3, max_denominator=50),
)
def test_a_split_fits_and_one_page_more_does_not(num_bytes, page_size, ratio):
    """The split of a budget over two pools costs no more than the budget, and no larger one would fit."""
    layout = ModelLayout.from_config(_TWO_SHAPES)

    def cost(pages):
        return (5120 * (pages + 1) + 30_720 * (int(pages * ratio) + 1)) * page_size

    full, window = split_slots(layout, num_bytes, page_size, ratio)
    pages = full // page_size
    assert (full % page_size, window) == (0, int(pages * ratio) * page_size)
    assert pages == 0 or cost(pages) <= num_bytes
    assert cost(pages + 1) > num_bytes


def test_a_split_of_one_pool_or_of_bad_sizes_raises():
    """Splitting needs a full and a window pool, a page size of at least 1 and no negative number."""
    with pytest.raises(LayoutError, match="not two sides"):
        split_slots(ModelLayout.preset("qwen3-8b"), 10**9, 16, Fraction(1))
    for num_bytes, page_size, ratio in ((-1, 1, 1), (1, 0, 1), (1, 1, -1)):
        with pytest.raises(InvalidSize):
            split_slots(ModelLayout.preset("gpt-oss-20b"), num_bytes, page_size, Fraction(ratio))


def test_how_many_requests_a_state_pool_admits():
    """40 slots at 4 a request admit 10 and not 8; without tracking 40; other limits only lower it."""
    assert concurrent_requests(40, 1 + 2 + 1) == 10
    assert concurrent_requests(40, 1) == 40
    assert concurrent_requests(40, 4, 7, 100) == 7
    assert concurrent_requests(3, 4) == 0
    for slots, each in ((-1, 1), (1, 0)):
        with pytest.raises(InvalidSize, match="per request"):
            concurrent_requests(slots, each)


def test_equal_pages_of_attention_and_state_waste_short_prompts():
    """Qwen3-Next: pages of equal bytes hold 1,048 tokens, so a prompt of 12 pins 1,048; with pools apart it pins 12."""
    layout = ModelLayout.preset("qwen3-next-80b-a3b")
    page = equal_page(layout)
    assert (page.num_tokens, page.num_bytes, page.padding_bytes) == (1048, 2_146_304, 0)
    pinned = layout.full_bytes_per_token * page.num_tokens + layout.state_bytes
    assert layout.sequence_bytes(12) == layout.full_bytes_per_token * 12 + layout.state_bytes < pinned


def test_equal_pages_are_padded_where_sizes_do_not_divide():
    """A state that is no multiple of a token's bytes leaves the rest of the page unused, and nothing asserts."""
    page = equal_page(ModelLayout.preset("bamba-9b"))
    assert (page.num_tokens, page.num_bytes, page.padding_bytes) == (1037, 1037 * 4096, 1037 * 4096 - 4_244_992)
    with pytest.raises(LayoutError, match="one size of each"):
        equal_page(ModelLayout.preset("qwen3-8b"))


def test_sizes_are_exact_beyond_32_and_64_bits():
    """Products of sizes are Python ints: no slot number or length wraps."""
    layout = ModelLayout.preset("llama-3.1-70b")
    assert layout.bytes_for(2**62, 16) == (2**62 + 16) * 327_680
    assert layout.sequence_bytes(10**30) == 327_680 * 10**30


def test_only_two_presets_need_a_class_default():
    """All that the bundled files leave to their classes is Gemma 2's alternation and Llama 4's interval."""
    filled = {
        name: tuple(text.split(" (")[0] for text in ModelLayout.preset(name).assumptions if "default of" in text)
        for name in preset_names()
    }
    assert {name: texts for name, texts in filled.items() if texts} == {
        "gemma-2-9b": ("sliding_window_pattern = 2",),
        "llama-4-scout": ("no_rope_layer_interval = 4",),
    }
