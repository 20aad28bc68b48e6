"""The recurrent state of one layer: which tensors, of what shape, per sequence and rank.

Every state has a history of convolution inputs in `conv_dtype`; all but the short convolution also have a recurrent
part in `state_dtype`.

Shapes are those of transformers 5.24.0 (`modeling_*.py`). Tensor-parallel ranks hold equal shares of the heads. Where
Mamba-2 has fewer groups than there are ranks, groups are replicated, as key and value heads are.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

from kvstead.errors import LayoutError
from kvstead.model.config_fields import Fields
from kvstead.model.kinds import StatePart
from kvstead.model.mamba import mamba1_width, mamba2_sizes


@dataclass(frozen=True, slots=True)
class StateOptions:
    """How states are stored. dropped_columns: columns of history that are not kept, of the kernel's."""

    state_dtype: str
    conv_dtype: str
    dropped_columns: int
    tensor_parallel: int

    def conv(self, name: str, channels: int, kernel: int) -> StatePart:
        """The part that holds the history of `channels` convolution inputs."""
        return StatePart(name, (channels, kernel - self.dropped_columns), self.conv_dtype)

    def recurrent(self, *shape: int) -> StatePart:
        """The recurrent part, of a shape."""
        return StatePart("recurrent", shape, self.state_dtype)


class StateFamily(StrEnum):
    """The forms of state whose size is known."""

    GATED_DELTA_NET = "gated delta net"  # Qwen3-Next, Qwen3.5
    KIMI_DELTA_ATTENTION = "Kimi delta attention"  # Kimi Linear
    SHORT_CONVOLUTION = "short convolution"  # LFM2
    MAMBA1 = "Mamba-1"  # Jamba, Falcon-Mamba
    MAMBA2 = "Mamba-2"  # Bamba, Granite 4, Falcon-H1, Nemotron-H, Zamba2


_MARKERS = (
    (("linear_num_value_heads",), StateFamily.GATED_DELTA_NET),
    (("linear_attn_config",), StateFamily.KIMI_DELTA_ATTENTION),
    (("conv_L_cache",), StateFamily.SHORT_CONVOLUTION),
    (("mamba_n_heads",), StateFamily.MAMBA2),
    (("mamba_num_heads",), StateFamily.MAMBA2),
    (("mamba_ngroups",), StateFamily.MAMBA2),
    (("mamba_dt_rank",), StateFamily.MAMBA1),
    (("state_size", "num_heads"), StateFamily.MAMBA2),
    (("state_size", "time_step_rank"), StateFamily.MAMBA1),
)
"""A configuration with all of the keys has a state of the family; the first match decides.

`time_step_rank` alone does not mean Mamba-1: files of Mamba-2 have it too.
"""


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


def state_family(fields: Fields) -> StateFamily | None:
    """The family of a configuration's state layers, None when it has the keys of no family."""
    return next((family for keys, family in _MARKERS if all(map(fields.has, keys))), None)


def require_family(fields: Fields) -> StateFamily:
    """As `state_family`, but raises `LayoutError` where there is none, with the keys looked for."""
    family = state_family(fields)
    if family is None:
        looked = ", ".join(" with ".join(map(repr, keys)) for keys, _ in _MARKERS)
        raise LayoutError(
            f"{fields.subject} has layers with a state of an unknown family; looked for {looked}. Add the keys of its "
            "family."
        )
    return family


def read_state(fields: Fields, options: StateOptions) -> tuple[StatePart, ...]:
    """The state of one layer. Raises `LayoutError` for an unknown family or a missing size."""
    return _PARTS[require_family(fields)](fields, options)


def _gated_delta_net(fields: Fields, options: StateOptions) -> tuple[StatePart, ...]:
    """Qwen3-Next and Qwen3.5: one convolution over queries, keys and values; a matrix per value head."""
    ranks = options.tensor_parallel
    key_heads = split(fields, "linear key heads", fields.size("linear_num_key_heads"), ranks)
    value_heads = split(fields, "linear value heads", fields.size("linear_num_value_heads"), ranks)
    key_dim, value_dim = fields.size("linear_key_head_dim"), fields.size("linear_value_head_dim")
    channels = 2 * key_heads * key_dim + value_heads * value_dim
    return (
        options.conv("conv", channels, fields.size("linear_conv_kernel_dim")),
        options.recurrent(value_heads, key_dim, value_dim),
    )


def _kimi_delta_attention(fields: Fields, options: StateOptions) -> tuple[StatePart, ...]:
    """Kimi Linear: three convolutions, and a square matrix per head."""
    inner = fields.inner("linear_attn_config")
    heads = split(fields, "linear attention heads", inner.size("num_heads"), options.tensor_parallel)
    dim, kernel = inner.size("head_dim"), inner.size("short_conv_kernel_size")
    histories = tuple(options.conv(f"conv_{name}", heads * dim, kernel) for name in ("query", "key", "value"))
    return (*histories, options.recurrent(heads, dim, dim))


def _short_convolution(fields: Fields, options: StateOptions) -> tuple[StatePart, ...]:
    """LFM2: nothing but the convolution's history."""
    channels = split(fields, "convolution channels", fields.size("hidden_size"), options.tensor_parallel)
    return (options.conv("conv", channels, fields.size("conv_L_cache")),)


def _mamba1(fields: Fields, options: StateOptions) -> tuple[StatePart, ...]:
    """Jamba, Falcon-Mamba: a convolution over the inner width and a state vector per channel."""
    channels = split(fields, "Mamba channels", mamba1_width(fields), options.tensor_parallel)
    return (
        options.conv("conv", channels, fields.size("mamba_d_conv", "conv_kernel")),
        options.recurrent(channels, fields.size("mamba_d_state", "state_size")),
    )


def _mamba2(fields: Fields, options: StateOptions) -> tuple[StatePart, ...]:
    """A convolution over the width and the groups' vectors; a matrix per head."""
    sizes = mamba2_sizes(fields)
    heads = split(fields, "Mamba heads", sizes.heads, options.tensor_parallel)
    groups = split_or_replicate(fields, "Mamba groups", sizes.groups, options.tensor_parallel)
    channels = heads * sizes.head_dim + 2 * groups * sizes.state
    return (
        options.conv("conv", channels, sizes.kernel),
        options.recurrent(heads, sizes.head_dim, sizes.state),
    )


_PARTS: dict[StateFamily, Callable[[Fields, StateOptions], tuple[StatePart, ...]]] = {
    StateFamily.GATED_DELTA_NET: _gated_delta_net,
    StateFamily.KIMI_DELTA_ATTENTION: _kimi_delta_attention,
    StateFamily.SHORT_CONVOLUTION: _short_convolution,
    StateFamily.MAMBA1: _mamba1,
    StateFamily.MAMBA2: _mamba2,
}
