"""Nodes of a prefix tree as SGLang's callers see them."""

from __future__ import annotations

from array import array
from typing import Any

import torch

from kvstead.integrations.sglang.attribute_of import AttributeOf
from kvstead.integrations.sglang.radix_key import RadixKey
from kvstead.integrations.sglang.token_codes import TokenCodes
from kvstead.integrations.sglang.tree_pools import slots_of
from kvstead.kernels.arrays import to_device
from kvstead.prefix import Namespace, Node


def namespace_of(extra_key: str | None, cache_salt: str | None) -> Namespace:
    """The tree's namespace for an adapter and a tenant."""
    return Namespace(lora=extra_key or "", salt=cache_salt or "")


class TreeNode:
    """A view of a node, `core`: it keeps nothing of its own, and two views of one node are equal.

    Content is not hashed and there is no host tier, so the attributes for these are always empty.
    """

    __slots__ = ("_codes", "_device", "_page_size", "core")

    hash_value = None
    event_hash_value = None
    host_value = None
    host_ref_counter = 0
    backuped = False

    hit_count = AttributeOf[int]("core.hits")  # matches that used it
    priority = AttributeOf[int]("core.priority")  # the highest of its insertions
    last_access_time = AttributeOf[int]("core.access")  # on the tree's own clock, which ticks once an operation
    creation_time = AttributeOf[int]("core.created")  # on the same clock

    def __init__(self, core: Node, page_size: int, device: torch.device, codes: TokenCodes) -> None:
        self.core = core
        self._codes = codes
        self._page_size = page_size
        self._device = device

    def __eq__(self, other: object) -> bool:
        return isinstance(other, TreeNode) and other.core is self.core

    def __hash__(self) -> int:
        return hash(self.core)

    def __repr__(self) -> str:
        return repr(self.core)

    @property
    def id(self) -> int:
        """A number that is unique as long as the node is in the tree."""
        return id(self.core)

    @property
    def is_root(self) -> bool:
        """Whether it is the root, which has no tokens."""
        return self.core.end == 0

    @property
    def evicted(self) -> bool:
        """Whether it has left the tree."""
        return self.core.parent is None and not self.is_root

    @property
    def parent(self) -> TreeNode | None:
        """The node above; None for the root and for a node that has left the tree."""
        return None if self.core.parent is None else self._view(self.core.parent)

    @property
    def children(self) -> dict[Any, TreeNode]:
        """The nodes below, by their `child_key`; a new dict."""
        views = [self._view(child) for child in self.core.children.values()]
        return {view.key.child_key(self._page_size): view for view in views}

    @property
    def key(self) -> RadixKey:
        """The node's own tokens, in their namespace while it is in the tree."""
        top, above = self.core, self.core.parent
        while above is not None and above.parent is not None:
            top, above = above, above.parent
        space = top.key[0] if isinstance(top.key, tuple) else Namespace()
        return RadixKey(array("q", self._codes.decode(self.core.tokens).tolist()), space.lora, cache_salt=space.salt)

    @property
    def value(self) -> torch.Tensor | None:
        """The node's own slots, int64, a copy; None for a node that has left the tree."""
        if self.evicted:
            return None
        return to_device(slots_of(self.core.pages, self._page_size), self._device)

    @property
    def lock_ref(self) -> int:
        """Locks of this node and of those below; the root always has one."""
        return 1 if self.is_root else self.core.locks

    def _view(self, core: Node) -> TreeNode:
        return TreeNode(core, self._page_size, self._device, self._codes)
