"""kvstead's prefix tree as a radix cache of SGLang's: `--radix-cache-backend kvstead`.

It serves models with full attention. What SGLang asks of a tree for windows and recurrent states (locks of a window
alone, windows recovered into a prefix, copies of states) is not here yet.
"""

from __future__ import annotations

from typing import Any

NAME = "kvstead"


def make_tree(context: Any) -> Any:
    """The tree for an engine, from SGLang's `TreeCacheBuildContext`.

    Raises `NotImplementedError` for a model with windows or states, and with HiCache.
    """
    reasons = {
        "sliding windows": context.is_hybrid_swa,
        "recurrent states": context.is_hybrid_ssm,
        "HiCache": context.enable_hierarchical_cache,
    }
    if refused := [reason for reason, is_there in reasons.items() if is_there]:
        raise NotImplementedError(
            f"--radix-cache-backend {NAME} serves models with full attention alone, not {' and '.join(refused)}. Leave "
            "the option out: SGLang's own tree runs on kvstead's allocators too."
        )
    from kvstead.integrations.sglang.engine_radix_cache import RadixCache

    return RadixCache(context.params)
