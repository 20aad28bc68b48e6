"""Which layer attends how, keeps a state or reads the cache of another layer: read from the keys that say so.

The keys are tried in the order of `_READERS`; the first with a value decides. A configuration with a window or a state
that does not say in which layers raises, unless `defaults` knows its class.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from kvstead.errors import LayoutError
from kvstead.model import defaults
from kvstead.model.config_fields import Fields
from kvstead.model.kinds import CacheKind
from kvstead.model.state import has_state_family


@dataclass(frozen=True, slots=True)
class LayerPlan:
    """What a layer does: `attention` is FULL, WINDOW, CHUNK or None; `is_stateful` says whether it keeps a state.

    `has_feed_forward` says whether the layer has a feed-forward part. Patterns that list such parts as layers of their
    own leave them out elsewhere.
    """

    attention: CacheKind | None = None
    is_stateful: bool = False
    has_feed_forward: bool = True


_FULL, _WINDOW, _CHUNK = map(LayerPlan, (CacheKind.FULL, CacheKind.WINDOW, CacheKind.CHUNK))
_STATE = LayerPlan(is_stateful=True)
_BOTH = LayerPlan(CacheKind.FULL, is_stateful=True)
_NEITHER = LayerPlan()

_WORDS = {
    "full_attention": _FULL,
    "attention": _FULL,
    "sliding_attention": _WINDOW,
    "chunked_attention": _CHUNK,
    "linear_attention": _STATE,
    "mamba": _STATE,
    "conv": _STATE,
    "hybrid": _BOTH,
    "mlp": _NEITHER,
    "moe": _NEITHER,
}
_LETTERS = {"M": "mamba", "*": "attention", "-": "mlp", "E": "moe"}

_MOST_LAYERS = 10_000  # every layer is looked at; models have some hundred at most


def read_plans(fields: Fields) -> list[LayerPlan]:
    """One plan per layer, in order. Raises `LayoutError` when the configuration does not decide."""
    for key, read in _READERS:
        if fields.has(key):
            return read(fields, key)
    # Class or keys may say that some layers keep a state, even if they do not describe it.
    is_known = fields.model_type in defaults.STATEFUL or has_state_family(fields)
    if is_known or fields.has_any_of(defaults.STATE_KEY_PREFIXES):
        return _stateful_without_list(fields)
    return _uniform_or_default(fields)


def num_layers(fields: Fields) -> int:
    """The model's number of layers. Raises `LayoutError` without one, and for more than any model has."""
    number = fields.size("num_hidden_layers", "n_layer", "n_layers")
    if number > _MOST_LAYERS:
        raise LayoutError(
            f"{fields.name}: {number:,} layers are more than the {_MOST_LAYERS:,} that are read. Correct the number."
        )
    return number


def _spread(fields: Fields, is_full: Callable[[int], bool], other: LayerPlan) -> list[LayerPlan]:
    return [_FULL if is_full(index) else other for index in range(num_layers(fields))]


def _words(fields: Fields, key: str) -> list[LayerPlan]:
    words = [str(word) for word in fields.items(key)]
    unknown = sorted(set(words) - set(_WORDS))
    if unknown:
        raise LayoutError(
            f"{fields.name}: {key} has unknown types {', '.join(unknown)}. Known are {', '.join(_WORDS)}."
        )
    if fields.has("num_hidden_layers") and len(words) != num_layers(fields):
        raise LayoutError(
            f"{fields.name}: {key} lists {len(words)} layers and num_hidden_layers is {num_layers(fields)}. "
            "Correct one of them."
        )
    # Where feed-forward parts are layers of their own, no other layer has one.
    listed = any(_WORDS[word] == _NEITHER for word in words)
    return [_alone(_WORDS[word]) if listed else _WORDS[word] for word in words]


def _alone(plan: LayerPlan) -> LayerPlan:
    return LayerPlan(plan.attention, plan.is_stateful, has_feed_forward=plan == _NEITHER)


def _letters(fields: Fields, key: str) -> list[LayerPlan]:
    pattern = str(fields.get(key))
    unknown = sorted(set(pattern) - set(_LETTERS))
    if unknown:
        raise LayoutError(f"{fields.name}: {key} has unknown letters {unknown}. Known are {', '.join(_LETTERS)}.")
    if fields.has("num_hidden_layers") and num_layers(fields) != len(pattern):
        fields.assume(f"{len(pattern)} layers, as {key} has; num_hidden_layers says {num_layers(fields)}")
    return [_alone(_WORDS[_LETTERS[letter]]) for letter in pattern]


def _linear_attention_lists(fields: Fields, key: str) -> list[LayerPlan]:
    inner = fields.inner(key)
    # Both lists count layers from 1.
    full, linear = inner.numbers("full_attn_layers"), inner.numbers("kda_layers")
    if sorted(full + linear) != list(range(1, num_layers(fields) + 1)):
        raise LayoutError(
            f"{inner.name}: full_attn_layers and kda_layers do not name each layer 1 .. {num_layers(fields)} once. "
            "Correct the lists, which count from 1."
        )
    return _spread(fields, lambda index: index + 1 in full, _STATE)


