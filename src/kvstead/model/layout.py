"""`ModelLayout`: what a model caches, layer by layer, and what that costs in bytes.

What a sequence of n tokens holds, per layer:

    full, latent   n entries
    window         min(n, window) entries
    chunk          as many entries as tokens in the chunk of the last token
    state          one slot for any n
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from functools import cache, cached_property, partial
from typing import Literal, Self, Unpack

from kvstead.errors import InvalidSize, LayoutError, MisalignedSize
from kvstead.model.attention import is_latent, read_token_cache
from kvstead.model.catalog import find_config, preset_config
from kvstead.model.config_fields import ConfigSource, Fields, read_fields
from kvstead.model.defaults import is_known
from kvstead.model.kinds import (
    BOUNDED,
    WHOLE_SEQUENCE,
    CacheKind,
    ConvColumns,
    LayerCache,
    LayoutKeywords,
    LayoutOptions,
)
from kvstead.model.layer_patterns import read_plans, read_producers
from kvstead.model.state import read_state
from kvstead.model.window import Window


@dataclass(frozen=True)  # no slots: the sums below are needed at every step, so they are cached
class ModelLayout:
    """The caches of one model on one tensor-parallel rank.

    `layers` has one entry per layer, also for layers that keep nothing. `options` says how entries are stored.
    `assumptions` lists what was filled in rather than read from the configuration, with its source. Bytes are Python
    ints, which are exact.
    """

    name: str
    layers: tuple[LayerCache, ...]
    options: LayoutOptions = field(default_factory=LayoutOptions)
    assumptions: tuple[str, ...] = ()

    @classmethod
    def from_config(
        cls,
        config: ConfigSource,
        *,
        name: str | None = None,
        cache_dtype: str = "bfloat16",
        state_dtype: str = "float32",
        conv_dtype: str = "bfloat16",
        conv_columns: ConvColumns = "kernel-1",
        tensor_parallel: int = 1,
    ) -> Self:
        """Read the layout from a Hugging Face configuration.

        config: a mapping, the path of a `config.json`, or of a directory with one. A nested `text_config` is read.
        cache_dtype: of keys, values and latents; "fp8_ds_mla" packs latents (656 bytes for 512 + 64).
        state_dtype, conv_dtype: of the recurrent part of a state and of its convolution history.
        conv_columns: columns of history: the kernel less one (enough), or the whole kernel (as in transformers).
        tensor_parallel: number of ranks; the layout is that of one. Ranks divide the heads, or copy them if there are
            fewer heads than ranks.

        Raises `LayoutError` for a key that is missing (naming it and its aliases) or invalid, and for a number of ranks
        that does not divide the heads; `InvalidSize` for fewer ranks than 1.
        """
        options = LayoutOptions(cache_dtype, state_dtype, conv_dtype, conv_columns, tensor_parallel)
        fields = read_fields(config, name)
        if not is_known(fields.model_type):
            fields.assume(f"model_type {fields.model_type or 'missing'!r} is unknown, so the keys are read as llama's")
        layers = _read_layers(fields, options)
        return cls(fields.name, layers, options, tuple(fields.assumptions))

    @classmethod
    def preset(cls, name: str, **keywords: Unpack[LayoutKeywords]) -> Self:
        """The layout of a bundled model; keywords as in `from_config`. Raises `LayoutError` for an unknown name."""
        return cls.from_config(preset_config(name), name=name, **keywords)

    @cached_property
    def kinds(self) -> tuple[CacheKind, ...]:
        """The kinds of cache that the layers own, in the order of `CacheKind`."""
        present = {kind for layer in self.layers for kind in layer.kinds}
        return tuple(kind for kind in CacheKind if kind in present)

    @cached_property
    def is_manageable(self) -> bool:
        """Whether a manager can hold it: entries per token, and states only beside whole sequences."""
        kinds = set(self.kinds)
        if not kinds or CacheKind.CROSS in kinds:
            return False
        return CacheKind.STATE not in kinds or not kinds.isdisjoint(WHOLE_SEQUENCE)

    def bytes_per_token(self, kind: CacheKind) -> int:
        """Bytes of one token in all layers of `kind`; 0 for STATE, which has no bytes per token."""
        return sum(layer.token_bytes for layer in self.layers if layer.tokens is not None and layer.tokens.kind is kind)

    @cached_property
    def full_bytes_per_token(self) -> int:
        """Bytes of one token in the layers that keep whole sequences (full and latent)."""
        return sum(self.bytes_per_token(kind) for kind in WHOLE_SEQUENCE)

    @cached_property
    def window_bytes_per_token(self) -> int:
        """Bytes of one token in the layers that keep a window or a chunk."""
        return sum(self.bytes_per_token(kind) for kind in BOUNDED)

    @property
    def window(self) -> int | None:
        """Tokens of the window or chunk, None when no layer has one."""
        return next((layer.tokens.span for layer in self.layers if layer.tokens and layer.tokens.kind in BOUNDED), None)

    @property
    def window_kind(self) -> Literal["sliding", "chunked"] | None:
        """Whether `window` is a sliding window or a chunk; None where no layer has one."""
        if CacheKind.WINDOW in self.kinds:
            return "sliding"
        return "chunked" if CacheKind.CHUNK in self.kinds else None

    @cached_property
    def window_rule(self) -> Window | None:
        """The bound that all layers with a window or a chunk share, None when no layer has one.

        Raises `LayoutError` when they differ in kind or size (in no bundled model): one window side cannot serve both.
        """
        entries = [layer.tokens for layer in self.layers if layer.tokens and layer.tokens.kind in BOUNDED]
        found = sorted({(entry.kind, entry.span or 0) for entry in entries})
        if len(found) > 1:
            bounds = " and ".join(f"a {kind} of {span:,}" for kind, span in found)
            raise LayoutError(
                f"{self.name} has layers with {bounds}. Manage the layers of each as a model of their own."
            )
        return Window(found[0][1], found[0][0] is CacheKind.CHUNK) if found else None

    @cached_property
    def state_bytes(self) -> int:
        """Bytes of one state slot: the state of one sequence in all layers."""
        return sum(layer.state_bytes for layer in self.layers)

    def sequence_bytes(self, num_tokens: int) -> int:
        """Bytes that one sequence of `num_tokens` tokens holds, with its state slot, and without rounding up to pages.

        Raises `InvalidSize` for a negative length.
        """
        if num_tokens < 0:
            raise InvalidSize(f"num_tokens is {num_tokens}. Use 0 or more.")
        entries = (layer.tokens for layer in self.layers if layer.tokens is not None)
        return self.state_bytes + sum(entry.token_bytes * entry.live_tokens(num_tokens) for entry in entries)

    def slots_for(self, num_bytes: int, page_size: int) -> int:
        """Slots, in whole pages, that fit into `num_bytes` beside the padding page; 0 when no page fits.

        For layouts of one pool: all layers keep whole sequences, or all keep a window. Raises `LayoutError` for others,
        `InvalidSize` for a negative size or a page size below 1.
        """
        page_bytes = self._page_bytes(page_size)
        if num_bytes < 0:
            raise InvalidSize(f"num_bytes is {num_bytes}. Use 0 or more.")
        return max(0, num_bytes // page_bytes - 1) * page_size

    def bytes_for(self, slots: int, page_size: int) -> int:
        """Bytes of a pool of `slots` slots and its padding page: the least for which `slots_for` gives `slots`.

        Raises as `slots_for` does, and `MisalignedSize` when `slots` are not whole pages.
        """
        page_bytes = self._page_bytes(page_size)
        if slots < 0:
            raise InvalidSize(f"slots is {slots}. Use 0 or more.")
        if slots % page_size:
            raise MisalignedSize(
                f"{slots} slots are not a multiple of the page size {page_size}. Round them to whole pages."
            )
        return (slots // page_size + 1) * page_bytes

    def _page_bytes(self, page_size: int) -> int:
        if page_size < 1:
            raise InvalidSize(f"the page size is {page_size}. It must be at least 1.")
        pools = [size for size in (self.full_bytes_per_token, self.window_bytes_per_token) if size]
        if len(pools) != 1 or self.state_bytes:
            raise LayoutError(
                f"{self.name} keeps {' and '.join(self.kinds) or 'nothing'}, which is not one pool of slots. "
                "Divide the bytes among its pools by `split_memory`."
            )
        return pools[0] * page_size


def load_layout(name_or_path: str | os.PathLike[str], **keywords: Unpack[LayoutKeywords]) -> ModelLayout:
    """The layout of a bundled model, a `config.json` or its directory.

    Keywords as in `ModelLayout.from_config`. Raises `LayoutError`, with close names, for anything else.
    """
    config, name = find_config(name_or_path)
    return ModelLayout.from_config(config, name=name, **keywords)


def _read_layers(fields: Fields, options: LayoutOptions) -> tuple[LayerCache, ...]:
    """What each layer keeps, in order. Raises `LayoutError` for missing or contradictory keys."""
    plans = read_plans(fields)
    producers = read_producers(fields, plans)
    state = read_state(fields, options) if any(plan.is_stateful for plan in plans) else ()
    stated_dtype = fields.get("mamba_ssm_dtype")
    if state and stated_dtype is not None and stated_dtype != options.state_dtype:
        fields.assume(f"state in {options.state_dtype}, though mamba_ssm_dtype is {stated_dtype}")

    token_cache = cache(partial(read_token_cache, fields, options))
    layers = []
    for index, plan in enumerate(plans):
        own_state = state if plan.is_stateful else ()
        if plan.attention is None:
            layers.append(LayerCache(index, state=own_state))
        elif index in producers:
            kind = CacheKind.LATENT if is_latent(fields) and plan.attention is CacheKind.FULL else plan.attention
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
