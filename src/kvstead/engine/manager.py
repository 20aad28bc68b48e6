"""The facade for engine builders: the memory of all running requests and of the prefixes they leave behind.

One request's row, page size 4, prompt of 10 tokens of which 4 were found in the cache, one token generated:

    position    0  1  2  3 | 4  5  6  7 | 8  9 10
                '-- tree --'  '--- the request's own ---'
                protected = 4            computed = 10   allocated = 11 (`table.lengths`)   num_tokens = 11

`match` opens a row and locks the cached prefix, `extend` and `decode` grow it, `commit` notes what a step has computed,
`cache` hands whole computed pages to the tree so that others can share them. `finish`, `retract` and `abort` end it.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import NamedTuple, NoReturn

import numpy as np
import torch
from numpy.typing import NDArray

from kvstead.allocators import PagedAllocator
from kvstead.engine.books import audit_ownership
from kvstead.engine.request import token_ids
from kvstead.engine.stats import MemoryStats
from kvstead.errors import InvalidSize, LayoutError, RowOverflow
from kvstead.kernels import rows as row_kernels
from kvstead.kernels.arrays import Integers, to_device, to_host
from kvstead.kernels.jit import IntArray
from kvstead.model import WHOLE_SEQUENCE, ModelLayout
from kvstead.pages.page_table import require_tag
from kvstead.pools import KVPool, RequestTable
from kvstead.prefix import Namespace, Node, PrefixTree

_NO_NAMESPACE = Namespace()


class Lease(NamedTuple):
    """What `match` hands out: the request's row, and how many of its tokens the cache already held."""

    row: int
    num_cached: int


