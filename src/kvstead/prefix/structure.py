"""Changes of the tree's shape, with every component following: nodes are hung, split, joined and taken out.

    hang      parent                           parent -- [A B]
    split     parent -- [A B C D] -- ...       parent -- [A B] -- [C D] -- ...
    join      parent -- [A B] -- [C D] -- ...  parent -- [A B C D] -- ...

What was below a node stays below the same node: of two parts the lower one is the node that was, or that stays.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Protocol

import numpy as np

from kvstead.errors import UseAfterFree
from kvstead.kernels.array_types import IntArray
from kvstead.kernels.tokens import TokenArray, common_prefix
from kvstead.prefix.component import NO_PAGES, Component, fail
from kvstead.prefix.node import Node
from kvstead.prefix.token_keys import PLAIN, ChildKey, KeySpans, Namespace, child_key, first_difference, spans_between


def walk(root: Node, key: TokenArray, namespace: Namespace, keys: KeySpans, page_size: int) -> tuple[list[Node], int]:
    """Follow `key`, with `keys` over its tokens: the nodes from the root on, and the tokens cached, in whole pages.

    The last node may reach further than `key` goes with it.
    """
    node, end = root, 0
    path = [node]
    while end < key.size:
        first = key[end : end + page_size]
        page = first.tobytes()
        name: ChildKey = page if end else (namespace, page)  # without a call: this is the hot path
        child = node.children.get(child_key(first, end, namespace, keys) if keys else name)
        if child is None:
            break
        path.append(child)
        num_common = common_prefix(key, end, child.tokens)
        if keys or child.keys:
            num_common = first_difference(keys, child.keys, end, end + num_common) - end
        if num_common < child.tokens.size:
            return path, end + num_common - num_common % page_size
        node, end = child, child.end
    return path, end


def path_up(node: Node, root: Node) -> list[Node]:
    """The nodes from `node` up to the root. Raises `UseAfterFree` when they do not lead there."""
    path = [node]
    while (parent := path[-1].parent) is not None:
        path.append(parent)
    if path[-1] is not root:
        raise UseAfterFree(f"{node} is not in this tree (any more). Lock a match before anything is evicted.")
    return path


class Watcher(Protocol):
    """Is told of every change of a tree's nodes, which is whole by then, but for nodes that are about to leave."""

    def hung(self, leaf: Node) -> None:
        """A new leaf hangs in the tree."""

    def split(self, upper: Node, lower: Node) -> None:
        """`upper` has taken the leading tokens of `lower` and hangs above it."""

    def joined(self, upper: Node, lower: Node) -> None:
        """`lower` has taken the tokens of `upper`, which is gone."""

    def leaving(self, nodes: Sequence[Node]) -> None:
        """Nodes are about to leave the tree; what they held is free already."""


