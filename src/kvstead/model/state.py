"""The recurrent state of one layer: which tensors, of what shape, per sequence and rank, and its layer's parameters.

Every state has a history of convolution inputs in `conv_dtype`; all but the short convolution also have a recurrent
part in `state_dtype`.

Shapes and projections are those of transformers 5.24.0 (`modeling_*.py`). Tensor-parallel ranks hold equal shares of
the heads. Where Mamba-2 has fewer groups than there are ranks, groups are replicated, as key and value heads are.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from kvstead.errors import LayoutError
from kvstead.model.config_fields import Fields
from kvstead.model.kinds import LayoutOptions, StatePart


@dataclass(frozen=True, slots=True)
class _Family:
    """A form of state whose size is known. count: parameters of a layer, from the fields and the hidden size."""

    parts: Callable[[Fields, LayoutOptions], tuple[StatePart, ...]]
    count: Callable[[Fields, int], int]


def split(fields: Fields, what: str, count: int, ranks: int) -> int:
    """One rank's share of `count` heads or channels. Raises `LayoutError` when they do not divide."""
    if count % ranks:
        raise LayoutError(
            f"{fields.name}: {count} {what} do not divide among {ranks} tensor-parallel ranks. "
            f"Use a degree that divides {count}."
        )
    return count // ranks


def split_or_replicate(fields: Fields, what: str, count: int, ranks: int) -> int:
    """As `split`, but more ranks than `count` hold copies of one head or group. Raises `LayoutError` if uneven."""
    if count >= ranks:
        return split(fields, what, count, ranks)
    if ranks % count:
        raise LayoutError(
            f"{fields.name}: {count} {what} cannot be copied evenly to {ranks} tensor-parallel ranks. "
            f"Use a degree that is a multiple of {count} or divides it."
        )
    return 1


def has_state_family(fields: Fields) -> bool:
    """Whether the configuration has the keys of a known form of state."""
    return _find_family(fields) is not None


def read_state(fields: Fields, options: LayoutOptions) -> tuple[StatePart, ...]:
    """The state of one layer. Raises `LayoutError` for an unknown family or a missing size."""
    return _require_family(fields).parts(fields, options)


def count_state(fields: Fields) -> int:
    """Parameters of a layer with a state. Raises `LayoutError` for an unknown family or a missing size."""
    return _require_family(fields).count(fields, fields.size("hidden_size"))


def _find_family(fields: Fields) -> _Family | None:
    return next((family for keys, family in _MARKERS if all(map(fields.has, keys))), None)


def _require_family(fields: Fields) -> _Family:
    family = _find_family(fields)
    if family is None:
        looked = ", ".join(" with ".join(map(repr, keys)) for keys, _ in _MARKERS)
        raise LayoutError(
            f"{fields.subject} has layers with a state of an unknown family; looked for {looked}. Add the keys of its "
            "family."
        )
    return family


def _conv(name: str, channels: int, kernel: int, options: LayoutOptions) -> StatePart:
    columns = kernel if options.conv_columns == "kernel" else kernel - 1
    return StatePart(name, (channels, columns), options.conv_dtype)


def _recurrent(shape: tuple[int, ...], options: LayoutOptions) -> StatePart:
    return StatePart("recurrent", shape, options.state_dtype)


def _gated_delta_net(fields: Fields, options: LayoutOptions) -> tuple[StatePart, ...]:
    """One convolution over queries, keys and values; a matrix per value head."""
    ranks = options.tensor_parallel
    key_heads = split(fields, "linear key heads", fields.size("linear_num_key_heads"), ranks)
    value_heads = split(fields, "linear value heads", fields.size("linear_num_value_heads"), ranks)
    key_dim, value_dim = fields.size("linear_key_head_dim"), fields.size("linear_value_head_dim")
    channels = 2 * key_heads * key_dim + value_heads * value_dim
    conv = _conv("conv", channels, fields.size("linear_conv_kernel_dim"), options)
    return conv, _recurrent((value_heads, key_dim, value_dim), options)


