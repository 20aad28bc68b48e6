"""How nodes are linked, independent of what they hold.

    hang      parent                           parent -- [A B]
    split     parent -- [A B C D] -- ...       parent -- [A B] -- [C D] -- ...
    join      parent -- [A B] -- [C D] -- ...  parent -- [A B C D] -- ...

What was below a node stays below the same node: of two parts the lower one is the node that was, or that stays.
"""

from __future__ import annotations

from typing import NoReturn

import numpy as np

from kvstead.errors import LockUnderflow, UseAfterFree
from kvstead.kernels.array_types import IntArray
from kvstead.kernels.tokens import TokenArray, common_prefix
from kvstead.prefix.node import ChildKey, Namespace, Node

NO_TOKENS: TokenArray = np.empty(0, dtype=np.int32)
NO_PAGES: IntArray = np.empty(0, dtype=np.int64)


def walk(root: Node, key: TokenArray, namespace: Namespace, page_size: int) -> tuple[list[Node], int]:
    """Follow `key` as far as it is cached: the nodes from the root on, and the number of tokens, whole pages.

    The last node may reach further than `key` goes with it.
    """
    node, end = root, 0
    path = [node]
    while end < key.size:
        page = key[end : end + page_size].tobytes()
        child = node.children.get(page if end else (namespace, page))
        if child is None:
            break
        path.append(child)
        num_common = common_prefix(key, end, child.tokens)
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


def refuse_unlock(node: Node) -> NoReturn:
    """Raise the error for unlocking or loosening a node that has no lock of its own."""
    raise LockUnderflow(f"{node} is not locked. Unlock the node that was locked, once for each lock.")


def hang(parent: Node, tokens: TokenArray, pages: IntArray, namespace: Namespace, now: int, priority: int) -> Node:
    """A new node below `parent`, with copies of its tokens and pages."""
    page = tokens[: tokens.size // pages.size].tobytes()
    key: ChildKey = page if parent.parent is not None else (namespace, page)
    leaf = Node(parent, key, tokens.copy(), pages.copy(), now, priority)
    parent.children[key] = leaf
    return leaf


def split(lower: Node, num_tokens: int, page_size: int) -> Node:
    """Put the leading `num_tokens` of `lower` into a node above it, which has no pages yet, and return that."""
    parent = lower.parent
    assert parent is not None, "the root has no tokens to split"
    upper = Node(parent, lower.key, lower.tokens[:num_tokens].copy(), NO_PAGES, lower.created, lower.priority)
    upper.access, upper.hits = lower.access, lower.hits
    lower.tokens = lower.tokens[num_tokens:].copy()
    parent.children[upper.key] = upper
    lower.parent = upper
    lower.key = lower.tokens[:page_size].tobytes()
    upper.children[lower.key] = lower
    return upper


def join(upper: Node, lower: Node) -> None:
    """Let `lower`, the only child of `upper`, take over the tokens and the place of `upper`."""
    parent = upper.parent
    assert parent is not None, "the root has no tokens to give away"
    lower.tokens = np.concatenate((upper.tokens, lower.tokens))
    lower.access, lower.hits = upper.access, max(upper.hits, lower.hits)
    lower.priority = max(upper.priority, lower.priority)
    lower.key, lower.parent, upper.parent = upper.key, parent, None
    parent.children[upper.key] = lower


def use(node: Node, now: int, num_hits: int, priority: int) -> None:
    """Note a use of the path down to `node`. A parent's priority is at least its children's."""
    while node.parent is not None:
        node.access = now
        node.hits += num_hits
        node.priority = max(node.priority, priority)
        node = node.parent


def take_out(node: Node) -> None:
    """Cut a node off its parent, which also marks it as gone."""
    parent = node.parent
    assert parent is not None, "the root stays"
    del parent.children[node.key]
    node.parent = None