class KVCacheManager:
    """Slots, rows and cached prefixes for one model layout in a fixed number of bytes.

    layout: what the model caches. num_bytes: the memory, padding page included; or num_slots: usable slots.
    page_size: tokens a page. policy: which cached prefix goes first, see `kvstead.prefix`. max_requests: rows.
    max_length: tokens of the longest request. prefix_cache: whether prefixes are kept at all. storage: allocate the
    tensors too (`.pool`), or keep the books only. device: where slots and tensors live.

    Raises `LayoutError` for a layout with kinds that are not managed yet or memory too small for one page.
    """

    def __init__(
        self,
        layout: ModelLayout,
        num_bytes: int | None = None,
        *,
        num_slots: int | None = None,
        page_size: int = 16,
        policy: str = "lru",
        max_requests: int = 256,
        max_length: int = 131_072,
        prefix_cache: bool = True,
        storage: bool = True,
        device: str | torch.device = "cpu",
    ) -> None:
        self.layout = layout
        self.page_size = page_size
        self.num_slots, self.total_bytes = _size(layout, num_bytes, num_slots, page_size)
        self.token_bytes = layout.full_bytes_per_token
        self.allocator = PagedAllocator(self.num_slots, page_size, device=device)
        self.tree = PrefixTree(self.allocator, policy=policy)
        self.table = RequestTable(max_requests, max_length)
        self.pool = KVPool(layout, self.num_slots, page_size, device=device) if storage else None
        self.prefix_cache = prefix_cache
        self.tokens = np.empty((max_requests + 1, max_length + 1), dtype=np.int32)
        self.num_tokens: IntArray = np.zeros(max_requests + 1, dtype=np.int64)
        self.computed: IntArray = np.zeros(max_requests + 1, dtype=np.int64)
        self.protected: IntArray = np.zeros(max_requests + 1, dtype=np.int64)
        self._owner = np.zeros(max_requests + 1, dtype=np.int32)
        self._node: list[Node] = [self.tree.root] * (max_requests + 1)
        self._namespace: list[Namespace] = [_NO_NAMESPACE] * (max_requests + 1)
        self.num_released = 0

    # Growing

    def peek(self, tokens: Integers, *, namespace: Namespace = _NO_NAMESPACE) -> tuple[int, int]:
        """What `match` would find, for deciding on admission: (cached tokens, pages that could be had beside them).

        To the eviction policy this is a use of the prefix, as a match is.
        """
        if not self.prefix_cache:
            return 0, self.room()
        match = self.tree.match(token_ids(tokens)[:-1], namespace=namespace)
        self.tree.lock(match.node)
        room = self.room()
        self.tree.unlock(match.node)
        return match.num_tokens, room

    def match(self, tokens: Integers, *, namespace: Namespace = _NO_NAMESPACE, owner: int = 0) -> Lease | None:
        """Open a row for a request and lock the longest cached prefix of its tokens into it.

        tokens: all token ids known so far, 0 .. 2**31 - 1. At least one is left to compute. owner: tag for the pages
        that the request takes. Returns None when all rows are out. Raises `RequestError` for no tokens or for ids out
        of range, `RowOverflow` for more than `max_length`, `InvalidSize` for a tag beyond 32 bits. O(tokens).
        """
        ids = token_ids(tokens)
        require_tag(owner)
        if ids.size > self.table.width:
            raise RowOverflow(
                f"{ids.size} tokens do not fit a row of {self.table.width}. Cut the request or raise max_length."
            )
        taken = self.table.take()
        if taken is None:
            return None
        row = int(taken[0])
        self.tokens[row, : ids.size] = ids
        self.num_tokens[row] = ids.size
        self._owner[row] = owner
        self._namespace[row] = namespace
        node, cached = self.tree.root, 0
        if self.prefix_cache:
            match = self.tree.match(self.tokens[row, : ids.size - 1], namespace=namespace)
            node, cached = match.node, match.num_tokens
            self.table.append(row, self.tree.slots(node))
        self.tree.lock(node)
        self._node[row] = node
        self.protected[row] = self.computed[row] = cached
        return Lease(row, cached)

    def extend(self, rows: Integers, lengths: Integers) -> torch.Tensor | None:
        """Grow rows to `lengths` slots, evicting cached prefixes as far as needed.

        Returns the new slots, int64[sum of growth], one row after the other; None when there is no room even so, and
        then nothing is evicted. Raises `InvalidSize` for a row that would shrink or is named twice and for another
        number of lengths than rows, `RowOverflow`, `StaleRow`, and `OpenGroup` when it would have to evict inside a
        free group.
        """
        which, seq = to_host(rows), to_host(lengths)
        if not len(set(which.tolist())) == which.size == seq.size:
            raise InvalidSize(f"rows {which.tolist()} come with {seq.size} lengths. Name each row once, with a length.")
        num_pages = sum(self._new_pages(row, length) for row, length in zip(which.tolist(), seq.tolist(), strict=True))
        if not self._make_room(num_pages):
            return None
        prefix = self.table.lengths[which]
        last = np.where(prefix > 0, self.table.slots[which, prefix - 1], -1)
        slots = self.allocator.alloc_extend(prefix, seq, last, self._owner[which])
        assert slots is not None, "room was made for the extension"
        new, start = to_host(slots), 0
        for row, length in zip(which.tolist(), (seq - prefix).tolist(), strict=True):
            self.table.append(row, new[start : start + length])
            start += length
        return slots

    def decode(self, rows: Integers) -> torch.Tensor | None:
        """Grow each row by one slot: int64[rows], or None when there is no room; raises as `extend`."""
        which = to_host(rows)
        if not self._make_room(self.table.opening(which, self.page_size)):
            return None
        table = self.table
        slots = self.allocator.alloc_decode_rows(table.slots, table.lengths, which, self._owner[which])
        assert slots is not None, "room was made for the decode step"
        return to_device(slots, self.allocator.device)

    def commit(self, rows: Integers, lengths: Integers, next_tokens: Integers) -> None:
        """Note what a step has computed: the cache entries of each row's first `lengths` tokens are valid now.

        next_tokens: the token id sampled behind them; it becomes known where all known tokens were computed, and is
        ignored in the middle of a prompt. Raises `InvalidSize` for a length below what was computed before or beyond
        what is allocated and known, a row named twice, or other numbers of lengths and tokens than rows; `RequestError`
        for an id out of range; `StaleRow`.
        """
        which, ends, sampled = to_host(rows), to_host(lengths), to_host(next_tokens)
        if not which.size == ends.size == sampled.size:
            raise InvalidSize(
                f"{which.size} rows come with {ends.size} lengths and {sampled.size} tokens. Give each row one of both."
            )
        table = self.table
        bad = row_kernels.commit_rows(
            table.states, table.lengths, self.computed, self.tokens, self.num_tokens, which, ends, sampled
        )
        if bad >= 0:
            self._refuse_commit(int(which[bad]), int(ends[bad]), sampled[bad:])

    def append(self, row: int, tokens: Integers) -> None:
        """Note token ids that are known behind the row's last one, as when speculative decoding accepts some.

        Raises `StaleRow`, `RowOverflow`.
        """
        self.table.require_live(row)
        if not len(tokens):
            return
        ids = token_ids(tokens)
        start = int(self.num_tokens[row])
        end = start + ids.size
        if end > self.table.width:
            raise RowOverflow(f"row {row} cannot hold {end} tokens; rows have {self.table.width}. End it there.")
        self.tokens[row, start:end] = ids
        self.num_tokens[row] = end

    def cache(self, row: int) -> None:
        """Hand the row's computed whole pages to the prefix tree; the row goes on reading them, locked.

        Pages that the tree holds already (another request computed the same) are given back and the row adopts the
        tree's. Nothing happens without a prefix cache.
        """
        self.table.require_live(row)
        start = int(self.protected[row])
        end = int(self.computed[row]) // self.page_size * self.page_size
        if not self.prefix_cache or end <= start:
            return
        own = self.table.read(row, 0, end)
        inserted = self.tree.insert(self.tokens[row, :end], own, namespace=self._namespace[row])
        self.tree.lock(inserted.node)
        self.tree.unlock(self._node[row])
        self._node[row] = inserted.node
        self.protected[row] = end
        if inserted.num_shared > start:
            self.allocator.free_segment(own[start : inserted.num_shared], start_pos=start)
            shared = self.tree.slots(inserted.node)[start : inserted.num_shared]
            self.table.overwrite(row, start, shared)

    # Ending

    def finish(self, row: int) -> None:
        """End a request: its computed whole pages stay cached, the rest and the row come back."""
        self.cache(row)
        self.abort(row)

    def retract(self, row: int) -> NDArray[np.int32]:
        """Take a running request off the memory to resume it later: as `finish`; returns its known tokens, int32[*]."""
        known = self.known_tokens(row)
        self.finish(row)
        return known

    def abort(self, row: int) -> None:
        """End a request and cache nothing more of it. What it shares with the tree stays there."""
        self.table.require_live(row)
        start = int(self.protected[row])
        self.allocator.free_segment(self.table.read(row, start), start_pos=start)
        self.tree.unlock(self._node[row])
        self._node[row] = self.tree.root
        self.num_tokens[row] = self.computed[row] = self.protected[row] = 0
        self.table.give(row)
        self.num_released += 1

    def defer_frees(self) -> AbstractContextManager[None]:
        """The free group, for the time in which a step's results are processed."""
        return self.allocator.defer_frees()

    def flush(self) -> bool:
        """Drop all cached prefixes. False, and nothing changed, while a request holds a row or a group is open."""
        if self.allocator.free_group is not None or self.table.live_rows().size:
            return False
        return self.tree.clear()

    # Looking

    def room(self) -> int:
        """Pages that could be allocated now, evicting every unused prefix."""
        return (self.allocator.available_size() + self.tree.evictable_tokens) // self.page_size

    def pages(self, num_tokens: int) -> int:
        """Pages that `num_tokens` tokens of one row take."""
        return -(-num_tokens // self.page_size)

    def live_tokens(self) -> int:
        """Slots that running requests hold, shared prefixes included, in whole pages. O(1)."""
        idle = self.allocator.available_size() + self.allocator.parked_size() + self.tree.evictable_tokens
        return self.num_slots - idle

    def stats(self) -> MemoryStats:
        """Bytes by state, adding up to `total_bytes`. O(1)."""
        token_bytes = self.token_bytes
        return MemoryStats(
            total_bytes=self.total_bytes,
            live=self.live_tokens() * token_bytes,
            cached=self.tree.evictable_tokens * token_bytes,
            parked=self.allocator.parked_size() * token_bytes,
            free=self.allocator.available_size() * token_bytes,
            padding=self.total_bytes - self.num_slots * token_bytes,
        )

    def audit(self) -> None:
        """Check all books against each other: every live page belongs to one row or one node. Raises `AuditError`.

        O(pool); for tests and for a background check, not for the hot path.
        """
        self.allocator.audit()
        self.table.audit()
        self.tree.audit()
        audit_ownership(self)

    def known_tokens(self, row: int) -> NDArray[np.int32]:
        """The row's token ids so far, prompt and output: int32[*], a copy. Raises `StaleRow`."""
        self.table.require_live(row)
        return self.tokens[row, : self.num_tokens[row]].copy()

    def lock_of(self, row: int) -> Node:
        """The tree node up to which the row's prefix is locked (the root if none of it is shared)."""
        return self._node[row]

    def _refuse_commit(self, row: int, end: int, sampled: IntArray) -> NoReturn:
        self.table.require_live(row)
        if end == self.num_tokens[row]:
            token_ids(sampled[:1])  # raises when it was the id
        raise InvalidSize(
            f"row {row} cannot be computed up to {end}: it is computed up to {self.computed[row]}, holds "
            f"{self.table.lengths[row]} slots and {self.num_tokens[row]} known tokens. Commit steps in order, each row "
            "once."
        )

    def _make_room(self, num_pages: int) -> bool:
        short = num_pages * self.page_size - self.allocator.available_size()
        if short > self.tree.evictable_tokens:
            return False
        if short > 0:
            self.tree.evict(short)
        return True

    def _new_pages(self, row: int, length: int) -> int:
        """Pages that a row takes to grow to `length` slots."""
        self.table.require_live(row)
        have = int(self.table.lengths[row])
        if length < have:
            raise InvalidSize(f"row {row} holds {have} slots and cannot shrink to {length}. Extend to more.")
        if length > self.table.width:
            raise RowOverflow(f"row {row} cannot grow to {length} slots; rows have {self.table.width}. End it there.")
        return self.pages(length) - self.pages(have)


def _size(layout: ModelLayout, num_bytes: int | None, num_slots: int | None, page_size: int) -> tuple[int, int]:
    """Usable slots, and bytes with the padding page."""
    unmanaged = sorted({str(kind) for kind in layout.kinds} - set(WHOLE_SEQUENCE))
    if unmanaged:
        raise LayoutError(
            f"{layout.name} caches {', '.join(unmanaged)} entries; the manager holds full and latent ones "
            "only. Choose a model of which every layer attends to the whole sequence."
        )
    if (num_bytes is None) == (num_slots is None):
        raise InvalidSize(f"num_bytes is {num_bytes} and num_slots is {num_slots}. Give exactly one of them.")
    if page_size < 1:
        raise InvalidSize(f"the page size is {page_size}. It must be at least 1.")
    if num_bytes is None:
        assert num_slots is not None, "one of the two is given"
        num_slots = num_slots // page_size * page_size
        num_bytes = layout.bytes_for(num_slots, page_size)
    else:
        num_slots = layout.slots_for(num_bytes, page_size)
    if num_slots <= 0:
        raise LayoutError(
            f"{num_bytes} bytes hold no page of {page_size} tokens of {layout.name} beside the padding page. Give "
            f"{layout.bytes_for(page_size, page_size)} bytes or more."
        )
    return num_slots, num_bytes