def _count_gated_delta_net(fields: Fields, hidden: int) -> int:
    keys = fields.size("linear_num_key_heads") * fields.size("linear_key_head_dim")
    value_heads = fields.size("linear_num_value_heads")
    values = value_heads * fields.size("linear_value_head_dim")
    return hidden * (2 * keys + 2 * values + 2 * value_heads) + values * hidden


def _kimi_delta_attention(fields: Fields, options: LayoutOptions) -> tuple[StatePart, ...]:
    """Three convolutions, and a square matrix per head."""
    inner = fields.inner("linear_attn_config")
    heads = split(fields, "linear attention heads", inner.size("num_heads"), options.tensor_parallel)
    dim, kernel = inner.size("head_dim"), inner.size("short_conv_kernel_size")
    histories = (_conv(f"conv_{name}", heads * dim, kernel, options) for name in ("query", "key", "value"))
    return (*histories, _recurrent((heads, dim, dim), options))


def _count_kimi_delta_attention(fields: Fields, hidden: int) -> int:
    inner = fields.inner("linear_attn_config")
    heads, dim = inner.size("num_heads"), inner.size("head_dim")
    low_rank = 2 * (hidden * dim + dim * heads * dim)  # decay and output gate
    return 4 * hidden * heads * dim + low_rank + hidden * heads


def _short_convolution(fields: Fields, options: LayoutOptions) -> tuple[StatePart, ...]:
    channels = split(fields, "convolution channels", fields.size("hidden_size"), options.tensor_parallel)
    return (_conv("conv", channels, fields.size("conv_L_cache"), options),)


def _count_short_convolution(_fields: Fields, hidden: int) -> int:
    return 4 * hidden * hidden  # in for the input and its two gates, and out


def _mamba1(fields: Fields, options: LayoutOptions) -> tuple[StatePart, ...]:
    """A convolution over the inner width, and a state vector per channel."""
    channels = split(fields, "Mamba channels", _mamba1_width(fields), options.tensor_parallel)
    conv = _conv("conv", channels, fields.size("mamba_d_conv", "conv_kernel"), options)
    return conv, _recurrent((channels, fields.size("mamba_d_state", "state_size")), options)


