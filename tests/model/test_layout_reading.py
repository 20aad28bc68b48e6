"""Reading configurations: what is filled in is recorded, and what is missing is named, never guessed."""

import contextlib
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvstead.errors import InvalidSize, KVSteadError, LayoutError
from kvstead.model import CacheKind, ComputeProfile, LayoutOptions, ModelLayout, load_layout, load_profile, preset_names
from kvstead.model.catalog import preset_config
from kvstead.model.defaults import CLASS_DEFAULTS

_PLAIN = {
    "model_type": "anything",
    "hidden_size": 512,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
}

_UNKNOWN = "model_type 'anything' is unknown, so the keys are read as llama's"


def _without(config, *keys):
    return {key: value for key, value in config.items() if key not in keys}


def _kinds(config):
    names = {CacheKind.FULL: "F", CacheKind.WINDOW: "W", CacheKind.CHUNK: "C", CacheKind.STATE: "S"}
    return " ".join(
        "".join(names[kind] for kind in layer.kinds) or "-" for layer in ModelLayout.from_config(config).layers
    )


def test_a_plain_configuration_attends_to_everything():
    """Heads, layers and a hidden size are enough for a model without any window or state."""
    layout = ModelLayout.from_config(_PLAIN)
    assert _kinds(_PLAIN) == "F F F F"
    assert layout.full_bytes_per_token == 4 * 2 * 2 * 64 * 2
    assert layout.assumptions == (_UNKNOWN, "head_dim = 512 / 8 heads = 64")
    assert layout.options == LayoutOptions()


@pytest.mark.parametrize("key", ["num_hidden_layers", "num_attention_heads", "num_key_value_heads", "hidden_size"])
def test_a_missing_key_is_named_with_those_looked_for(key):
    """Without a count that decides the cache reading raises, naming model, class, key and aliases."""
    with pytest.raises(LayoutError, match=rf"mine \(model_type 'anything'\) lacks '{key}'; looked for '{key}'"):
        ModelLayout.from_config(_without(_PLAIN, key), name="mine")


def test_a_head_size_that_does_not_divide_is_not_rounded():
    """Hidden size by heads is used only when it comes out even."""
    with pytest.raises(LayoutError, match=r"lacks 'head_dim'.*512 channels.*3 heads.*'attention_head_dim'"):
        ModelLayout.from_config({**_PLAIN, "num_attention_heads": 3})
    assert ModelLayout.from_config({**_PLAIN, "num_attention_heads": 3, "head_dim": 64}).assumptions == (_UNKNOWN,)


def test_a_class_whose_head_size_has_a_default_gets_it():
    """Qwen3 and Gemma have a head size of their own when the file has none: it is not hidden size by heads."""
    for model_type, head_dim in (("qwen3", 128), ("gemma", 256), ("anything", 64)):
        layout = ModelLayout.from_config({**_PLAIN, "model_type": model_type})
        assert {layer.tokens.key_dim for layer in layout.layers} == {head_dim}
        assert any(f"head_dim = {head_dim} (default of {model_type}" in text for text in layout.assumptions) == (
            model_type != "anything"
        )


def test_key_value_heads_follow_the_heads_only_in_known_classes():
    """Llama without num_key_value_heads has one per head, on record; an unknown class raises."""
    layout = ModelLayout.from_config({**_without(_PLAIN, "num_key_value_heads"), "model_type": "llama"})
    assert layout.layers[0].tokens.num_heads == 8
    assert any("num_key_value_heads = num_attention_heads = 8" in text for text in layout.assumptions)
    gpt2 = {"model_type": "gpt2", "n_embd": 768, "n_layer": 12, "n_head": 12}
    assert ModelLayout.from_config(gpt2).full_bytes_per_token == 12 * 2 * 768 * 2


