"""In how many bytes a checkpoint stores its weights: from its `quantization_config`, or as somebody says."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from kvstead.errors import LayoutError
from kvstead.model.catalog import find_config
from kvstead.model.compute import ComputeProfile, is_tied
from kvstead.model.config_fields import Fields, read_fields
from kvstead.model.weights import CHOSEN_EXPERTS, NUM_EXPERTS

# Bytes a weight, scales included: one of 8 bits for 32 weights (MX), one of 8 for 16 (NV), one of 16 for 128 (int4).
WEIGHT_BYTES = {
    "float32": 4.0,
    "bfloat16": 2.0,
    "float16": 2.0,
    "fp8": 1.0,
    "int8": 1.0,
    "mxfp4": 4.25 / 8,
    "nvfp4": 4.5 / 8,
    "int4": 4.125 / 8,
}
_ALIASES = {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16", "fp4": "nvfp4", "float8_e4m3fn": "fp8"}
_EIGHT_BITS, _FOUR_BITS = 8, 4
# How the checkpoints of bundled models are published; their configurations here have only what a cache needs.
_PUBLISHED: dict[str | None, Mapping[str, Any]] = {
    **{name: {"quant_method": "fp8"} for name in ("deepseek-v3", "kimi-k2", "minimax-m2", "mimo-v2-flash")},
    **{name: {"quant_method": "mxfp4"} for name in ("gpt-oss-20b", "gpt-oss-120b")},
}
_INTEGER_METHODS = frozenset({"gptq", "awq", "auto-round"})


@dataclass(frozen=True, slots=True)
class WeightPrecision:
    """bytes_per_weight: the mean over all weights. name: of the quantised ones. source: why."""

    name: str
    bytes_per_weight: float
    source: str

    @property
    def is_fp8(self) -> bool:
        """Whether matrices are multiplied in fp8 too. Other quantised weights are unpacked to bfloat16 first."""
        return self.name == "fp8"


def weight_dtype(name: str) -> str:
    """A precision by its name in `WEIGHT_BYTES`, or a common other name. Raises `LayoutError` for an unknown one."""
    found = _ALIASES.get(name.lower(), name.lower())
    if found not in WEIGHT_BYTES:
        raise LayoutError(f"{name!r} is not a precision of weights. Use one of {', '.join(WEIGHT_BYTES)}.")
    return found


def load_precision(
    name_or_path: str | os.PathLike[str], profile: ComputeProfile, given: str | None = None
) -> WeightPrecision:
    """How a bundled model, a `config.json` or its directory stores its weights. given: a precision for all of them.

    Embeddings, and what a checkpoint names as left out, stay in 2 bytes. Raises `LayoutError` for an unknown precision.
    """
    if given is not None:
        name = weight_dtype(given)
        return WeightPrecision(name, WEIGHT_BYTES[name], "as given")
    config, label = find_config(name_or_path)
    fields = read_fields(config, label)
    stated = fields.outer("quantization_config") or fields.outer("compression_config")
    stated = stated or _PUBLISHED.get(label)
    if not isinstance(stated, Mapping):
        return WeightPrecision("bfloat16", 2.0, "not quantised")
    name = _stated_precision(fields, stated)
    share = _quantised_share(fields, stated, profile)
    mean = share * WEIGHT_BYTES[name] + (1 - share) * WEIGHT_BYTES["bfloat16"]
    return WeightPrecision(name, mean, f"{share:.0%} of the weights as published, the rest bfloat16")


def _stated_precision(fields: Fields, stated: Mapping[str, Any]) -> str:
    texts = [str(stated.get(key, "")).lower() for key in ("quant_algo", "moe_quant_algo", "format", "quant_method")]
    for name in ("nvfp4", "mxfp4", "fp8"):
        if any(name in text for text in texts):
            return name
    if texts[-1] in _INTEGER_METHODS:
        bits = stated.get("bits", stated.get("w_bit", _FOUR_BITS))
        return "int8" if bits == _EIGHT_BITS else "int4"
    groups = stated.get("config_groups")
    first: Any = next(iter(groups.values()), {}) if isinstance(groups, Mapping) else {}
    weights = first.get("weights") if isinstance(first, Mapping) else None
    if isinstance(weights, Mapping) and weights.get("num_bits") in {_FOUR_BITS, _EIGHT_BITS}:
        of_four, of_eight = ("nvfp4", "fp8") if weights.get("type") == "float" else ("int4", "int8")
        return of_four if weights["num_bits"] == _FOUR_BITS else of_eight
    if stated.get("load_in_4bit") or stated.get("load_in_8bit"):
        return "int4" if stated.get("load_in_4bit") else "int8"
    raise LayoutError(
        f"{fields.name}: the quantization_config ({texts[-1] or 'no quant_method'}) says no precision that is known. "
        "Name it with --weight-dtype."
    )


def _quantised_share(fields: Fields, stated: Mapping[str, Any], profile: ComputeProfile) -> float:
    """The share of the weights that are quantised: all but the embeddings, or the experts alone."""
    left_out = [str(each) for key in ("modules_to_not_convert", "ignore") for each in stated.get(key) or ()]
    num_experts, chosen = fields.number(*NUM_EXPERTS), fields.number(*CHOSEN_EXPERTS)
    is_experts_alone = any("attn" in each for each in left_out) or "mxfp4" in str(stated.get("quant_method"))
    if is_experts_alone and num_experts and chosen and chosen < num_experts:
        return (profile.total_params - profile.active_params) / (1 - chosen / num_experts) / profile.total_params
    tables = 1 if is_tied(fields) else 2
    return 1 - tables * fields.size("vocab_size") * fields.size("hidden_size", "n_embd") / profile.total_params
