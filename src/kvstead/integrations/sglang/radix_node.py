"""Nodes of a prefix tree and their keys, as SGLang's callers see them."""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any, TypeAlias

import numpy as np
import torch

from kvstead.integrations.sglang.attribute_of import AttributeOf
from kvstead.integrations.sglang.token_codes import TokenCodes
from kvstead.integrations.sglang.tree_pools import slots_of
from kvstead.kernels.arrays import to_device
from kvstead.prefix import Namespace, Node

# A key's units: tokens, or pairs of neighbouring tokens.
Unit: TypeAlias = int | tuple[int, int]


class RadixKey:
    """Token ids in a namespace of `extra_key` (adapter) and `cache_salt` (tenant); an empty one is none.

    token_ids: any sequence of ints, kept as it is. is_bigram: the units are the pairs of neighbouring tokens, one fewer
    than tokens. limit: take only so many leading tokens. Lengths, slices and offsets count units.
    """

    __slots__ = ("cache_salt", "extra_key", "is_bigram", "limit", "token_ids")

    def __init__(
        self,
        token_ids: Sequence[int],
        extra_key: str | None = None,
        is_bigram: bool = False,
        limit: int | None = None,
        cache_salt: str | None = None,
    ) -> None:
        self.token_ids = token_ids
        self.extra_key = extra_key or None
        self.cache_salt = cache_salt or None
        self.is_bigram = is_bigram
        self.limit = limit

    def raw_token_ids(self) -> Sequence[int]:
        """The tokens, `limit` of them at most; a copy only then."""
        if self.limit is None or self.limit >= len(self.token_ids):
            return self.token_ids
        return self.token_ids[: self.limit]

    def __len__(self) -> int:
        """The number of units."""
        num_tokens = len(self.raw_token_ids())
        return max(0, num_tokens - 1) if self.is_bigram else num_tokens

    def __iter__(self) -> Iterator[Unit]:
        tokens = self.raw_token_ids()
        return pairwise(tokens) if self.is_bigram else iter(tokens)

    def __getitem__(self, at: int | slice) -> RadixKey:
        """One unit, or a range of units, as a new key. Raises `IndexError`, or `ValueError` for a step."""
        if isinstance(at, int):
            start = at + len(self) if at < 0 else at
            if not 0 <= start < len(self):
                raise IndexError(f"index {at} is outside the key of {len(self)} units")
            at = slice(start, start + 1)
        start, stop, step = at.indices(len(self))
        if step != 1:
            raise ValueError(f"step {step} is not 1. Keys are cut in consecutive units.")
        end = stop + 1 if self.is_bigram and stop > start else stop
        return RadixKey(self.token_ids[start:end], self.extra_key, self.is_bigram, cache_salt=self.cache_salt)

    def __repr__(self) -> str:
        """The first tokens and the namespace."""
        dots = "..." if len(self.token_ids) > 10 else ""  # noqa: PLR2004 - as many as are shown
        return (
            f"RadixKey({list(self.token_ids[:10])}{dots}, extra_key={self.extra_key!r}, "
            f"cache_salt={self.cache_salt!r}, is_bigram={self.is_bigram})"
        )

    def page_aligned(self, page_size: int) -> RadixKey:
        """The key without its last partial page."""
        return self if page_size == 1 else self[: len(self) // page_size * page_size]

    def maybe_to_bigram_view(
        self, is_eagle: bool, value: torch.Tensor | None = None
    ) -> tuple[RadixKey, torch.Tensor | None]:
        """Let the units be pairs from now on, if `is_eagle`; `value` loses its last slot with it."""
        if is_eagle and not self.is_bigram:
            self.is_bigram = True
            value = None if value is None else value[: len(self)]
        return self, value

    def match(self, other: RadixKey, page_size: int = 1) -> int:
        """Leading units in common, in whole pages. Raises `ValueError` for keys of different namespaces or units."""
        return self.match_at(other, 0, page_size)

    def match_at(self, other: RadixKey, offset: int, page_size: int = 1) -> int:
        """As `match`, with `other` from unit `offset` on. Raises `IndexError` for an offset outside it."""
        for field in ("extra_key", "cache_salt", "is_bigram"):
            if getattr(self, field) != getattr(other, field):
                raise ValueError(
                    f"keys with {field} {getattr(self, field)!r} and {getattr(other, field)!r} share no prefix. "
                    "Compare keys of one namespace."
                )
        if not 0 <= offset <= len(other):
            raise IndexError(f"offset {offset} is outside the key of {len(other)} units")
        mine, theirs = np.asarray(self.raw_token_ids()), np.asarray(other.raw_token_ids())[offset:]
        length = min(mine.size, theirs.size)
        differing = np.flatnonzero(mine[:length] != theirs[:length])
        num_common = int(differing[0]) if differing.size else length
        if self.is_bigram:
            num_common = max(0, num_common - 1)
        return num_common - num_common % page_size

    def child_key(self, page_size: int = 1) -> Any:
        """A hashable name of the first page and its namespace. Raises `IndexError` for a key without a page."""
        return self.child_key_at(0, page_size)

    def child_key_at(self, offset: int, page_size: int = 1) -> Any:
        """`child_key` of the page that begins at unit `offset`. Raises `IndexError` when the key ends within it."""
        if offset < 0 or offset + page_size > len(self):
            raise IndexError(f"a key of {len(self)} units has no page of {page_size} at {offset}")
        units = tuple(self[offset : offset + page_size])
        plain = units[0] if page_size == 1 else units
        if self.cache_salt is not None:
            return (self.extra_key, self.cache_salt), plain
        return plain if self.extra_key is None else (self.extra_key, plain)


class TreeNode:
    """A view of a node, `core`: it keeps nothing of its own, and two views of one node are equal.

    Content is not hashed and there is no host tier, so the attributes for these are always empty.
    """

    __slots__ = ("_codes", "_device", "_page_size", "core")

    hash_value: list[str] | None = None
    event_hash_value: list[str] | None = None
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