def test_a_file_may_leave_everything_to_its_class():
    """The published 4B file gives width, layers and window only; the class supplies what the whole file says."""
    text = _without(
        preset_config("gemma-3-4b")["text_config"],
        *("num_attention_heads", "num_key_value_heads", "head_dim", "sliding_window_pattern"),
    )
    layout = ModelLayout.from_config({"model_type": "gemma3", "text_config": text})
    assert layout.layers == ModelLayout.preset("gemma-3-4b").layers
    assert len(layout.assumptions) == 4
    assert all("gemma3_text in transformers 5.24.0" in text for text in layout.assumptions)
    without_window = ModelLayout.from_config(_without(text, "sliding_window"))
    assert without_window.window == 4096  # the class default, which no 4B model uses; hence on record
    assert any("sliding_window = 4096" in text for text in without_window.assumptions)


def test_class_defaults_hold_for_their_class_only():
    """No default of one class leaks into another: an unknown class gets none at all."""
    for model_type, defaults in CLASS_DEFAULTS.items():
        assert defaults
        layout = ModelLayout.from_config({**_PLAIN, "model_type": model_type + "_x"})
        assert not any("default of" in text for text in layout.assumptions)


@pytest.mark.parametrize(
    ("keys", "kinds"),
    [
        ({"layer_types": ["full_attention", "sliding_attention"] * 2, "sliding_window": 8}, "F W F W"),
        ({"layer_types": ["full_attention", "chunked_attention"] * 2, "attention_chunk_size": 8}, "F C F C"),
        ({"layers_block_type": ["attention", "moe", "mlp", "attention"]}, "F - - F"),
        ({"hybrid_override_pattern": "*E-*"}, "F - - F"),
        ({"hybrid_layer_pattern": [1, 0, 0, 1], "sliding_window": 8}, "W F F W"),
        ({"sliding_window_pattern": 2, "sliding_window": 8}, "W F W F"),
        ({"_sliding_window_pattern": 3, "sliding_window": 8}, "W W F W"),
        ({"sliding_window_pattern": "LLG", "sliding_window": 8}, "W W F W"),
        ({"sliding_window_pattern": 2, "sliding_window": None}, "F F F F"),
        ({"model_type": "mistral", "sliding_window": 8}, "W W W W"),
        ({"model_type": "qwen2", "sliding_window": 8}, "F F F F"),
        ({"sliding_window": 8, "use_sliding_window": False}, "F F F F"),
        ({"sliding_window": 8, "use_sliding_window": True, "max_window_layers": 3}, "F F F W"),
        ({"model_type": "gemma2"}, "W F W F"),
        ({"model_type": "gpt_oss"}, "W F W F"),
        ({"model_type": "cohere2"}, "W W W F"),
        ({"model_type": "llama4_text"}, "C C C F"),
        ({"model_type": "llama4_text", "no_rope_layers": [0, 1, 1, 1]}, "F C C C"),
        ({"model_type": "llama4_text", "no_rope_layers": []}, "C C C F"),
        ({"model_type": "llama4_text", "attention_chunk_size": None}, "F F F F"),
        ({"model_type": "smollm3", "no_rope_layers": [1, 1, 1, 0]}, "F F F F"),
        ({"full_attn_idxs": [1], "conv_L_cache": 3}, "S F S S"),
        (
            {"attn_layer_period": 2, "attn_layer_offset": 1, "mamba_dt_rank": 4, "mamba_expand": 2, "mamba_d_state": 4}
            | {"mamba_d_conv": 4},
            "S F S F",
        ),
    ],
)
def test_the_kind_of_each_layer_is_read(keys, kinds):
    """Lists, pattern strings, marks, periods and intervals all say which layer is of which kind."""
    assert _kinds({**_PLAIN, **keys}) == kinds


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"layer_types": ["full_attention", "warp_attention"] * 2}, "unknown types warp_attention"),
        ({"layer_types": ["full_attention"] * 3}, "lists 3 layers and num_hidden_layers is 4"),
        ({"layer_types": ["sliding_attention"] * 4}, "lacks 'sliding_window'; looked for 'sliding_window', 'sliding_w"),
        ({"layer_types": ["chunked_attention"] * 4}, "lacks 'attention_chunk_size'"),
        ({"layer_types": ["linear_attention"] * 4}, "state of an unknown family; looked for 'linear_num_value_heads'"),
        (
            {
                "layer_types": ["chunked_attention", "sliding_attention"] * 2,
                "sliding_window": 4,
                "attention_chunk_size": 4,
            },
            "chunk of 4, window of 4",
        ),
        ({"hybrid_override_pattern": "M*X"}, "unknown letters"),
        ({"hybrid_layer_pattern": [1, 0]}, "has 2 marks for 4 layers"),
        ({"hybrid_layer_pattern": [1, 0, 2, 0]}, "0 or 1 per layer"),
        ({"hybrid_layer_pattern": "1010"}, "must be a list"),
        ({"hybrid_layer_pattern": [1, 0, 1, "0"]}, "must be a list of whole numbers"),
        ({"attn_layer_indices": [4], "mamba_n_heads": 2}, r"names the layers \[4\]"),
        ({"attn_layer_period": 2}, "lacks 'attn_layer_offset'"),
        ({"sliding_window_pattern": "LX", "sliding_window": 8}, "letters L"),
        ({"sliding_window_pattern": 0, "sliding_window": 8}, "sliding_window_pattern is 0"),
        ({"sliding_window": 8}, "has a sliding_window of 8 but does not say in which layers; looked for 'layer_types'"),
        (
            {"sliding_window": 8, "sliding_window_size": 9, "hybrid_layer_pattern": [1] * 4},
            "8 and sliding_window_size is 9",
        ),
        ({"mamba_n_heads": 2}, "has layers with a state but does not say in which layers"),
        ({"linear_attn_config": {"full_attn_layers": [1], "kda_layers": [2, 3]}}, r"each layer 1 \.\. 4 once"),
        ({"linear_attn_config": [1]}, "must be an object"),
        ({"linear_attn_config": {"full_attn_layers": [1]}}, "lacks 'kda_layers'"),
        ({"num_kv_shared_layers": 5}, "is 5, more than the 4 layers"),
        ({"use_cla": True}, "lacks 'cla_share_factor'"),
        (
            {"use_cla": True, "cla_share_factor": 2, "sliding_window": 4, "hybrid_layer_pattern": [0, 1, 1, 1]},
            "attends differently",
        ),
        ({"kv_lora_rank": 64}, "lacks 'qk_nope_head_dim'"),
        ({"qk_nope_head_dim": 64, "qk_rope_head_dim": 8, "v_head_dim": 64}, "lacks 'kv_lora_rank'"),
        ({"ssm_d_rank": 4}, "layers with a state but does not say in which"),
        ({"model_type": "kimi_linear"}, "layers with a state but does not say in which"),
        ({"model_type": "falcon_h1"}, "state of an unknown family"),
        ({"kv_lora_rank": 64, "hybrid_layer_pattern": [1] * 4, "sliding_window": 4}, "latents in window layers"),
        ({"num_attention_heads": "8"}, "num_attention_heads is '8'. It must be a whole number"),
        ({"num_attention_heads": -8}, "is -8"),
        ({"num_attention_heads": True}, "is True"),
        ({"num_hidden_layers": 0}, "num_hidden_layers is 0. It must be at least 1"),
        ({"is_encoder_decoder": True}, "encoder"),
        ({"compress_ratios": [4]}, "sets 'compress_ratios'"),
        ({"lru_width": 64}, "sets 'lru_width'"),
        ({"cross_attention_layers": [3]}, "sets 'cross_attention_layers'"),
    ],
)
def test_what_cannot_be_read_raises_and_says_why(keys, message):
    """An unknown word, a contradiction or an open question raises, with the value and the keys looked for."""
    with pytest.raises(LayoutError, match=message) as caught:
        ModelLayout.from_config({**_PLAIN, **keys})
    assert str(caught.value).endswith(".")