def _count_mamba1(fields: Fields, hidden: int) -> int:
    width, state = _mamba1_width(fields), fields.size("mamba_d_state", "state_size")
    # The width of the time step's projection: "auto" is a sixteenth of the hidden size, rounded up.
    is_auto = fields.get("mamba_dt_rank", "time_step_rank") == "auto"
    rank = -(-hidden // 16) if is_auto else fields.size("mamba_dt_rank", "time_step_rank")
    return hidden * 2 * width + width * (rank + 2 * state) + rank * width + width * state + width * hidden


def _mamba1_width(fields: Fields) -> int:
    return fields.size("mamba_expand", "expand") * fields.size("hidden_size")


def _mamba2(fields: Fields, options: LayoutOptions) -> tuple[StatePart, ...]:
    """A convolution over the width and the groups' vectors; a matrix per head."""
    sizes = _mamba2_sizes(fields)
    heads = split(fields, "Mamba heads", sizes.heads, options.tensor_parallel)
    groups = split_or_replicate(fields, "Mamba groups", sizes.groups, options.tensor_parallel)
    conv = _conv("conv", heads * sizes.head_dim + 2 * groups * sizes.state, sizes.kernel, options)
    return conv, _recurrent((heads, sizes.head_dim, sizes.state), options)


def _count_mamba2(fields: Fields, hidden: int) -> int:
    sizes = _mamba2_sizes(fields)
    width = sizes.heads * sizes.head_dim
    # The convolution runs over the width, and an input and an output vector per group.
    return hidden * (2 * width + 2 * sizes.groups * sizes.state + sizes.heads) + width * hidden


@dataclass(frozen=True, slots=True)
class _Mamba2Sizes:
    """The sizes of one Mamba-2 layer, over all ranks."""

    heads: int
    head_dim: int
    groups: int
    state: int
    kernel: int


# The first key that a configuration has marks its group of models. Behind it stand the group's keys of the heads, head
# size, groups, state, kernel, inner width and that width by the hidden size, where it must be heads times head size;
# a slash separates names that mean the same, a dash stands for no key.
_MAMBA2_KEYS = {
    # Bamba, Granite 4, Falcon-H1
    "mamba_n_heads": "mamba_n_heads mamba_d_head mamba_n_groups mamba_d_state mamba_d_conv mamba_d_ssm mamba_expand",
    # Nemotron-H, whose inner width is heads times head size, even where its `expand` differs
    "mamba_num_heads": "mamba_num_heads mamba_head_dim n_groups ssm_state_size conv_kernel - -",
    # Zamba2: the later names first, then those of early exports
    "mamba_ngroups": "n_mamba_heads mamba_headdim mamba_ngroups mamba_d_state/state_size mamba_d_conv/conv_dimension - "
    "mamba_expand/expansion_factor",
    # pure Mamba-2
    "num_heads": "num_heads head_dim n_groups state_size conv_kernel - expand",
}


def _mamba2_sizes(fields: Fields) -> _Mamba2Sizes:
    """Sizes of Mamba-2. Raises `LayoutError` for a missing size, or when the width contradicts the heads."""
    found = next((keys for marker, keys in _MAMBA2_KEYS.items() if fields.has(marker)), None)
    assert found is not None, "a configuration of Mamba-2 has one of the markers"
    names = [[] if each == "-" else each.split("/") for each in found.split()]
    heads_keys, dim_keys, groups_keys, state_keys, kernel_keys, width_keys, expand_keys = names
    width = fields.number(*width_keys)
    factor = fields.number(*expand_keys) if width is None else None
    if factor is not None:
        width = factor * fields.size("hidden_size")
    head_dim = None if fields.get(*dim_keys) == "auto" else fields.number(*dim_keys)
    heads = fields.number(*heads_keys)
    if width and heads and head_dim is None:
        head_dim = width // heads
    if width and head_dim and heads is None:
        heads = width // head_dim
    if not heads or not head_dim:
        raise fields.missing(*(dim_keys if heads else heads_keys))
    if width is not None and heads * head_dim != width:
        raise LayoutError(
            f"{fields.name}: {heads} Mamba heads of {head_dim} are not {width} wide, as "
            f"{', '.join(width_keys + expand_keys)} say. Correct one of them."
        )
    return _Mamba2Sizes(heads, head_dim, fields.size(*groups_keys), fields.size(*state_keys), fields.size(*kernel_keys))


_GATED_DELTA_NET = _Family(_gated_delta_net, _count_gated_delta_net)  # Qwen3-Next, Qwen3.5
_KIMI_DELTA_ATTENTION = _Family(_kimi_delta_attention, _count_kimi_delta_attention)  # Kimi Linear
_SHORT_CONVOLUTION = _Family(_short_convolution, _count_short_convolution)  # LFM2
_MAMBA1 = _Family(_mamba1, _count_mamba1)  # Jamba, Falcon-Mamba
_MAMBA2 = _Family(_mamba2, _count_mamba2)  # Bamba, Granite 4, Falcon-H1, Nemotron-H, Zamba2

_MARKERS = (
    (("linear_num_value_heads",), _GATED_DELTA_NET),
    (("linear_attn_config",), _KIMI_DELTA_ATTENTION),
    (("conv_L_cache",), _SHORT_CONVOLUTION),
    (("mamba_n_heads",), _MAMBA2),
    (("mamba_num_heads",), _MAMBA2),
    (("mamba_ngroups",), _MAMBA2),
    (("mamba_dt_rank",), _MAMBA1),
    (("state_size", "num_heads"), _MAMBA2),
    (("state_size", "time_step_rank"), _MAMBA1),
)
"""A configuration with all of the keys has a state of the family; the first match decides.

`time_step_rank` alone does not mean Mamba-1: files of Mamba-2 have it too.
"""
