"""Layers that read the cache of another layer and keep none of their own."""

from __future__ import annotations

from collections.abc import Sequence

from kvstead.errors import LayoutError
from kvstead.model.config_fields import Fields
from kvstead.model.layer_patterns import LayerPlan


def read_producers(fields: Fields, plans: Sequence[LayerPlan]) -> dict[int, int | None]:
    """The layers that share, each with the layer whose cache it reads (None: a layer of another model).

    Two schemes are known. `num_kv_shared_layers`: that many last layers each read the last layer before them that
    attends the same way (Gemma 3n). `use_cla`: of every `cla_share_factor` layers the first owns a cache and the others
    read it (Hunyuan-Large). Raises `LayoutError` for impossible counts.
    """
    num_shared = fields.number("num_kv_shared_layers") or 0
    if num_shared:
        return _last_layers(fields, plans, num_shared)
    if fields.get("use_cla"):
        return _neighbours(fields, plans, fields.size("cla_share_factor"))
    return {}


def _last_layers(fields: Fields, plans: Sequence[LayerPlan], num_shared: int) -> dict[int, int | None]:
    first = len(plans) - num_shared
    if first < 0:
        raise LayoutError(
            f"{fields.name}: num_kv_shared_layers is {num_shared}, more than the {len(plans)} layers. Correct it."
        )
    last_of_type = {plan.attention: index for index, plan in enumerate(plans[:first])}
    borrows = first == 0  # a draft model that owns nothing and reads its target's cache
    producers: dict[int, int | None] = {}
    for index in range(first, len(plans)):
        attention = plans[index].attention
        if attention is None:
            continue
        if attention not in last_of_type and not borrows:
            raise LayoutError(
                f"{fields.name}: layer {index} shares a {attention} cache, and none of the layers 0 .. {first - 1} "
                "has one. Correct num_kv_shared_layers or layer_types."
            )
        producers[index] = last_of_type.get(attention)
    return producers


def _neighbours(fields: Fields, plans: Sequence[LayerPlan], factor: int) -> dict[int, int | None]:
    producers: dict[int, int | None] = {}
    for index, plan in enumerate(plans):
        owner = index - index % factor
        if owner != index and plan.attention is not None:
            if plans[owner].attention is not plan.attention:
                raise LayoutError(
                    f"{fields.name}: layer {index} shares the cache of layer {owner}, which attends differently. "
                    "Correct cla_share_factor."
                )
            producers[index] = owner
    return producers