_MEANS_BY_ABSENCE = {
    "gemma-4-31b": {"num_global_key_value_heads", "attention_k_eq_v"},
    "hunyuan-large": {"use_cla"},
    "mimo-v2-flash": {"v_head_dim", "swa_num_key_value_heads"},
    "phi-3-mini-4k": {"sliding_window"},
}


@pytest.mark.parametrize("name", preset_names())
def test_no_key_of_a_preset_is_guessed_when_it_is_missing(name):
    """Taking any one key away gives the same caches, an assumption on record, or an error; never silently others.

    The exceptions are keys whose absence means something by itself, such as that there is no window.
    """
    whole = ModelLayout.preset(name)
    config = preset_config(name)
    inner = config.get("text_config", config)
    for key in set(inner) - _MEANS_BY_ABSENCE.get(name, set()):
        reduced = _without(inner, key)
        try:
            layout = ModelLayout.from_config({**config, "text_config": reduced} if inner is not config else reduced)
        except LayoutError:
            continue
        assert layout.layers == whole.layers or set(layout.assumptions) - set(whole.assumptions), key


@pytest.mark.parametrize(
    ("name", "keys"),
    [
        (
            "qwen3.5-27b",
            ["linear_num_key_heads", "linear_key_head_dim", "linear_value_head_dim", "linear_conv_kernel_dim"],
        ),
        ("jamba-v0.1", ["mamba_d_state", "mamba_d_conv", "mamba_expand"]),
        ("nemotron-h-8b", ["mamba_head_dim", "n_groups", "ssm_state_size", "conv_kernel"]),
        ("granite-4.0-h-small", ["mamba_d_state", "mamba_d_conv", "mamba_n_groups"]),
        ("zamba2-7b", ["state_size", "conv_dimension", "mamba_headdim"]),
        ("lfm2-1.2b", ["hidden_size"]),
    ],
)
def test_a_missing_size_of_a_state_is_named(name, keys):
    """Every size of a state has to be there; its key is named."""
    config = preset_config(name)
    config = config.get("text_config", config)
    for key in keys:
        with pytest.raises(LayoutError, match="lacks"):
            ModelLayout.from_config(_without(config, key))


