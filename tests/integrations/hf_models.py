"""Random models of each family, small enough that a test can generate with them."""

from functools import cache

import torch
from transformers import CONFIG_MAPPING, AutoModelForCausalLM

VOCABULARY = 256
SPAN = 16  # tokens of a window or chunk

_BASE = {
    "vocab_size": VOCABULARY,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 512,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "tie_word_embeddings": False,
}
_MOE = {"num_experts_per_tok": 2, "moe_intermediate_size": 32}
_GROUPS = {"n_group": 1, "topk_group": 1}
_MLA = {
    "head_dim": None,
    "num_key_value_heads": 4,
    "q_lora_rank": 32,
    "kv_lora_rank": 32,
    "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 8,
    "v_head_dim": 16,
    "n_routed_experts": 4,
}
_DEEPSEEK = {**_MLA, **_MOE, **_GROUPS, "n_shared_experts": 1, "first_k_dense_replace": 1}
_DELTA = {
    "linear_num_value_heads": 4,
    "linear_num_key_heads": 2,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 16,
}
_MAMBA = {
    "mamba_n_heads": 4,
    "mamba_d_head": 32,
    "mamba_n_groups": 1,
    "mamba_d_state": 16,
    "mamba_expand": 2,
    "mamba_chunk_size": 16,
}
_CONV = {"head_dim": None, "layer_types": ["conv", "full_attention"] * 2}
_ALL_HEADS = {"head_dim": None, "num_key_value_heads": None}  # keys and values of every head
_WINDOW = {"sliding_window": SPAN}

