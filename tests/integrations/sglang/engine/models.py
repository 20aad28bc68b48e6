"""Tiny models with random weights, one for each way in which SGLang keeps caches. Prompts and answers are token ids."""

import json
import warnings

import torch

VOCABULARY = 512
WINDOW = 32  # tokens that a layer with a window sees

_COMMON = {
    "vocab_size": VOCABULARY,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
    "tie_word_embeddings": False,
    "hidden_size": 64,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 2048,
}
_HEADS = {"head_dim": 16}
_SPREAD = 3.0  # weights times this: the largest logit is then well ahead of the next, so rounding decides nothing


def _llama():
    from transformers import LlamaConfig, LlamaForCausalLM

    return LlamaForCausalLM, LlamaConfig(**_COMMON, **_HEADS, intermediate_size=128, num_hidden_layers=2), {}


def _gemma3():
    """SGLang gives Gemma 3 a pool of windows only where config.json asks for one in these words."""
    from transformers import Gemma3ForCausalLM, Gemma3TextConfig

    kinds = ["sliding_attention", "sliding_attention", "full_attention"]
    layers = {"num_hidden_layers": 3, "layer_types": kinds, "sliding_window": WINDOW}
    asked = {"is_hybrid_swa": True, "hybrid_layer_pattern": [1, 1, 0]}
    return Gemma3ForCausalLM, Gemma3TextConfig(**_COMMON, **_HEADS, intermediate_size=128, **layers), asked


def _gpt_oss(kinds=("sliding_attention", "full_attention", "sliding_attention", "full_attention")):
    from transformers import GptOssConfig, GptOssForCausalLM

    experts = {"num_local_experts": 4, "num_experts_per_tok": 2}
    layers = {"num_hidden_layers": len(kinds), "layer_types": list(kinds), "sliding_window": WINDOW}
    return GptOssForCausalLM, GptOssConfig(**_COMMON, **_HEADS, intermediate_size=64, **experts, **layers), {}


def _windows_only():
    """Every layer has a window: SGLang has one pool then, and a prefix cache of its own for it."""
    return _gpt_oss(("sliding_attention",) * 2)


def _lfm2(asked=()):
    from transformers import Lfm2Config, Lfm2ForCausalLM

    layers = {"num_hidden_layers": 4, "layer_types": ["conv", "full_attention"] * 2, "conv_L_cache": 3}
    config = Lfm2Config(**_COMMON, intermediate_size=128, block_auto_adjust_ff_dim=False, **layers)
    return Lfm2ForCausalLM, config, dict(asked)


def _lfm2_with_windows():
    """SGLang has states and windows together for one model only, on GPUs; this makes it take lfm2 for such a one."""
    return _lfm2({"is_hybrid_swa": True, "hybrid_layer_pattern": [0, 1, 0, 0], "sliding_window": WINDOW})


def _qwen3_next():
    from transformers import Qwen3NextConfig, Qwen3NextForCausalLM

    linear = {
        "linear_num_key_heads": 2,
        "linear_num_value_heads": 4,
        "linear_key_head_dim": 16,
        "linear_value_head_dim": 16,
        "linear_conv_kernel_dim": 4,
    }
    experts = {
        "num_experts": 4,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 32,
        "shared_expert_intermediate_size": 32,
        "decoder_sparse_step": 1,
    }
    sizes = {"intermediate_size": 128, "num_hidden_layers": 4}
    asked = {"full_attention_interval": 4}  # what `layer_types` has become of
    return Qwen3NextForCausalLM, Qwen3NextConfig(**_COMMON, **_HEADS, **sizes, **linear, **experts), asked


_MAKERS = {
    "llama": _llama,
    "gemma3": _gemma3,
    "gpt-oss": _gpt_oss,
    "windows only": _windows_only,
    "lfm2": _lfm2,
    "lfm2 with windows": _lfm2_with_windows,
    "qwen3-next": _qwen3_next,
}


def model_path(home, name):
    """The folder in `home` that holds the model called `name`, made if it is not there yet."""
    folder = home / name.replace(" ", "-")
    if folder.exists():
        return folder
    torch.manual_seed(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        maker, config, asked = _MAKERS[name]()
        model = maker(config).to(torch.float32).eval()
        with torch.no_grad():
            for weights in model.parameters():
                if weights.dim() >= 2:
                    weights.mul_(_SPREAD)
        model.save_pretrained(folder)
    described = folder / "config.json"
    described.write_text(json.dumps(json.loads(described.read_text()) | asked))
    (folder / "generation_config.json").write_text("{}")
    return folder
