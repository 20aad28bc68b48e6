"""Values that published configurations leave to their class, and facts that no key gives.

Every value here comes from the `configuration_*.py` or `modeling_*.py` of transformers 5.24.0 for its `model_type`.
Nothing else is filled in, and a layout lists in `assumptions` what was.
"""

from __future__ import annotations

from typing import Any, Final

SOURCE: Final = "transformers 5.24.0"

_GEMMA3: Final = {"num_attention_heads": 8, "head_dim": 256}

CLASS_DEFAULTS: Final[dict[str, dict[str, Any]]] = {
    "cohere2": {"sliding_window": 4096, "sliding_window_pattern": 4},
    "gemma": {"head_dim": 256},
    "gemma2": {"head_dim": 256, "sliding_window": 4096, "sliding_window_pattern": 2},
    "gemma3_text": _GEMMA3 | {"num_key_value_heads": 4, "sliding_window": 4096, "sliding_window_pattern": 6},
    "gemma3n_text": _GEMMA3
    | {"num_key_value_heads": 2, "sliding_window": 512, "sliding_window_pattern": 5, "num_kv_shared_layers": 15},
    "gemma4_text": {"head_dim": 256, "global_head_dim": 512, "sliding_window": 512},
    "glm": {"head_dim": 128},
    "glm4": {"head_dim": 128},
    "gpt_oss": {"head_dim": 64, "sliding_window": 128, "sliding_window_pattern": 2},
    "llama4_text": {"head_dim": 128, "attention_chunk_size": 8192, "no_rope_layer_interval": 4},
    "mistral": {"sliding_window": 4096},
    "nemotron_h": {"head_dim": 128},
    "qwen2": {"use_sliding_window": False},
    "qwen2_moe": {"use_sliding_window": False},
    "qwen3": {"head_dim": 128, "use_sliding_window": False},
    "qwen3_5_moe_text": {"head_dim": 256},
    "qwen3_5_text": {"head_dim": 256},
    "qwen3_moe": {"use_sliding_window": False},
    "qwen3_next": {"head_dim": 256, "full_attention_interval": 4},
    "smollm3": {"use_sliding_window": False},
}

NO_GROUPED_HEADS: Final = frozenset({"gpt2", "gpt_neox", "opt"})
"""Classes without grouped heads: every query head has its own key and value head."""

KV_HEADS_FOLLOW_HEADS: Final = NO_GROUPED_HEADS | frozenset(
    {"cohere", "cohere2", "granite", "granitemoehybrid", "llama", "olmo", "olmo2", "olmo3", "phi", "phi3", "zamba2"}
)
"""Classes whose `num_key_value_heads` is None by default and then equals `num_attention_heads`."""

WINDOW_IN_EVERY_LAYER: Final = frozenset({"ministral", "mistral", "mixtral", "phi3", "phimoe", "starcoder2"})
"""Classes in which `sliding_window` alone means that every layer slides."""

STATE_IN_EVERY_LAYER: Final = frozenset({"falcon_mamba", "mamba", "mamba2"})
"""Classes without any attention."""

ATTENTION_AND_STATE_IN_EVERY_LAYER: Final = frozenset({"falcon_h1"})
"""Classes whose layers run attention and a state side by side; their file has no list of layers."""

STATEFUL: Final = (
    STATE_IN_EVERY_LAYER
    | ATTENTION_AND_STATE_IN_EVERY_LAYER
    | {"bamba", "granitemoehybrid", "jamba", "kimi_linear", "lfm2", "lfm2_moe", "minimax", "nemotron_h", "olmo_hybrid"}
    | {"qwen3_5_moe_text", "qwen3_5_text", "qwen3_next", "recurrent_gemma", "rwkv", "xlstm", "zamba", "zamba2"}
)
"""Classes with a state in some layers: a file without a list of those layers is not read as attention only."""

STATE_KEY_PREFIXES: Final = ("linear_", "mamba_", "ssm_", "state_size", "conv_L_cache", "time_step_")
"""Keys with these prefixes describe a state, also in unknown classes."""

ATTENTION_WIDTH_FACTOR: Final = {"zamba": 2, "zamba2": 2}
"""Attention reads the layer's input beside the embedding, so its heads are this many times as wide."""

UNTIED: Final = frozenset({"llama4", "llama4_text"})
TIED: Final = frozenset({"gemma3n", "gemma3n_text", "zamba2"})
"""What `tie_word_embeddings` is where a file leaves it out."""

OUTPUT_GATE: Final = frozenset({"qwen3_next"})
"""Classes whose attention has a gate as wide as its queries, which no key says."""

PLAIN_FEED_FORWARD: Final = frozenset({"gpt2", "gpt_neox", "nemotron_h", "opt", "phi", "starcoder2"})
"""Feed-forward parts of two matrices (up, down); all others have three (gate, up, down)."""

PLAIN: Final = frozenset(
    {"cohere", "deepseek_v2", "deepseek_v3", "exaone4", "gemma", "gemma3", "gemma3n", "gemma4", "glm4_moe", "gpt2"}
    | {"gpt_neox", "granite", "hunyuan", "hunyuan_v1_moe", "hunyuan_v1_dense", "kimi_k2", "llama", "llama4"}
    | {"longcat_flash", "mimo_v2_flash", "minimax_m2", "mixtral", "olmo", "olmo2", "olmo3", "opt", "phi", "phi3"}
    | {"phimoe", "qwen3_5", "qwen3_5_moe", "seed_oss", "starcoder2", "ministral", "smollm3"}
)
"""Further classes that were compared with what their code caches: their keys say all that matters."""


def is_known(model_type: str) -> bool:
    """Whether a class was compared with what its code caches; another is read like llama, by its keys."""
    return model_type in PLAIN | STATEFUL | CLASS_DEFAULTS.keys()


UNREADABLE: Final = {
    "attn_type_list": "lightning attention keeps a state of its own form",
    "block_configs": "each layer has its own shape",
    "compress_ratios": "compressed caches keep less than an entry per token",
    "cross_attention_layers": "cross-attention keeps the encoder's keys and values",
    "indexer_types": "layers share the keys of their indexers",
    "layer_group_size": "grouped linear layers keep a state of their own form",
    "lru_width": "a linear recurrent unit keeps a state of its own form",
    "per_layer_config": "each layer has its own shape",
}
"""Keys of caches that are not supported yet, and what these caches keep."""
