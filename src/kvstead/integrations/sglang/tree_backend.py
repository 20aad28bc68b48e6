"""kvstead's prefix tree as a radix cache of SGLang's: `--radix-cache-backend kvstead`.

It serves models with full attention, and with windows in some of their layers. What SGLang asks of a tree for recurrent
states (copies on a match, states recorded on the way) is not here yet.
"""

from __future__ import annotations

from typing import Any

NAME = "kvstead"


def make_tree(context: Any) -> Any:
    """The tree for an engine, from SGLang's `TreeCacheBuildContext`.

    Raises `NotImplementedError` for a model with states, with windows in all layers, in rings or in a unified buffer,
    and with HiCache.
    """
    params, has_windows = context.params, context.is_hybrid_swa
    reasons = {
        "windows in all layers": has_windows and context.full_tokens_per_layer == 0,
        "windows in rings of the requests": has_windows and not params.swa_gates_prefix_match,
        "windows in a unified buffer": has_windows and hasattr(params.token_to_kv_pool_allocator, "unified_buffer"),
        "recurrent states": context.is_hybrid_ssm,
        "HiCache": context.enable_hierarchical_cache,
    }
    if refused := [reason for reason, is_there in reasons.items() if is_there]:
        raise NotImplementedError(
            f"--radix-cache-backend {NAME} serves full attention, alone or beside layers with windows, not "
            f"{' and '.join(refused)}. Leave the option out: SGLang's own tree runs on kvstead's allocators too."
        )
    from kvstead.integrations.sglang.engine_radix_cache import RadixCache, WindowRadixCache

    return (WindowRadixCache if has_windows else RadixCache)(params)
