"""Which model families of Hugging Face run, and how: the only table of them.

A family is the `model_type` of its text configuration. A family outside the table was never compared with
`model.generate` and is refused, as are those that `REFUSED` names.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Any

from kvstead.errors import LayoutError


class Way(StrEnum):
    """How the requests of one step are computed."""

    PACKED = "packed"  # one forward pass for all of them, mixed prefill and decode
    APART = "apart"  # one pass for all that decode, one for each chunk: a packed scan would mix their states
    WHOLE = "whole"  # as APART, and a prompt is one chunk from its first token on


_NAMES = {
    Way.PACKED: """
        cohere2 deepseek_v2 deepseek_v3 exaone4 gemma2 gemma3_text gemma3n_text gemma4_text glm4_moe gpt2 gpt_neox
        gpt_oss granite llama llama4_text longcat_flash minimax_m2 mistral olmo3 opt phi3 qwen2 qwen3 smollm3
    """,
    Way.APART: """
        bamba falcon_h1 granitemoehybrid kimi_linear lfm2 lfm2_moe nemotron_h olmo_hybrid qwen3_5_text qwen3_next zamba2
    """,
    Way.WHOLE: "jamba",
}
FAMILIES: dict[str, Way] = {name: way for way, names in _NAMES.items() for name in names.split()}
"""How each family runs, by `model_type`."""

_ONLY_STATES = "it keeps only states, and a manager holds states only beside entries per token"

REFUSED: dict[str, str] = {
    **dict.fromkeys(("falcon_mamba", "mamba", "mamba2"), _ONLY_STATES),
    "deepseek_v32": "its indexer keeps a cache of its own beside the latents",
    "deepseek_v4": "its layers keep compressed entries beside a window",
    "minimax": "it keeps its states in a cache class of its own",
    "recurrent_gemma": "its layers keep their state on the modules, not in a cache",
    "rwkv": "its layers keep their state outside the cache",
    "zamba": "its layout describes the state of its Mamba heads in another shape",
}
"""Why a family does not run, by `model_type`."""

_NO_LIMIT = 2**62  # tokens


def way_of(config: Any) -> Way:
    """How the model of a text configuration runs. Raises `LayoutError`, with the reason, for one that does not."""
    name = str(config.model_type)
    if name not in FAMILIES:
        reason = REFUSED.get(name, "it was never compared with what transformers generates")
        raise LayoutError(f"models of type {name!r} do not run here: {reason}. Those that do: {', '.join(FAMILIES)}.")
    if getattr(config, "use_bidirectional_attention", None) not in {None, False, "vision"}:
        raise LayoutError(
            f"this {name} also attends to later tokens (use_bidirectional_attention), which a cache does not allow. "
            "Use a causal model."
        )
    return FAMILIES[name]


def rope_limit(config: Any) -> int:
    """The length up to which a token's rotation depends on its position alone; 2**62 (no limit) for most models.

    Beyond it the rotation depends on the longest sequence of the batch, so other requests cannot share such entries.
    """
    ropes = getattr(config, "rope_parameters", None) or {}
    nested = [rope for rope in ropes.values() if isinstance(rope, dict)]
    limits = [_NO_LIMIT]
    for rope in nested or [ropes]:
        if rope.get("rope_type") == "dynamic":
            limits.append(config.max_position_embeddings)
        elif rope.get("rope_type") == "longrope":
            limits.append(rope.get("original_max_position_embeddings", config.max_position_embeddings))
    return min(limits)


def packing_limit(config: Any) -> int:
    """The length up to which requests may share a forward pass, and the tokens that it may have; 2**62 is no limit.

    Llama 4 scales the query at position p by log1p(floor((p + 1) / floor_scale)), which is nothing below position
    `floor_scale` - 1, and counts p from the cache's length through the tokens of the pass, which fits one request only.
    """
    return int(config.floor_scale) - 1 if getattr(config, "attn_temperature_tuning", False) else _NO_LIMIT