def _zeros_and_ones(fields: Fields, key: str) -> list[LayerPlan]:
    marks = _checked_marks(fields, key)
    return _spread(fields, lambda index: not marks[index], _WINDOW)


def _without_positions(fields: Fields, key: str) -> list[LayerPlan]:
    if not fields.get(key) or not fields.get("attention_chunk_size"):
        return _uniform_or_default(fields)
    marks = _checked_marks(fields, key)
    return _spread(fields, lambda index: not marks[index], _CHUNK)


def _checked_marks(fields: Fields, key: str) -> list[int]:
    marks = fields.numbers(key)
    if len(marks) != num_layers(fields) or not set(marks) <= {0, 1}:
        raise LayoutError(
            f"{fields.name}: {key} has {len(marks)} marks for {num_layers(fields)} layers. Give one 0 or 1 per layer."
        )
    return marks


def _indices(fields: Fields, key: str) -> list[LayerPlan]:
    attending = set(fields.numbers(key))
    beyond = sorted(index for index in attending if not 0 <= index < num_layers(fields))
    if beyond:
        raise LayoutError(f"{fields.name}: {key} names the layers {beyond}. Layers are 0 .. {num_layers(fields) - 1}.")
    return _spread(fields, lambda index: index in attending, _STATE)


def _period(fields: Fields, key: str) -> list[LayerPlan]:
    period = fields.size(key)
    offset = fields.number("attn_layer_offset")
    if offset is None:
        raise fields.missing("attn_layer_offset")
    return _spread(fields, lambda index: index % period == offset, _STATE)


def _interval(fields: Fields, key: str, other: LayerPlan = _STATE) -> list[LayerPlan]:
    interval = fields.size(key)
    return _spread(fields, lambda index: (index + 1) % interval == 0, other)


def _window_pattern(fields: Fields, key: str) -> list[LayerPlan]:
    pattern = fields.get(key)
    if fields.get("sliding_window") is None:
        return [_FULL] * num_layers(fields)
    if isinstance(pattern, str):
        if not pattern or not set(pattern) <= {"L", "G"}:
            raise LayoutError(
                f"{fields.name}: {key} is {pattern!r}. It must be a number or letters L (local) and G (global)."
            )
        return _spread(fields, lambda index: pattern[index % len(pattern)] == "G", _WINDOW)
    return _interval(fields, key, _WINDOW)


_READERS: Sequence[tuple[str, Callable[[Fields, str], list[LayerPlan]]]] = (
    ("layer_types", _words),
    ("layers_block_type", _words),
    ("hybrid_override_pattern", _letters),
    ("linear_attn_config", _linear_attention_lists),
    ("hybrid_layer_pattern", _zeros_and_ones),
    ("attn_layer_indices", _indices),
    ("full_attn_idxs", _indices),
    ("attn_layer_period", _period),
    ("full_attention_interval", _interval),
    ("sliding_window_pattern", _window_pattern),
    ("_sliding_window_pattern", _window_pattern),
    ("no_rope_layers", _without_positions),
)


def _stateful_without_list(fields: Fields) -> list[LayerPlan]:
    if fields.model_type in defaults.ATTENTION_AND_STATE_IN_EVERY_LAYER:
        return [_BOTH] * num_layers(fields)
    if fields.model_type in defaults.STATE_IN_EVERY_LAYER:
        return [LayerPlan(is_stateful=True, has_feed_forward=False)] * num_layers(fields)
    if fields.get("full_attention_interval") is not None:
        return _interval(fields, "full_attention_interval")
    raise _no_list(fields, "layers with a state")


def _uniform_or_default(fields: Fields) -> list[LayerPlan]:
    if fields.get("sliding_window_pattern") is not None:
        return _window_pattern(fields, "sliding_window_pattern")
    if fields.get("attention_chunk_size") is not None and fields.get("sliding_window") is None:
        return _interval(fields, "no_rope_layer_interval", _CHUNK)
    window = fields.get("sliding_window")
    if window is None or fields.get("use_sliding_window") is False:
        return [_FULL] * num_layers(fields)
    if fields.has("max_window_layers"):
        first = fields.number("max_window_layers")
        assert first is not None, "the key has a value"
        return _spread(fields, lambda index: index < first, _WINDOW)
    if fields.model_type in defaults.WINDOW_IN_EVERY_LAYER:
        return [_WINDOW] * num_layers(fields)
    raise _no_list(fields, f"a sliding_window of {window}")


def _no_list(fields: Fields, what: str) -> LayoutError:
    looked = ", ".join(repr(key) for key, _ in _READERS)
    return LayoutError(
        f"{fields.subject} has {what} but does not say in which layers; looked for {looked}. Add 'layer_types' to the "
        "configuration."
    )


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
