"""The pools of a manager as the cache of one forward pass.

A `PooledCache` lasts for one pass. An attention layer writes its new entries to the plan's slots and returns the
entries that the plan's groups read. A layer with a state works on copies of the pool's rows, because kernels change
states in place, and writes them back after the pass.
"""

from __future__ import annotations

from typing import Any, NoReturn

import torch
from transformers.cache_utils import Cache, CacheLayerMixin, DummyLayer, LinearAttentionLayer

from kvstead.engine import KVCacheManager
from kvstead.errors import LayoutError
from kvstead.integrations.transformers.forward_plan import Plan
from kvstead.model import LayerCache


class TokenLayer(CacheLayerMixin):
    """The entries of one attention layer: in the pool's tensors of layer `index`, by the plan of its side."""

    is_sliding = False

    def __init__(self, plan: Plan, index: int) -> None:
        CacheLayerMixin.__init__(self)
        self.is_initialized = True
        self.index = index
        self.plan = plan

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *_: Any, **__: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Store new entries, [batch, heads, new, dim]; returns those that the groups read, [1, heads, entries, dim].

        A latent layer passes its latent as the key and its rope part as the value. Raises `InvalidSize` for entries of
        another shape than the pool's.
        """
        side = self.plan.sides[self.index]
        assert side is not None, "a layer that attends has a side"
        keys, values = side.pool.key[self.index], side.pool.value[self.index]
        assert keys is not None, "a layer that attends has entries"
        new_key, new_value = _token_major(key_states), _token_major(value_states)
        if values is None:
            side.pool.write(self.index, side.new, torch.cat((new_key, new_value), -1))
            key, value = torch.split(side.gather(keys), [new_key.shape[-1], new_value.shape[-1]], -1)
        else:
            side.pool.write(self.index, side.new, new_key, new_value)
            key, value = side.gather(keys), side.gather(values)
        return key.to(key_states.dtype)[None], value.to(value_states.dtype)[None]

    def lazy_initialization(self, *_: Any, **__: Any) -> NoReturn:
        """Raises `LayoutError`: the model would keep more than its layout says, and nothing is allocated here."""
        raise LayoutError(
            f"layer {self.index} of the model keeps more than its layout says. Make the layout by `model_layout`."
        )

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """The sizes for an empty cache, as no mask is built."""
        return query_length, 0

    def get_seq_length(self) -> int:
        """Tokens before the pass if it has one request, else 0: several requests pass their positions."""
        starts = self.plan.jobs.starts
        return int(starts[0]) if starts.size == 1 else 0

    def get_max_length(self) -> int:
        """The cache has no bound of its own: -1."""
        return -1


class StateLayer(LinearAttentionLayer):
    """The recurrent states of a layer, as copies for one pass; `commit` writes them back.

    Convolution histories that the layout keeps in several tensors are one tensor here.
    """

    def __init__(self, plan: Plan, index: int, parts: dict[str, torch.Tensor]) -> None:
        LinearAttentionLayer.__init__(self)
        assert plan.states is not None, "a model with a state has slots for it"
        self.index = index
        self._slots = plan.states
        self._convs = [part for name, part in parts.items() if name.startswith("conv")]
        self._recurrent = parts.get("recurrent")
        self.has_previous_state[0] = bool(plan.jobs.starts[0])
        if self._convs:
            self._history = torch.cat([part.index_select(0, self._slots) for part in self._convs], 1)
            self.conv_states[0], self.conv_kernel_size[0] = self._history, self._history.shape[-1]
            self.is_conv_states_initialized[0] = True
        if self._recurrent is not None:
            self._state = self._recurrent.index_select(0, self._slots)
            self.recurrent_states[0] = self._state
            self.is_recurrent_states_initialized[0] = True

    lazy_initialization = TokenLayer.lazy_initialization

    def commit(self) -> None:
        """Write the states of the pass back into the pool."""
        if self._convs:
            assert self.conv_states[0] is self._history, "histories are changed in place"
            histories = torch.split(self._history, [part.shape[1] for part in self._convs], 1)
            for part, history in zip(self._convs, histories, strict=True):
                part.index_copy_(0, self._slots, history)
        if self._recurrent is not None:
            assert self.recurrent_states[0] is self._state, "states are changed in place"
            self._recurrent.index_copy_(0, self._slots, self._state)


class HybridLayer(StateLayer, TokenLayer):
    """A layer with both entries per token and a state."""

    is_compileable = False
    is_croppable = False

    def __init__(self, plan: Plan, index: int, parts: dict[str, torch.Tensor]) -> None:
        TokenLayer.__init__(self, plan, index)
        StateLayer.__init__(self, plan, index, parts)

    get_max_length = TokenLayer.get_max_length


class PooledCache(Cache):
    """The cache argument of one forward pass by one plan."""

    def __init__(self, manager: KVCacheManager, plan: Plan) -> None:
        super().__init__(layers=[_layer(manager, plan, layer) for layer in manager.layout.layers])
        self._states = [layer for layer in self.layers if isinstance(layer, StateLayer)]

    def commit(self) -> None:
        """Write the states of the pass back into the pool. Call it after the pass."""
        for layer in self._states:
            layer.commit()


def _layer(manager: KVCacheManager, plan: Plan, layer: LayerCache) -> TokenLayer | StateLayer | DummyLayer:
    parts = manager.state_pool.parts[layer.index] if manager.state_pool else {}
    if parts:
        kind = StateLayer if layer.tokens is None else HybridLayer
        return kind(plan, layer.index, parts)
    return DummyLayer() if layer.tokens is None else TokenLayer(plan, layer.index)


def _token_major(states: torch.Tensor) -> torch.Tensor:
    """[batch, heads, new, dim] as [tokens, heads, dim]."""
    return states.transpose(1, 2).flatten(0, 1)
