"""What SGLang 0.5.23 lacks on a CPU for models with windows or states. None of it allocates, frees or caches anything.

Llama runs without any of these.
"""

ATTENTION = "fa3"  # the name of attention that translates slots, and that all these models allow
_WINDOWS = {"gemma3", "gpt-oss", "windows only", "lfm2 with windows"}
STATES = {"lfm2", "lfm2 with windows", "qwen3-next"}


def attention_for(configuration):
    """The name of the attention that the run needs."""
    return ATTENTION if configuration.model in _WINDOWS or configuration.unified else "torch_native"


def install_for(configuration):
    """Install what the run needs, before the plugin is loaded: SGLang's classes are still under their names."""
    if attention_for(configuration) == ATTENTION:
        _translate_in_attention()
        _allow_gemma3_windows()
    if configuration.unified:
        _leave_out_the_fence()
    if configuration.model in STATES:
        _provide_kernels_of_states()


def _translate_in_attention():
    """`torch_native` reads neither window slots nor virtual ones, and gpt-oss and unified memory refuse it."""
    from engine.attention import TranslatingAttention
    from sglang.srt.layers.attention.attention_registry import ATTENTION_BACKENDS

    ATTENTION_BACKENDS[ATTENTION] = TranslatingAttention


def _allow_gemma3_windows():
    """SGLang keeps Gemma 3 from window pools on account of Gemma 2."""
    from sglang.srt.arg_groups import model_override_base, overrides

    for module in (model_override_base, overrides):
        for table in [held for held in vars(module).values() if isinstance(held, dict)]:
            table.pop("Gemma3ForCausalLM", None)


def _leave_out_the_fence():
    """SGLang's pools order moves of pages behind the stream of torch.cuda; without a device nothing is in flight."""
    from sglang.srt.mem_cache.allocator.unified_sub_pool import MultiEndedAllocator

    MultiEndedAllocator._settle_inflight_forward = lambda _: None


def _provide_kernels_of_states():
    """Convolutions and the delta rule are Triton's and sgl_kernel's; modules look for the latter when imported."""
    import torch

    from engine import convolution, delta_rule

    torch.ops.sgl_kernel.fused_gdn_gating_cpu = delta_rule.gates
    torch.ops.sgl_kernel.fused_sigmoid_gating_delta_rule_update_cpu = delta_rule.decode
    from sglang.kernels.ops.attention.fla.fused_norm_gate import FusedRMSNormGated
    from sglang.srt.layers.attention.linear import gdn_backend
    from sglang.srt.layers.attention.linear.kernels import gdn_triton
    from sglang.srt.models import lfm2

    FusedRMSNormGated.forward = delta_rule.gated_norm
    gdn_triton.chunk_gated_delta_rule = delta_rule.prefill
    for module in (gdn_backend, lfm2):
        module.causal_conv1d_fn = convolution.convolve_prompts
        module.causal_conv1d_update = convolution.convolve_tokens