class TreeStructure:
    """The shape of one tree. components: the tree's list, which may still grow."""

    def __init__(self, page_size: int, components: list[Component]) -> None:
        self._page_size = page_size
        self._components = components
        self.watchers: list[Watcher] = []

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

    def cut_at(self, node: Node, position: int) -> list[Node]:
        """Let a node begin at `position`, on the path down to `node`; returns the nodes from there on, upwards."""
        path = node.behind(position)
        if path and path[-1].start < position:
            self.split(path[-1], position - path[-1].start)
        return path

    def cut_out(self, node: Node, start: int, end: int) -> Node:
        """The tokens from `start` to `end` of `node` as a node of their own."""
        if node.end > end:
            node = self.split(node, end - node.start)
        if node.start < start:
            self.split(node, start - node.start)
        return node

    def hang(
        self,
        parent: Node,
        tokens: TokenArray,
        pages: IntArray,
        namespace: Namespace,
        keys: KeySpans,
        now: int,
        priority: int,
    ) -> Node:
        """Add copies of new tokens and pages below `parent`, in as many nodes as components want; returns the last."""
        cuts = sorted({cut for component in self._components for cut in component.cuts(pages)})
        for start, end in pairwise((0, *cuts, pages.size)):
            stretch = tokens[start * self._page_size : end * self._page_size].copy()
            key = child_key(stretch[: self._page_size], parent.end, namespace, keys)
            leaf = Node(parent, key, stretch, pages[start:end].copy(), now, priority)
            if keys:
                leaf.keys = spans_between(keys, leaf.start, leaf.end)
            parent.children[key] = leaf
            for component in self._components:
                component.adopt(leaf)
            for watcher in self.watchers:
                watcher.hung(leaf)
            parent = leaf
        return parent

    def split(self, lower: Node, num_tokens: int) -> Node:
        """Put the leading `num_tokens` of `lower` into a node of their own above it; `lower` keeps its identity."""
        parent = lower.parent
        assert parent is not None, "the root has no tokens to split"
        upper = Node(parent, lower.key, lower.tokens[:num_tokens].copy(), NO_PAGES, lower.created, lower.priority)
        upper.access, upper.hits = lower.access, lower.hits
        lower.tokens = lower.tokens[num_tokens:].copy()
        parent.children[upper.key] = upper
        lower.parent, lower.start = upper, upper.end
        if lower.keys:
            upper.keys = spans_between(lower.keys, upper.start, upper.end)
            lower.keys = spans_between(lower.keys, lower.start, lower.end)
        lower.key = child_key(lower.tokens[: self._page_size], lower.start, PLAIN, lower.keys)
        upper.children[lower.key] = lower
        for component in self._components:
            component.split(upper, lower)
        for watcher in self.watchers:
            watcher.split(upper, lower)
        return upper

    def join(self, upper: Node) -> None:
        """Take `upper` into its only child, if nothing needs the boundary between them."""
        parent = upper.parent
        if parent is None or len(upper.children) != 1:
            return
        (lower,) = upper.children.values()
        for component in self._components:
            if not component.is_joinable(upper, lower):
                return
        lower.tokens = np.concatenate((upper.tokens, lower.tokens))
        if upper.keys:
            lower.keys = {**upper.keys, **lower.keys}
        lower.access, lower.hits = upper.access, max(upper.hits, lower.hits)
        lower.priority = max(upper.priority, lower.priority)
        lower.key, lower.start, lower.parent, upper.parent = upper.key, upper.start, parent, None
        parent.children[upper.key] = lower
        for component in self._components:
            component.join(upper, lower)
        for watcher in self.watchers:
            watcher.joined(upper, lower)

    def use(self, node: Node, now: int, num_hits: int, priority: int) -> None:
        """Note that the path down to `node` is used now, and tell every component."""
        self.touch(node, now, num_hits, priority)
        for component in self._components:
            component.use(node, num_hits)

    def touch(self, node: Node, now: int, num_hits: int, priority: int) -> None:
        """Note that the path down to `node` is used now. A parent's priority is at least its children's."""
        at = node
        while at.parent is not None:
            at.access = now
            at.hits += num_hits
            at.priority = max(at.priority, priority)
            at = at.parent

    def remove(self, nodes: Sequence[Node]) -> None:
        """Take nodes out of the tree, which clears `parent`, and free what they held; raises before any change."""
        for component in self._components:
            component.release(nodes)
        for watcher in self.watchers:
            watcher.leaving(nodes)
        for node in nodes:
            assert node.parent is not None, "the root stays"
            del node.parent.children[node.key]
            node.parent = None


def audit_structure(root: Node, page_size: int) -> None:
    """Check keys, lengths, links, pins, times and priorities of all nodes below `root`.

    Raises `AuditError` for the first fault. O(nodes).
    """
    for parent in (root, *root.below()):
        for key, child in parent.children.items():
            for fault in _faults(parent, key, child, page_size):
                fail(f"{child} {fault}")


def _faults(parent: Node, key: ChildKey, child: Node, page_size: int) -> Iterator[str]:
    """What is wrong with one link of the tree."""
    if child.parent is not parent:
        yield f"hangs below {parent} but names {child.parent} as its parent"
    if child.tokens.dtype != np.int32 or child.tokens.size == 0 or child.tokens.size % page_size:
        yield f"has {child.tokens.size} tokens of {child.tokens.dtype}, which are no whole pages of {page_size}"
    if child.start != parent.end or child.end != parent.end + child.tokens.size:
        yield f"ends at {child.end}, but its parent at {parent.end}"
    if child.keys != spans_between(child.keys, child.start, child.end):
        yield f"has keys {child.keys} that are not over its own tokens"
    space = key[0] if isinstance(key, tuple) else PLAIN
    if key != child.key or key != child_key(child.tokens[:page_size], child.start, space, child.keys):
        yield "does not hang under its first page, with its namespace and keys"
    if child.pins < 0:
        yield f"has {child.pins} pins"
    if parent.parent is not None and child.access > parent.access:
        yield f"was used at {child.access}, its parent at {parent.access}"
    if parent.parent is not None and child.priority > parent.priority:
        yield f"has priority {child.priority}, its parent {parent.priority}"