CONFIGS = {
    "bamba": {**_MAMBA, "head_dim": None, "attn_layer_indices": [1, 3]},
    "cohere2": _WINDOW,
    "deepseek_v2": _DEEPSEEK,
    "deepseek_v3": _DEEPSEEK,
    "exaone4": _WINDOW,
    "falcon_h1": {**_MAMBA, "mamba_d_ssm": 128, "num_hidden_layers": 2},
    "gemma2": {**_WINDOW, "query_pre_attn_scalar": 16},
    "gemma3_text": {
        **_WINDOW,
        "query_pre_attn_scalar": 16,
        "layer_types": ["sliding_attention", "sliding_attention", "full_attention", "sliding_attention"],
    },
    "gemma3n_text": {
        **_WINDOW,
        "num_hidden_layers": 7,
        "vocab_size_per_layer_input": VOCABULARY,
        "hidden_size_per_layer_input": 16,
        "num_kv_shared_layers": 3,
        "laurel_rank": 8,
        "layer_types": [*["sliding_attention", "sliding_attention", "full_attention"] * 2, "sliding_attention"],
        "activation_sparsity_pattern": [0.0] * 7,
    },
    "gemma4_text": {
        **_WINDOW,
        "num_hidden_layers": 6,
        "global_head_dim": 32,
        "hidden_size_per_layer_input": 16,
        "vocab_size_per_layer_input": VOCABULARY,
        "num_kv_shared_layers": 2,
        "layer_types": ["sliding_attention", "full_attention"] * 3,
    },
    "glm4_moe": {**_MOE, **_GROUPS, "n_routed_experts": 4, "first_k_dense_replace": 1},
    "gpt2": {**_ALL_HEADS, "n_embd": 64, "n_layer": 3, "n_head": 4, "n_positions": 256},
    "gpt_neox": _ALL_HEADS,
    "gpt_oss": {**_WINDOW, "num_local_experts": 4, "num_experts_per_tok": 2},
    "granite": {"head_dim": None},
    "granitemoehybrid": {
        **_MAMBA,
        "head_dim": None,
        "layer_types": ["mamba", "attention"] * 2,
        "num_local_experts": 2,
        "num_experts_per_tok": 1,
        "shared_intermediate_size": 64,
    },
    "jamba": {
        "head_dim": None,
        "num_experts": 2,
        "num_experts_per_tok": 1,
        "attn_layer_period": 2,
        "attn_layer_offset": 1,
        "expert_layer_period": 2,
        "expert_layer_offset": 1,
        "use_mamba_kernels": False,
        "mamba_d_state": 8,
        "mamba_dt_rank": 8,
    },
    "kimi_linear": {
        **_MLA,
        "q_lora_rank": None,
        "num_experts": 4,
        "num_experts_per_token": 2,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 32,
        "linear_attn_config": {
            "kda_layers": [1, 2, 3],
            "full_attn_layers": [4],
            "head_dim": 16,
            "num_heads": 4,
            "short_conv_kernel_size": 4,
        },
    },
    "lfm2": {**_CONV, "conv_L_cache": 3, "block_ff_dim": 64, "block_multiple_of": 16},
    "lfm2_moe": {**_CONV, **_MOE, "conv_L_cache": 3, "num_experts": 4, "num_dense_layers": 1},
    "llama": {},
    "llama4_text": {
        "attention_chunk_size": SPAN,
        "num_local_experts": 2,
        "num_experts_per_tok": 1,
        "intermediate_size_mlp": 128,
        "interleave_moe_layer_step": 2,
        "no_rope_layers": [1, 1, 1, 0],
    },
    "longcat_flash": {
        **_MLA,
        "head_dim": 8,
        "num_layers": 2,
        "num_hidden_layers": None,
        "moe_topk": 2,
        "zero_expert_num": 2,
        "expert_ffn_hidden_size": 32,
        "ffn_hidden_size": 64,
    },
    "minimax_m2": {"num_local_experts": 2, "num_experts_per_tok": 1},
    "mistral": _WINDOW,
    "nemotron_h": {
        **_MOE,
        **_GROUPS,
        "num_hidden_layers": None,
        "layers_block_type": ["mamba", "attention", "mamba", "moe"],
        "mamba_num_heads": 4,
        "mamba_head_dim": 32,
        "n_groups": 1,
        "ssm_state_size": 16,
        "chunk_size": 16,
        "n_routed_experts": 4,
        "moe_shared_expert_intermediate_size": 32,
        "use_mamba_kernels": False,
    },
    "olmo3": {**_WINDOW, "head_dim": None},
    "olmo_hybrid": {**_DELTA, "linear_num_key_heads": 4},
    "opt": {
        **_ALL_HEADS,
        "num_hidden_layers": 3,
        "ffn_dim": 64,
        "max_position_embeddings": 256,
        "word_embed_proj_dim": 64,
    },
    "phi3": {**_WINDOW, "head_dim": None},
    "qwen2": {},
    "qwen3": {},
    "qwen3_5_text": _DELTA,
    "qwen3_next": {**_DELTA, **_MOE, "num_experts": 4, "shared_expert_intermediate_size": 32, "decoder_sparse_step": 1},
    "smollm3": {},
    "zamba2": {
        "head_dim": None,
        "num_key_value_heads": 4,
        "mamba_d_state": 16,
        "mamba_d_conv": 4,
        "mamba_expand": 2,
        "mamba_ngroups": 1,
        "n_mamba_heads": 4,
        "mamba_headdim": 32,
        "chunk_size": 16,
        "num_mem_blocks": 1,
        "layers_block_type": ["mamba", "hybrid"] * 2,
        "use_mem_rope": True,
        "adapter_rank": 8,
    },
}


def tiny_config(family, **changes):
    """The configuration of one family's model."""
    values = {**_BASE, **CONFIGS.get(family, {}), **changes}
    return CONFIG_MAPPING[family](**{key: value for key, value in values.items() if value is not None})


@cache
def tiny_model(family):
    """A model with weights wide enough that its best tokens differ from step to step."""
    return random_model(tiny_config(family))


def random_model(config):
    """A model of a configuration, with random weights in fp32."""
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if weight.dim() >= 2 and "conv" not in name:
                weight.copy_(torch.randn(weight.shape, generator=generator) / weight.shape[-1] ** 0.5)
    return model
