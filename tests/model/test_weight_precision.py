import json

import pytest

from kvstead.errors import LayoutError
from kvstead.model.catalog import preset_config
from kvstead.model.compute import load_profile
from kvstead.model.weight_precision import WEIGHT_BYTES, load_precision

GIB = 2**30


@pytest.mark.parametrize(
    ("model", "gib"),
    [("gpt-oss-20b", 12.8), ("gpt-oss-120b", 60.8), ("deepseek-v3", 627), ("llama-3.1-8b", 14.96)],
)
def test_bundled_models_have_the_size_of_their_checkpoints(model, gib):
    """MXFP4 experts, fp8 matrices, or bfloat16: within a hundredth of the published files."""
    profile = load_profile(model)
    precision = load_precision(model, profile)
    assert precision.bytes_per_weight * profile.total_params / GIB == pytest.approx(gib, rel=0.01)


@pytest.mark.parametrize(
    ("stated", "name", "is_fp8"),
    [
        ({"quant_method": "fp8", "weight_block_size": [128, 128]}, "fp8", True),
        ({"quant_method": "fbgemm_fp8"}, "fp8", True),
        ({"quant_method": "gptq", "bits": 4}, "int4", False),
        ({"quant_method": "gptq", "bits": 8}, "int8", False),
        ({"quant_method": "awq", "bits": 4}, "int4", False),
        ({"quant_method": "modelopt", "quant_algo": "NVFP4"}, "nvfp4", False),
        ({"quant_method": "modelopt", "quant_algo": "FP8"}, "fp8", True),
        ({"quant_method": "bitsandbytes", "load_in_4bit": True}, "int4", False),
        ({"quant_method": "bitsandbytes", "load_in_8bit": True}, "int8", False),
        (
            {"quant_method": "compressed-tensors", "config_groups": {"g": {"weights": {"num_bits": 4, "type": "int"}}}},
            "int4",
            False,
        ),
        (
            {
                "quant_method": "compressed-tensors",
                "config_groups": {"g": {"weights": {"num_bits": 8, "type": "float"}}},
            },
            "fp8",
            True,
        ),
    ],
)
def test_a_quantisation_config_decides(tmp_path, stated, name, is_fp8):
    """All weights but the two tables of embeddings are in the stated precision."""
    path = tmp_path / "config.json"
    path.write_text(json.dumps({**preset_config("llama-3.1-8b"), "quantization_config": stated}))
    profile = load_profile(path)
    precision = load_precision(path, profile)
    tables = 2 * 128_256 * 4096
    expected = tables * 2 + (profile.total_params - tables) * WEIGHT_BYTES[name]
    assert (precision.name, precision.is_fp8) == (name, is_fp8)
    assert precision.bytes_per_weight * profile.total_params == pytest.approx(expected)


def test_a_given_precision_overrules_the_checkpoint():
    """What is said holds for all weights, under common names too; an unknown one is refused with those known."""
    profile = load_profile("gpt-oss-20b")
    given = load_precision("gpt-oss-20b", profile, "BF16")
    assert (given.name, given.bytes_per_weight) == ("bfloat16", 2.0)
    with pytest.raises(LayoutError, match=r"'fp7' is not a precision of weights. Use one of float32, bfloat16"):
        load_precision("gpt-oss-20b", profile, "fp7")


def test_an_unknown_quantisation_is_refused(tmp_path):
    """A method that says no precision is not guessed."""
    path = tmp_path / "config.json"
    path.write_text(json.dumps({**preset_config("llama-3.1-8b"), "quantization_config": {"quant_method": "magic"}}))
    with pytest.raises(LayoutError, match=r"\(magic\) says no precision that is known. Name it with --weight-dtype"):
        load_precision(path, load_profile(path))