def test_a_model_may_have_states_only():
    """Mamba and Mamba-2 files have no attention: a state per layer, nothing per token."""
    mamba1 = {"model_type": "mamba", "hidden_size": 64, "num_hidden_layers": 2, "state_size": 16, "expand": 2}
    mamba1 |= {"conv_kernel": 4, "time_step_rank": 4, "vocab_size": 100, "tie_word_embeddings": True}
    layout = ModelLayout.from_config(mamba1)
    assert layout.kinds == (CacheKind.STATE,)
    assert layout.state_bytes == 2 * (128 * 3 * 2 + 128 * 16 * 4)
    assert layout.sequence_bytes(0) == layout.sequence_bytes(10**6) == layout.state_bytes
    assert layout.window is layout.window_kind is None
    per_layer = 64 * 256 + 128 * (4 + 32) + 4 * 128 + 128 * 16 + 128 * 64
    assert ComputeProfile.from_config(mamba1) == ComputeProfile(6400 + 2 * per_layer, 6400 + 2 * per_layer, 0)
    # A Mamba-2 file carries `time_step_rank` as well; its heads tell it apart.
    mamba2 = {**mamba1, "model_type": "mamba2", "num_heads": 4, "head_dim": 32, "n_groups": 1}
    assert [part.shape for part in ModelLayout.from_config(mamba2).layers[0].state] == [(160, 3), (4, 32, 16)]
    with pytest.raises(LayoutError, match="4 Mamba heads of 16 are not 128 wide"):
        ModelLayout.from_config({**mamba2, "head_dim": 16})


