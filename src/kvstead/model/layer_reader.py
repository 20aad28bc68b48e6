"""From the keys of a configuration to what each layer caches."""

from __future__ import annotations

from functools import cache

from kvstead.errors import LayoutError
from kvstead.model.attention import owned_kind, read_token_cache
from kvstead.model.config_fields import Fields
from kvstead.model.kinds import BOUNDED, CacheKind, LayerCache, TokenCache
from kvstead.model.layer_patterns import read_plans
from kvstead.model.layout_options import LayoutOptions
from kvstead.model.shared_layers import read_producers
from kvstead.model.state import read_state


def read_layers(fields: Fields, options: LayoutOptions) -> tuple[LayerCache, ...]:
    """What each layer keeps, in order. Raises `LayoutError` for missing or contradictory keys."""
    plans = read_plans(fields)
    producers = read_producers(fields, plans)
    state = read_state(fields, options.state) if any(plan.is_stateful for plan in plans) else ()
    stated_dtype = fields.get("mamba_ssm_dtype")
    if state and stated_dtype is not None and stated_dtype != options.state_dtype:
        fields.assume(f"state in {options.state_dtype}, though mamba_ssm_dtype is {stated_dtype}")

    @cache
    def token_cache(kind: CacheKind) -> TokenCache:
        return read_token_cache(fields, kind, options.cache_dtype, options.tensor_parallel)

    layers = []
    for index, plan in enumerate(plans):
        own_state = state if plan.is_stateful else ()
        if plan.attention is None:
            layers.append(LayerCache(index, state=own_state))
        elif index in producers:
            kind = owned_kind(fields, plan.attention)
            layers.append(LayerCache(index, state=own_state, shared_kind=kind, shared_with=producers[index]))
        else:
            layers.append(LayerCache(index, token_cache(plan.attention), own_state))
    _require_one_bound(fields, layers)
    return tuple(layers)


def _require_one_bound(fields: Fields, layers: list[LayerCache]) -> None:
    entries = (layer.tokens for layer in layers if layer.tokens is not None)
    bounds = sorted({(entry.kind, entry.span) for entry in entries if entry.kind in BOUNDED})
    if len(bounds) > 1:
        raise LayoutError(
            f"{fields.name} has layers of different bounds: {', '.join(f'{kind} of {span}' for kind, span in bounds)}. "
            "One per model is supported; describe its layers as several models."
        )
