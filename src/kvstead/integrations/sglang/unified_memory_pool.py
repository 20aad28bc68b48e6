"""SGLang's unified buffer: one arena of kvstead's, its pools in one chain, and the tensors that kernels see.

    | sink | "up" >>> ........ << "float" >> ........ <<< "down" |

Every pool has its slots on a grid of its own that starts at byte 0, so the tensors stay as they are when pages move: a
row is a physical slot, an entry away from the next. Page 0 of every pool lies in the sink.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from kvstead.arena import PoolChain
from kvstead.errors import LayoutError
from kvstead.integrations.sglang.attribute_of import AttributeOf
from kvstead.integrations.sglang.sub_pool_specs import (
    LayerParts,
    MambaSubPoolSpec,
    MHASubPoolSpec,
    MLASubPoolSpec,
    SubPoolSpec,
    is_latent,
    is_state,
    layer_parts,
)
from kvstead.pools import ByteArena, EntrySpec, Place

__all__ = ["MHASubPoolSpec", "MLASubPoolSpec", "MambaSubPoolSpec", "SubPoolSpec", "UnifiedKVPool"]

_IDLE_COPY_BYTES = 256 << 20  # what an accelerator copies in about a millisecond
_PLACES = {"up": Place.LOW, "float": Place.MIDDLE, "down": Place.HIGH}
_CHAIN_NAMES = {"swa": "window", "mamba": "state"}  # what kvstead's allocators call them


def chain_name(sub_pool_name: str) -> str:
    """The name of a pool in the chain."""
    return _CHAIN_NAMES.get(sub_pool_name, sub_pool_name)


class MoveGate:
    """When pages of one chain may move, and what their moves have to wait for.

    forward_done: the event of the last forward pass that was launched; None when there is none. forward_stream: where
    forward passes run; without an event moves wait for all that is on it. gates: by the name of who installed them;
    pages move while all of them say yes.
    """

    def __init__(self, device: str | torch.device) -> None:
        self.forward_done: Any = None
        self.forward_stream: Any = None
        self.gates: dict[str, Callable[[], bool]] = {}
        self._device = torch.device(device)

    def fence(self) -> None:
        """Order what comes next on the current stream behind the last forward pass. The host does not wait."""
        if self.forward_done is not None:
            self.forward_done.wait()
        elif self.forward_stream is not None:
            torch.get_device_module(self._device).current_stream().wait_stream(self.forward_stream)

    def may_move(self) -> bool:
        """Whether pages that are in use may move now."""
        return all(gate() for gate in self.gates.values())


class UnifiedKVPool:
    """`total_bytes` on `device` for the pools of `sub_pool_specs`, ours or SGLang's: one "up", one "down", the rest
    "float" in the order given.

    page_size: tokens a page, of all pools but those of states. view_tail_pad_bytes, bs1_floor_terms: not read, nothing
    here needs them. `chain` and `arena` are kvstead's; `moves` says when pages may move. Pages of tokens are zeroed
    when they are handed out.

    Raises `LayoutError` for pools that make no chain or cannot hold a page, or states whose dtypes do not line up,
    `NotImplementedError` for a memory saver, backing after capture, or entries with a draft's parts.
    """

    post_capture_active = False
    post_capture_backed_bytes = 0
    fused_draft = None
    _is_lazy: bool | None = None
    active_allocation_bytes = AttributeOf[int]("total_bytes")  # all may be read and written

    def __init__(
        self,
        *,
        total_bytes: int,
        sub_pool_specs: Sequence[Any],
        device: str,
        enable_memory_saver: bool = False,
        page_size: int = 1,
        view_tail_pad_bytes: int = 0,
        post_capture_active: bool = False,
        bs1_floor_terms: Any = None,
        fused_draft: Any = None,
    ) -> None:
        has_draft = fused_draft or any(spec.draft_region for spec in sub_pool_specs)
        if enable_memory_saver or post_capture_active or has_draft:
            raise NotImplementedError(
                "A memory saver, backing after capture and fused drafts are not supported. Use SGLang's own buffer."
            )
        ends = sorted(spec.grow_direction for spec in sub_pool_specs if spec.grow_direction != "float")
        if ends != ["down", "up"]:
            raise LayoutError(
                f"the pools at the ends grow {ends or 'nowhere'}. Give one that grows up and one that grows down."
            )
        self.device = device
        self.total_bytes = total_bytes
        self.page_size = page_size
        self.sub_pool_specs = sorted(sub_pool_specs, key=lambda spec: _PLACES[spec.grow_direction])
        self.moves = MoveGate(device)
        self.arena = ByteArena(total_bytes, device)
        self.chain = PoolChain(
            self.arena,
            [self._entry_spec(spec) for spec in self.sub_pool_specs],
            fence=self.moves.fence,
            may_move=self.moves.may_move,
        )
        self._specs = {spec.name: spec for spec in self.sub_pool_specs}
        self._entries = {entry.name: entry for entry in self.arena.specs}
        self._views = {
            name: [self._view(name, part) for part in layer_parts(spec)] for name, spec in self._specs.items()
        }

    @property
    def _raw(self) -> torch.Tensor:
        """All bytes, uint8[total_bytes]."""
        assert self.arena.storage is not None, "made with storage"
        return self.arena.storage

    def spec(self, name: str) -> Any:
        """The spec of a pool, as it was passed. Raises `LayoutError` for an unknown pool."""
        if name not in self._specs:
            raise LayoutError(f"pool {name!r} does not exist. Use one of: {', '.join(self._specs)}.")
        return self._specs[name]

    def mha_spec(self, name: str) -> Any:
        """The spec of a pool of keys and values. Raises `LayoutError` for a pool of another kind."""
        return self._require(name, "keys and values", not is_latent(self.spec(name)) and not is_state(self.spec(name)))

    def mla_spec(self, name: str) -> Any:
        """The spec of a pool of latent rows. Raises `LayoutError` for a pool of another kind."""
        return self._require(name, "latent rows", is_latent(self.spec(name)))

    def mamba_spec(self, name: str) -> Any:
        """The spec of a pool of states. Raises `LayoutError` for a pool of another kind."""
        return self._require(name, "states", is_state(self.spec(name)))

    def entry_spec(self, name: str) -> EntrySpec:
        """What the chain keeps for each entry of a pool."""
        return self._entries[chain_name(self.spec(name).name)]

    def max_slots(self, name: str) -> int:
        """Slots on a pool's grid, from byte 0 on."""
        return self.total_bytes // self.entry_spec(name).entry_bytes

    def min_slot_index(self, name: str) -> int:
        """The first slot above the sink."""
        return -(-self.arena.sink_bytes // self.entry_spec(name).entry_bytes)

    def anchor_bytes(self, name: str) -> int:
        """Where a pool's grid starts."""
        self.spec(name)
        return 0

    def mha_views_for(self, name: str) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
        """(keys, values), a tensor a layer: [slots, heads, dim], rows an entry apart. Raises as `mha_spec`."""
        self.mha_spec(name)
        key, value = self._views[name]
        return list(key.unbind()), list(value.unbind())

    def mla_views_for(self, name: str) -> list[torch.Tensor]:
        """Latent rows, a tensor a layer: [slots, 1, `kv_cache_dim`]. Raises as `mla_spec`."""
        self.mla_spec(name)
        return list(self._views[name][0].unbind())

    def mamba_views_for(self, name: str) -> tuple[list[torch.Tensor], torch.Tensor]:
        """(convolution states, temporal states), each [layers, slots, *shape]. Raises as `mamba_spec`."""
        self.mamba_spec(name)
        *convs, temporal = self._views[name]
        return convs, temporal

    def compact_lazily(self, is_lazy: bool, forward_stream: Any) -> None:
        """Move pages when their bytes are wanted, or else at every free, ordered behind what the stream does.

        Raises `LayoutError` when another allocator of the buffer chose otherwise.
        """
        if self._is_lazy not in {None, is_lazy}:
            raise LayoutError(
                f"lazy_compaction={is_lazy} is not what other allocators of the buffer were made with. Pass the same."
            )
        self._is_lazy = is_lazy
        self.chain.eager = not is_lazy
        self.moves.forward_stream = forward_stream

    def compact(self) -> int:
        """Close holes while the engine is idle, with a bounded number of bytes copied: the pages moved."""
        before = self.chain.num_moves
        self.chain.compact(_IDLE_COPY_BYTES)
        return self.chain.num_moves - before

    def _entry_spec(self, spec: Any) -> EntrySpec:
        state = is_state(spec)
        return EntrySpec(
            chain_name(spec.name),
            spec.entry_bytes(),
            page_size=1 if state else self.page_size,
            place=_PLACES[spec.grow_direction],
            zero_on_take=not state,  # kernels multiply masked rows by 0, which leaves a NaN in them a NaN
            align=max(part.dtype.itemsize for part in layer_parts(spec)),
        )

    def _view(self, name: str, part: LayerParts) -> torch.Tensor:
        """One part of all layers at all slots: [layers, slots, *shape]."""
        entry = self.entry_spec(name)
        shape = self._specs[name].layer_num, self.arena.num_pages(entry) * entry.page_size, part.num_bytes
        bytes_of_part = self._raw.as_strided(shape, (part.stride, entry.entry_bytes, 1), part.start)
        return bytes_of_part.view(part.dtype).view(*shape[:2], *part.shape)

    def _require(self, name: str, what: str, holds: bool) -> Any:
        if not holds:
            raise LayoutError(f"pool {name!r} has no {what}. Ask for the tensors that its spec describes.")
        return self.spec(name)
