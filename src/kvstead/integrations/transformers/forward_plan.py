"""The plan of one forward pass: the slots that it writes and reads, and the groups that attend together.

The plan is made before the pass, with physical slots as they are then, and is passed to the model as a keyword.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch

from kvstead.engine import KVCacheManager
from kvstead.integrations.transformers.attention_groups import Group, Jobs, group
from kvstead.kernels.arrays import to_device
from kvstead.model import BOUNDED, Window
from kvstead.pools import ArenaKVPool, KVPool

PLAN_KEYWORD = "kvstead_plan"
"""The keyword by which a model's forward pass hands its plan to the attention function."""


@dataclass(frozen=True, slots=True)
class SidePlan:
    """The plan of one side: the layers that keep whole sequences, or those with a window.

    pool: the tensors of their entries. new: int64[tokens], the slots of the packed tokens. read: int64[entries], the
    slots that the groups read.
    """

    pool: KVPool | ArenaKVPool
    new: torch.Tensor
    read: torch.Tensor
    groups: list[Group]
    _by_head: dict[tuple[int, int], torch.Tensor] = field(default_factory=dict)

    def gather(self, tensor: torch.Tensor) -> torch.Tensor:
        """The entries that the groups read of one of the pool's tensors, [slots, heads, dim]: [heads, entries, dim].

        A copy, with each head's entries contiguous where possible: attention then reads them twice as fast.
        """
        num_slots, heads, dim = tensor.shape
        step, rest = divmod(tensor.stride(0), dim)
        if heads == 1 or rest:
            return tensor.index_select(0, self.read).transpose(0, 1)
        if (heads, step) not in self._by_head:
            head = torch.arange(heads, device=self.read.device)
            self._by_head[heads, step] = (self.read * step + head[:, None]).flatten()
        rows = tensor.as_strided(((num_slots - 1) * step + heads, dim), (dim, 1))
        return rows.index_select(0, self._by_head[heads, step]).view(heads, -1, dim)


@dataclass(slots=True)
class Plan:
    """One forward pass over `jobs`.

    full, window: the plan of each side, None where the model lacks it. states: int64[jobs], the slots of their
    recurrent states, None where the model has none. sides: the side of each layer.
    """

    jobs: Jobs
    full: SidePlan | None
    window: SidePlan | None
    states: torch.Tensor | None
    sides: list[SidePlan | None] = field(default_factory=list)

    def side(self, layer: int | None) -> SidePlan:
        """The side that a layer attends to; where the model has one side only, that one."""
        side = self.full or self.window
        if self.full and self.window:
            assert layer is not None, "a module of a model with two sides knows its layer"
            side = self.sides[layer]
        assert side is not None, "a layer that attends has entries"
        return side


def plan_forward(manager: KVCacheManager, jobs: Jobs) -> Plan:
    """Plan a pass over rows as they are now. The slots are valid until pages are taken, which may move others."""
    layout = manager.layout
    full = None if manager.pool is None else _plan_side(manager, jobs, None)
    window = None if manager.window_pool is None else _plan_side(manager, jobs, layout.window_rule)
    states = None if manager.state_pool is None else manager.state_slots(jobs.rows)
    kinds = [layer.tokens.kind if layer.tokens else layer.shared_kind for layer in layout.layers]
    sides = [window if kind in BOUNDED else full for kind in kinds]
    return Plan(jobs, full, window, states, sides)


def _plan_side(manager: KVCacheManager, jobs: Jobs, window: Window | None) -> SidePlan:
    pool = manager.pool if window is None else manager.window_pool
    assert pool is not None, "the side has tensors"
    find = manager.physical_slots if window is None else manager.window_slots
    slots, device = manager.table.slots, manager.allocator.device
    groups, rows, positions = group(jobs, window, device)
    new = slots[jobs.rows.repeat(jobs.num_new), jobs.positions()]
    return SidePlan(pool, find(to_device(new, device)), find(to_device(slots[rows, positions], device)), groups)
