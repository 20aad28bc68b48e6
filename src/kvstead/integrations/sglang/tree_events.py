"""KV events of a prefix tree: SGLang's own recorder is told what is stored and what goes, page by page."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from kvstead.integrations.sglang.radix_node import TreeNode
from kvstead.prefix import Node


class HashedNode(TreeNode):
    """A `TreeNode` with the hashes of its pages, plain and in its namespace, which the recorder computes and sets."""

    __slots__ = ("_hashes",)

    def __init__(self, view: TreeNode, hashes: dict[tuple[Node, str], list[str]]) -> None:
        super().__init__(view.core, view._page_size, view._device, view._codes)  # noqa: SLF001 - of its own class
        self._hashes = hashes

    @property
    def parent(self) -> HashedNode | None:
        """The node above, with its hashes."""
        above = super().parent
        return None if above is None else HashedNode(above, self._hashes)

    @property
    def hash_value(self) -> list[str] | None:
        """The hash of each page and all before it; None if they are to be computed, none for the root."""
        return [] if self.is_root else self._hashes.get((self.core, "plain"))

    @hash_value.setter
    def hash_value(self, values: list[str] | None) -> None:
        self._hashes[self.core, "plain"] = values or []

    @property
    def event_hash_value(self) -> list[str] | None:
        """The same, of a node in a namespace, with the namespace in front."""
        return self._hashes.get((self.core, "spaced"))

    @event_hash_value.setter
    def event_hash_value(self, values: list[str] | None) -> None:
        self._hashes[self.core, "spaced"] = values or []


class TreeEvents:
    """Watches a tree for `recorder`, a `KVCacheEventRecorder` of SGLang's. root: a view of the tree's root."""

    def __init__(self, recorder: Any, root: TreeNode) -> None:
        self._recorder = recorder
        self._root = root
        self._hashes: dict[tuple[Node, str], list[str]] = {}

    def hung(self, leaf: Node) -> None:
        """Record that its pages are stored."""
        self._recorder.record_store(self._view(leaf))

    def split(self, upper: Node, lower: Node) -> None:
        """Divide the hashes where the node is divided."""
        num_pages = upper.tokens.size // self._root._page_size  # noqa: SLF001 - a view of our own
        for kind in ("plain", "spaced"):
            if (values := self._hashes.get((lower, kind))) is not None:
                self._hashes[upper, kind], self._hashes[lower, kind] = values[:num_pages], values[num_pages:]

    def joined(self, upper: Node, lower: Node) -> None:
        """Put the hashes of both in one list."""
        for kind in ("plain", "spaced"):
            if (values := self._hashes.pop((upper, kind), None)) is not None:
                self._hashes[lower, kind] = values + self._hashes[lower, kind]

    def leaving(self, nodes: Sequence[Node]) -> None:
        """Record that their pages are gone."""
        for node in nodes:
            self._recorder.record_remove(self._view(node))
            for kind in ("plain", "spaced"):
                self._hashes.pop((node, kind), None)

    def _view(self, node: Node) -> HashedNode:
        return HashedNode(self._root._view(node), self._hashes)  # noqa: SLF001 - a view of our own