@pytest.mark.parametrize(
    ("keyword", "value"),
    [("cache_dtype", "fp7"), ("state_dtype", "auto"), ("conv_dtype", "fp8_ds_mla"), ("conv_columns", "all")],
)
def test_an_unknown_choice_raises(keyword, value):
    """Dtypes and the width of the history come from a list, which the message gives."""
    with pytest.raises(LayoutError, match=rf"'{value}'.*Use one of"):
        ModelLayout.preset("qwen3-next-80b-a3b", **{keyword: value})


@pytest.mark.parametrize(
    ("dtype", "size"), [("float32", 4), ("float16", 2), ("bfloat16", 2), ("float8_e4m3fn", 1), ("float8_e5m2", 1)]
)
def test_bytes_scale_with_the_dtype(dtype, size):
    """The same entries in another dtype take so many times the bytes."""
    layout = ModelLayout.preset("gemma-3-1b", cache_dtype=dtype)
    assert (layout.full_bytes_per_token, layout.window_bytes_per_token) == (2048 * size, 11_264 * size)


def test_files_without_a_configuration_are_refused(tmp_path):
    """A missing file, bad JSON or a JSON list raises and names the file."""
    bad, rows, deep = tmp_path / "bad.json", tmp_path / "rows.json", tmp_path / "deep.json"
    bad.write_text("{", encoding="utf-8")
    deep.write_text("[" * 200_000, encoding="utf-8")
    rows.write_text("[1]", encoding="utf-8")
    for path, message in (
        (bad, "bad.json is not JSON"),
        (deep, "deep.json is not JSON"),
        (rows, "holds a list"),
        (tmp_path, "config.json cannot be read"),
    ):
        for load in (load_layout, load_profile):
            with pytest.raises(LayoutError, match=message):
                load(path)
    with pytest.raises(LayoutError, match="nothing-here"):
        load_profile(tmp_path / "nothing-here")


def test_a_profile_loads_from_a_name_or_a_file(tmp_path):
    """Compute profiles are found the way layouts are."""
    path = tmp_path / "config.json"
    path.write_text(json.dumps(preset_config("smollm2-135m")), encoding="utf-8")
    assert load_profile(path) == load_profile("smollm2-135m") == ComputeProfile.preset("smollm2-135m")


@pytest.mark.parametrize("ranks", [0, -1])
def test_fewer_than_one_rank_raise(ranks):
    """A tensor-parallel degree is at least 1."""
    with pytest.raises(InvalidSize, match=f"tensor_parallel is {ranks}"):
        ModelLayout.preset("qwen3-8b", tensor_parallel=ranks)
    assert issubclass(InvalidSize, KVSteadError)


@given(st.sampled_from(preset_names()), st.data())
@settings(max_examples=300, deadline=None)
def test_damaged_configurations_raise_layout_errors_only(name, data):
    """With any value under any key, reading gives a layout and a profile or raises `LayoutError`."""
    config = preset_config(name)
    inner = config.get("text_config", config)
    key = data.draw(st.sampled_from(sorted(inner)))
    junk = data.draw(
        st.sampled_from([None, -1, 0, 1, 3, 2.5, True, "x", "auto", "", [], [1], ["x"], [[1]], {}, {"a": 1}])
    )
    for read in (ModelLayout.from_config, ComputeProfile.from_config):
        with contextlib.suppress(LayoutError):
            assert read({**inner, key: junk}) is not None


@pytest.mark.parametrize("number", [10_001, 10**12])
def test_more_layers_than_any_model_has_are_refused(number):
    """At once, by their number, in layouts and in profiles."""
    for read in (ModelLayout.from_config, ComputeProfile.from_config):
        with pytest.raises(LayoutError, match=f"{number:,} layers are more than the 10,000"):
            read(_PLAIN | {"num_hidden_layers": number})
