"""The sizes of Mamba layers, whose keys differ from one group of models to the next."""

from __future__ import annotations

from dataclasses import dataclass

from kvstead.errors import LayoutError
from kvstead.model.config_fields import Fields


def mamba1_width(fields: Fields) -> int:
    """Channels of a Mamba-1 layer."""
    return fields.size("mamba_expand", "expand") * fields.size("hidden_size")


def mamba1_rank(fields: Fields) -> int:
    """Width of the time-step projection of a Mamba-1 layer; "auto" is a sixteenth of the hidden size, rounded up."""
    if fields.get("mamba_dt_rank", "time_step_rank") == "auto":
        return -(-fields.size("hidden_size") // 16)
    return fields.size("mamba_dt_rank", "time_step_rank")


@dataclass(frozen=True, slots=True)
class Mamba2Names:
    """The keys of the sizes of Mamba-2 in one group of models, which has the key `marker`.

    width, expand: keys of the inner width, and of that by the hidden size, where it must be heads times head size.
    """

    marker: str
    heads: tuple[str, ...]
    head_dim: tuple[str, ...]
    groups: tuple[str, ...]
    state: tuple[str, ...]
    kernel: tuple[str, ...]
    width: tuple[str, ...] = ()
    expand: tuple[str, ...] = ()


_MAMBA2_NAMES = (
    Mamba2Names(  # Bamba, Granite 4, Falcon-H1
        "mamba_n_heads",
        ("mamba_n_heads",),
        ("mamba_d_head",),
        ("mamba_n_groups",),
        ("mamba_d_state",),
        ("mamba_d_conv",),
        width=("mamba_d_ssm",),
        expand=("mamba_expand",),
    ),
    Mamba2Names(  # Nemotron-H, whose inner width is heads times head size, even where its `expand` differs
        "mamba_num_heads",
        ("mamba_num_heads",),
        ("mamba_head_dim",),
        ("n_groups",),
        ("ssm_state_size",),
        ("conv_kernel",),
    ),
    Mamba2Names(  # Zamba2: the later names first, then those of early exports
        "mamba_ngroups",
        ("n_mamba_heads",),
        ("mamba_headdim",),
        ("mamba_ngroups",),
        ("mamba_d_state", "state_size"),
        ("mamba_d_conv", "conv_dimension"),
        expand=("mamba_expand", "expansion_factor"),
    ),
    Mamba2Names(  # pure Mamba-2
        "num_heads",
        ("num_heads",),
        ("head_dim",),
        ("n_groups",),
        ("state_size",),
        ("conv_kernel",),
        expand=("expand",),
    ),
)


@dataclass(frozen=True, slots=True)
class Mamba2Sizes:
    """The sizes of one Mamba-2 layer, over all ranks."""

    heads: int
    head_dim: int
    groups: int
    state: int
    kernel: int

    @property
    def width(self) -> int:
        """Channels that pass through the recurrence."""
        return self.heads * self.head_dim

    @property
    def conv_channels(self) -> int:
        """Channels that pass through the convolution: the width, and an input and an output vector per group."""
        return self.width + 2 * self.groups * self.state


def mamba2_sizes(fields: Fields) -> Mamba2Sizes:
    """Sizes of Mamba-2. Raises `LayoutError` for a missing size, or when the width contradicts the heads."""
    names = next((names for names in _MAMBA2_NAMES if fields.has(names.marker)), None)
    assert names is not None, "a configuration of Mamba-2 has one of the markers"
    width = _mamba2_width(fields, names)
    head_dim = None if fields.get(*names.head_dim) == "auto" else fields.number(*names.head_dim)
    heads = fields.number(*names.heads)
    if width and heads and head_dim is None:
        head_dim = width // heads
    if width and head_dim and heads is None:
        heads = width // head_dim
    if not heads or not head_dim:
        raise fields.missing(*(names.head_dim if heads else names.heads))
    if width is not None and heads * head_dim != width:
        raise LayoutError(
            f"{fields.name}: {heads} Mamba heads of {head_dim} are not {width} wide, as "
            f"{', '.join((*names.width, *names.expand))} say. Correct one of them."
        )
    return Mamba2Sizes(
        heads, head_dim, fields.size(*names.groups), fields.size(*names.state), fields.size(*names.kernel)
    )


def _mamba2_width(fields: Fields, names: Mamba2Names) -> int | None:
    """The inner width where a key states it."""
    width = fields.number(*names.width) if names.width else None
    if width is not None or not names.expand:
        return width
    factor = fields.number(*names.expand)
    return None if factor is None else factor * fields.size("hidden_size")
