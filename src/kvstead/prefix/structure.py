"""Changes of the tree's shape, with every component following: nodes are hung, split, joined and taken out."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from kvstead.kernels.array_types import IntArray
from kvstead.kernels.tokens import TokenArray
from kvstead.prefix import links
from kvstead.prefix.component import Component
from kvstead.prefix.node import Namespace, Node


class TreeStructure:
    """The shape of one tree. components: the tree's list, which may still grow."""

    def __init__(self, page_size: int, components: list[Component]) -> None:
        self._page_size = page_size
        self._components = components

    def usable(self, path: Sequence[Node], length: int) -> int:
        """The longest prefix, of `length` tokens at most, that satisfies every component."""
        while True:
            shorter = min([component.usable(path, length) for component in self._components])
            if shorter == length:
                return length
            length = shorter

    def node_at(self, node: Node, length: int) -> Node:
        """The node that ends after `length` tokens on the path down to `node`, split off if need be."""
        while node.start >= length and node.parent is not None:
            node = node.parent
        return node if node.end == length else self.split(node, length - node.start)

    def cut_at(self, node: Node, position: int) -> None:
        """Let a node begin at `position`, on the path down to `node`."""
        while node.start > position:
            assert node.parent is not None, "the root starts at 0"
            node = node.parent
        if node.start < position < node.end:
            self.split(node, position - node.start)

    def cut_out(self, node: Node, start: int, end: int) -> Node:
        """The tokens from `start` to `end` of `node` as a node of their own."""
        if node.end > end:
            node = self.split(node, end - node.start)
        if node.start < start:
            self.split(node, start - node.start)
        return node

    def split(self, lower: Node, num_tokens: int) -> Node:
        """Put the leading `num_tokens` of `lower` into a node of their own above it; `lower` keeps its identity."""
        upper = links.split(lower, num_tokens, self._page_size)
        for component in self._components:
            component.split(upper, lower)
        return upper

    def join(self, upper: Node) -> None:
        """Take `upper` into its only child, if nothing needs the boundary between them."""
        if upper.parent is None or len(upper.children) != 1:
            return
        (lower,) = upper.children.values()
        for component in self._components:
            if not component.is_joinable(upper, lower):
                return
        links.join(upper, lower)
        for component in self._components:
            component.join(upper, lower)

    def hang(
        self, parent: Node, tokens: TokenArray, pages: IntArray, namespace: Namespace, now: int, priority: int
    ) -> Node:
        """Add new tokens below `parent`, in as many nodes as the components want; returns the last one."""
        cuts = sorted({cut for component in self._components for cut in component.cuts(pages)})
        for start, end in pairwise((0, *cuts, pages.size)):
            stretch = tokens[start * self._page_size : end * self._page_size]
            parent = links.hang(parent, stretch, pages[start:end], namespace, now, priority)
            for component in self._components:
                component.adopt(parent)
        return parent

    def use(self, node: Node, now: int, num_hits: int, priority: int) -> None:
        """Note that the path down to `node` is used now."""
        links.use(node, now, num_hits, priority)
        for component in self._components:
            component.use(node, num_hits)

    def remove(self, nodes: Sequence[Node]) -> None:
        """Take nodes out of the tree and free what they held. Raises before anything has changed."""
        for component in self._components:
            component.release(nodes)
        for node in nodes:
            links.take_out(node)
