"""The nodes of the tree and what its operations return."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TypeAlias, cast

import numpy as np
from numpy.typing import NDArray

from kvstead.errors import RequestError
from kvstead.kernels.array_types import IntArray
from kvstead.kernels.tokens import TokenArray, narrow
from kvstead.prefix.token_keys import NO_KEYS, ChildKey, KeySpans

# Token ids that callers pass: int32[n] or int64[n] on the host.
Tokens: TypeAlias = NDArray[np.int32] | NDArray[np.int64]

_TOKEN_DTYPES = (np.dtype(np.int32), np.dtype(np.int64))


class Usage:
    """When and how often something cached was used.

    access, created: readings of the tree's clock. hits: matches that used it. priority: the highest that it was used
    with.
    """

    __slots__ = ("access", "created", "hits", "priority")

    def __init__(self, now: int, priority: int) -> None:
        self.access = now
        self.created = now
        self.hits = 0
        self.priority = priority


class WindowPart(Usage):
    """What a node has on the window side: slots for all its tokens, or none (a tombstone).

    locks: locks that need these slots, of this node and of nodes below. starts: for the locks of this very node, the
    token at which the part that a lock needs begins, with the number of such locks. was_needed: whether a sequence
    ended near enough that it needs these slots to continue. Its usage is only that by such sequences.
    """

    __slots__ = ("is_live", "locks", "starts", "was_needed")

    def __init__(self, now: int, priority: int, *, is_live: bool) -> None:
        super().__init__(now, priority)
        self.is_live = is_live
        self.was_needed = False
        self.locks = 0
        self.starts: dict[int, int] = {}

    def copy(self) -> WindowPart:
        """A copy for the other half of a node that is split; its locks are of nodes below."""
        twin = WindowPart(self.created, self.priority, is_live=self.is_live)
        twin.was_needed, twin.locks = self.was_needed, self.locks
        twin.access, twin.hits = self.access, self.hits
        return twin


_NO_WINDOW = WindowPart(0, 0, is_live=False)  # of every node of a tree without window layers


class StatePart(Usage):
    """The state of the sequence that ends where a node ends.

    slot: where it lies in the pool of states. holds: copies of it that are under way. num_next: the states below it
    with no other in between. is_followed: whether one below is about to come. has_branched: whether a request continued
    from here when there was one or was to come. Its usage is only that by requests that continue from here.
    """

    __slots__ = ("has_branched", "holds", "is_followed", "num_next", "slot")

    def __init__(self, slot: int, now: int, priority: int) -> None:
        super().__init__(now, priority)
        self.slot = slot
        self.holds = 0
        self.num_next = 0
        self.is_followed = False
        self.has_branched = False

    @property
    def is_superseded(self) -> bool:
        """Whether one longer sequence goes on from here, as the next turn of a chat does, and no other has."""
        return max(self.num_next, self.is_followed) == 1 and not self.has_branched


class Node(Usage):
    """A stretch of tokens, whole pages, that every sequence below it has in common.

    tokens: int32[n], the ids from `start` to `end`, which count tokens from the root. keys: those that lie over them.
    pins: locks that were taken at this very node.

    Then what the components keep here; full attention: `pages` int64[n / page_size], one id for every page of slots,
    and `locks`, the pins and held states at this node and everywhere below; window layers: `window`; layers with a
    state: `state`, or None, and without one `num_next`, as a state has it.

    `parent` is None for the root and for a node that has left the tree. mark: what the owner of the tree notes of the
    node's end, 0 at first; a node that is split keeps it at its end.
    """

    __slots__ = (
        "children",
        "end",
        "key",
        "keys",
        "locks",
        "mark",
        "num_next",
        "pages",
        "parent",
        "pins",
        "start",
        "state",
        "tokens",
        "window",
    )

    def __init__(
        self, parent: Node | None, key: ChildKey, tokens: TokenArray, pages: IntArray, now: int, priority: int
    ) -> None:
        super().__init__(now, priority)
        self.parent = parent
        self.key = key
        self.keys: KeySpans = NO_KEYS
        self.tokens = tokens
        self.pages = pages
        self.start: int = 0 if parent is None else parent.end
        self.end: int = self.start + tokens.size
        self.children: dict[ChildKey, Node] = {}
        self.pins = self.locks = self.mark = self.num_next = 0
        self.window = _NO_WINDOW
        self.state: StatePart | None = None

    def __repr__(self) -> str:
        """Where the node lies and what holds it."""
        return f"Node([{self.start}:{self.end}], locks={self.locks}, children={len(self.children)})"

    def below(self) -> Iterator[Node]:
        """Every node below this one, parents first."""
        stack = list(self.children.values())
        while stack:
            node = stack.pop()
            yield node
            stack.extend(node.children.values())

    def behind(self, position: int) -> list[Node]:
        """This node and the nodes above it that end behind `position`, upwards."""
        found, node = [], self
        while node.end > position:
            found.append(node)
            assert node.parent is not None, "only the root ends at 0"
            node = node.parent
        return found


@dataclass(frozen=True, slots=True)
class Match:
    """The cached part of a key: its first `num_tokens` tokens, ending at `node`.

    num_found: leading tokens whose full-attention slots are cached; where it is more than `num_tokens`, no request can
    continue from the tokens behind, because their windows are gone or no state is there. A match holds nothing: until
    `node` is locked, the next eviction, or `loosen` of another lock, may take it; its state only `hold_state` keeps.
    """

    node: Node
    num_tokens: int
    num_found: int


@dataclass(frozen=True, slots=True)
class Insertion:
    """The result of inserting a key.

    node: where the key's last whole page ends. num_tokens: tokens of the key that are cached now, in whole pages.
    num_shared: the leading tokens that were cached before; the tree kept its own slots for those.
    """

    node: Node
    num_tokens: int
    num_shared: int


def key_of(tokens: Tokens, page_size: int) -> TokenArray:
    """The whole pages of `tokens` as contiguous int32, sharing memory where possible. Raises `RequestError`."""
    dtype = getattr(tokens, "dtype", None)
    if dtype not in _TOKEN_DTYPES or tokens.ndim != 1 or not isinstance(tokens, np.ndarray):
        kind, shape = dtype or type(tokens).__name__, getattr(tokens, "shape", "unknown")
        raise RequestError(f"tokens are {kind} of shape {shape}. Pass a flat numpy array of int32 or int64 ids.")
    whole = tokens[: tokens.size - tokens.size % page_size]
    if not whole.flags.carray:  # kernels take arrays that are contiguous, aligned and writable
        whole = whole.copy()
    if dtype == np.int32:
        return cast("TokenArray", whole)
    key: TokenArray = np.empty(whole.size, dtype=np.int32)
    bad = narrow(cast("IntArray", whole), key)
    if bad >= 0:
        raise RequestError(f"token {whole[bad]} at position {bad} does not fit int32. Pass ids of a vocabulary.")
    return key
