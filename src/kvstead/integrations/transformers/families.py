"""Which model family of Hugging Face runs how: the one table that says so.

A family is known by its text configuration's `model_type`. What is not in the table was never compared with
`model.generate` and is refused, as is what the table refuses by name.
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


FAMILIES: dict[str, Way] = {
    **dict.fromkeys(
        (
            "cohere2",
            "deepseek_v2",
            "deepseek_v3",
            "exaone4",
            "gemma2",
            "gemma3_text",
            "gemma3n_text",
            "gemma4_text",
            "glm4_moe",
            "gpt2",
            "gpt_neox",
            "gpt_oss",
            "granite",
            "llama",
            "llama4_text",
            "longcat_flash",
            "minimax_m2",
            "mistral",
            "olmo3",
            "opt",
            "phi3",
            "qwen2",
            "qwen3",
            "smollm3",
        ),
        Way.PACKED,
    ),
    **dict.fromkeys(
        (
            "bamba",
            "falcon_h1",
            "granitemoehybrid",
            "kimi_linear",
            "lfm2",
            "lfm2_moe",
            "nemotron_h",
            "olmo_hybrid",
            "qwen3_5_text",
            "qwen3_next",
            "zamba2",
        ),
        Way.APART,
    ),
    "jamba": Way.WHOLE,
}
"""By `model_type`, how a family runs."""

_ONLY_STATES = "it keeps nothing but states, and a manager holds states beside entries per token"

REFUSED: dict[str, str] = {
    **dict.fromkeys(("falcon_mamba", "mamba", "mamba2"), _ONLY_STATES),
    "deepseek_v32": "its indexer keeps a cache of its own beside the latents",
    "deepseek_v4": "its layers keep compressed entries beside a window",
    "minimax": "it keeps its states in a cache class of its own",
    "recurrent_gemma": "its layers keep their state on the modules, not in a cache",
    "rwkv": "its layers keep their state outside the cache",
    "zamba": "its layout describes the state of its Mamba heads in another shape",
}
"""By `model_type`, why a family does not run."""

_NO_LIMIT = 2**62  # tokens


def way_of(config: Any) -> Way:
    """How the model of a text configuration runs.

    Raises `LayoutError`, with the reason, for a family or a configuration that does not.
    """
    name = str(config.model_type)
    if name not in FAMILIES:
        reason = REFUSED.get(name, "it was never compared with what transformers generates")
        raise LayoutError(f"models of type {name!r} do not run here: {reason}. Those that do: {', '.join(FAMILIES)}.")
    if getattr(config, "use_bidirectional_attention", None) not in {None, False, "vision"}:
        raise LayoutError(
            f"this {name} attends to later tokens too (use_bidirectional_attention), which entries in a cache cannot. "
            "Use a causal model."
        )
    return FAMILIES[name]


def rope_limit(config: Any) -> int:
    """Tokens up to which a token's rotation is its own; beyond, it depends on the longest sequence of the batch.

    Such entries can be shared with no other request. No limit (2**62) for most models.
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
    """Tokens up to which a request may share a forward pass; longer ones compute alone. No limit is 2**62.

    Llama 4 scales queries by their position, which it takes from the cache's length and so only for one request.
    """
    return int(config.floor_scale) if getattr(config, "attn_temperature_tuning", False) else _NO_LIMIT
