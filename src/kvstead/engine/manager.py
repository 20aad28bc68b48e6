"""The facade for engine builders: the memory of all running requests and of the prefixes they leave behind.

One request's row, page size 4, prompt of 10 tokens of which 4 were found in the cache, one token generated:

    position    0  1  2  3 | 4  5  6  7 | 8  9 10
                '-- tree --'  '--- the request's own ---'
                protected = 4            computed = 10   allocated = 11 (`table.lengths`)   num_tokens = 11

`match` opens a row and locks the cached prefix, `extend` and `decode` grow it, `commit` notes what a step has computed,
`cache` hands whole computed pages to the tree so that others can share them. `finish`, `retract` and `abort` end it.
Layers with a window have a side of their own in all this: `kvstead.engine.windows`.
"""

from __future__ import annotations

from contextlib import AbstractContextManager

import numpy as np
import torch
from numpy.typing import NDArray

from kvstead.allocators import SWAAllocator
from kvstead.engine.books import audit_ownership
from kvstead.engine.lease import Lease, Peek
from kvstead.engine.memory import MemoryRequest, plan_memory
from kvstead.engine.request import token_ids
from kvstead.engine.row_tokens import RowTokens
from kvstead.engine.stats import FULL_SIDE, WINDOW_SIDE, MemoryStats, SideStats
from kvstead.engine.windows import RowWindows
from kvstead.errors import InvalidSize, RowOverflow
from kvstead.kernels.arrays import Integers, to_device, to_host
from kvstead.kernels.jit import IntArray
from kvstead.model import BOUNDED, ModelLayout
from kvstead.pages.page_table import require_tag
from kvstead.pools import KVPool, RequestTable
from kvstead.prefix import Evicted, Namespace, Node, PrefixTree

_NO_NAMESPACE = Namespace()


class KVCacheManager:
    """Slots, rows and cached prefixes for one model layout in a fixed number of bytes.

    layout: what the model caches. num_bytes: the memory, padding included; or num_slots: usable slots, of the window
    side where every layer has a window (`.num_slots` are names without bytes then). Where only some have one,
    window_ratio (window slots per full slot) divides the memory between the sides, or num_window_slots beside
    num_slots; else the ratio follows from the expected_length of a request in tokens, see
    `kvstead.model.sizing.split_memory`, and `.split` says how.

    page_size: tokens a page. policy: which cached prefix goes first, see `kvstead.prefix`. max_requests: rows.
    max_length: tokens of the longest request. prefix_cache: whether prefixes are kept at all. storage: allocate the
    tensors too (`.pool`, `.window_pool`), or keep the books only. device: where slots and tensors live.

    Raises `LayoutError` for a layout with kinds that are not managed yet or memory too small for one page,
    `InvalidSize` for sizes that contradict each other.
    """

    def __init__(
        self,
        layout: ModelLayout,
        num_bytes: int | None = None,
        *,
        num_slots: int | None = None,
        num_window_slots: int | None = None,
        window_ratio: float | None = None,
        expected_length: int | None = None,
        page_size: int = 16,
        policy: str = "lru",
        max_requests: int = 256,
        max_length: int = 131_072,
        prefix_cache: bool = True,
        storage: bool = True,
        device: str | torch.device = "cpu",
    ) -> None:
        asked = MemoryRequest(num_bytes, num_slots, num_window_slots, window_ratio, expected_length, page_size)
        self.plan = plan_memory(layout, asked, max_requests, max_length)
        self.layout = layout
        self.page_size = page_size
        self.num_slots, self.token_bytes = self.plan.num_slots, self.plan.token_bytes
        self.num_window_slots, self.window_token_bytes = self.plan.num_window_slots, self.plan.window_token_bytes
        self.total_bytes = self.plan.total_bytes
        self.window = self.plan.window
        self.split = self.plan.split
        self.allocator = self.plan.allocator(device)
        self.tree = PrefixTree(self.allocator, policy=policy, window=self.window)
        self.table = RequestTable(max_requests, max_length)
        self.pool = self.window_pool = None
        if storage and self.token_bytes:
            self.pool = KVPool(layout, self.num_slots, page_size, device=device)
        if storage and self.window is not None:
            self.window_pool = KVPool(layout, self.num_window_slots, page_size, kinds=BOUNDED, device=device)
        self.prefix_cache = prefix_cache
        self._tokens = RowTokens(self.table)
        self.num_tokens, self.computed = self._tokens.known, self._tokens.computed
        self.protected: IntArray = np.zeros(max_requests + 1, dtype=np.int64)
        self._windows: RowWindows | None = None
        self._available = self.allocator.available_size
        if isinstance(self.allocator, SWAAllocator):
            self._windows = RowWindows(self, self.allocator)
            self._available = self.allocator.full_available_size
        self._owner = np.zeros(max_requests + 1, dtype=np.int32)
        self._node: list[Node] = [self.tree.root] * (max_requests + 1)
        self._namespace: list[Namespace] = [_NO_NAMESPACE] * (max_requests + 1)
        self.num_released = 0

    # Growing

    def peek(self, tokens: Integers, *, namespace: Namespace = _NO_NAMESPACE) -> Peek:
        """What `match` would find, and what could be had beside it, for deciding on admission.

        To the eviction policy this is a use of the prefix, as a match is.
        """
        if not self.prefix_cache:
            return self._peek(0)
        match = self.tree.match(token_ids(tokens)[:-1], namespace=namespace)
        self.tree.lock(match.node)
        seen = self._peek(match.num_tokens)
        self.tree.unlock(match.node)
        return seen

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
        self._tokens.open(row, ids)
        self._owner[row] = owner
        self._namespace[row] = namespace
        node, cached, found = self.tree.root, 0, 0
        if self.prefix_cache:
            match = self.tree.match(self._tokens.ids[row, : ids.size - 1], namespace=namespace)
            node, cached, found = match.node, match.num_tokens, match.num_found
            self.table.append(row, self.tree.slots(node))
        self.tree.lock(node)
        self._node[row] = node
        self.protected[row] = self.computed[row] = cached
        if self._windows:
            self._windows.open(row)
        return Lease(row, cached, found - cached)

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
        if not self._make_room(num_pages, which):
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
        if not self._make_room(self.table.opening(which, self.page_size), which):
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
        self._tokens.commit(to_host(rows), to_host(lengths), to_host(next_tokens))

    def append(self, row: int, tokens: Integers) -> None:
        """Note token ids that are known behind the row's last one, as when speculative decoding accepts some.

        Raises `StaleRow`, `RowOverflow`.
        """
        self._tokens.append(row, tokens)

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
        inserted = self.tree.insert(self._tokens.ids[row, :end], own, namespace=self._namespace[row])
        self.tree.lock(inserted.node)
        self._unlock(row)
        self._node[row] = inserted.node
        self.protected[row] = end
        if self._windows:
            self._windows.open(row)
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
        self._unlock(row)
        self._node[row] = self.tree.root
        self._tokens.close(row)
        self.protected[row] = 0
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
        return (self._available() + self.tree.evictable_tokens) // self.page_size

    def window_room(self) -> int:
        """Pages of the window side that could be allocated now, dropping every window that nobody needs; else 0.

        Running rows let go what they need no more, as they do before an allocation fails.
        """
        if self._windows is None:
            return 0
        self._windows.reclaim()
        return self._windows.room()

    def window_room_at_once(self) -> int:
        """`window_room` without what running rows could still let go. O(1)."""
        return self._windows.room() if self._windows else 0

    def growth(self, row: int, num_tokens: int) -> int:
        """By how many tokens, `num_tokens` at most, a row could grow now: 0 only if it could not by one.

        Raises `StaleRow`, and `InvalidSize` for a negative number.
        """
        self.table.require_live(row)
        if num_tokens < 0:
            raise InvalidSize(f"row {row} cannot grow by {num_tokens} tokens. Ask for 0 or more.")
        have = int(self.table.lengths[row])
        in_last_page = -have % self.page_size
        wanted = self.pages(have + num_tokens) - self.pages(have)
        pages = min(wanted, self.room())
        if self._windows and pages > self._windows.room():
            self._windows.reclaim_pieces()
            pages = min(pages, self._windows.room() or self.window_room())
        return min(num_tokens, in_last_page + pages * self.page_size)

    def window_slots(self, slots: Integers) -> torch.Tensor:
        """The window slots of full slots: int64 of the same shape, 0 (padding) where there is none, -1 for -1.

        Raises `InvalidSize` where no layer has a window.
        """
        if self._windows is None:
            raise InvalidSize(f"{self.layout.name} has no window slots. Only models with windows or chunks do.")
        return self._windows.allocator.window_slots(slots)

    @property
    def evicted(self) -> Evicted:
        """All that was evicted so far."""
        return self.tree.evicted

    @property
    def window_start(self) -> IntArray:
        """By row, the first position whose window slot is still held; of no meaning where no layer has a window."""
        return self._windows.start if self._windows else self.protected

    def pages(self, num_tokens: int) -> int:
        """Pages that `num_tokens` tokens of one row take."""
        return -(-num_tokens // self.page_size)

    def live_tokens(self) -> int:
        """Slots that running requests hold, shared prefixes included, in whole pages. O(1)."""
        return self.num_slots - self._available() - self.allocator.parked_size() - self.tree.evictable_tokens

    def window_live_tokens(self) -> int:
        """Window slots that running requests hold, in whole pages. O(1)."""
        if self._windows is None:
            return 0
        allocator = self._windows.allocator
        idle = allocator.swa_available_size() + allocator.swa_parked_size() + self.tree.window_evictable_tokens
        return self.num_window_slots - idle

    def stats(self) -> MemoryStats:
        """Bytes by state and side, adding up to `total_bytes`. O(1)."""
        plan, tree, sides = self.plan, self.tree, {}
        if plan.token_bytes:
            slots = (self.live_tokens(), tree.evictable_tokens, self.allocator.parked_size(), self._available())
            sides[FULL_SIDE] = SideStats.of(plan.total_bytes - plan.window_bytes, plan.token_bytes, *slots)
        if self._windows:
            side = self._windows.allocator
            parked, free = side.swa_parked_size(), side.swa_available_size()
            slots = (self.window_live_tokens(), tree.window_evictable_tokens, parked, free)
            sides[WINDOW_SIDE] = SideStats.of(plan.window_bytes, plan.window_token_bytes, *slots)
        return MemoryStats.whole(sides)

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
        return self._tokens.read(row)

    def lock_of(self, row: int) -> Node:
        """The tree node up to which the row's prefix is locked (the root if none of it is shared)."""
        return self._node[row]

    def _peek(self, num_cached: int) -> Peek:
        if self._windows is None:
            return Peek(num_cached, self.room(), 0)
        self._windows.reclaim_pieces()
        return Peek(num_cached, self.room(), self._windows.room())

    def _unlock(self, row: int) -> None:
        """Give back the row's lock, as far as its window has not done so already."""
        self.tree.unlock(self._node[row], window_from=int(self._windows.start[row]) if self._windows else None)

    def _make_room(self, num_pages: int, rows: IntArray) -> bool:
        """Let the rows go on to where they are, and evict what it takes beside that; False, and nothing is evicted."""
        num_tokens = num_pages * self.page_size
        short, short_window = num_tokens - self._available(), 0
        if self._windows:
            self._windows.slide(rows)
            if num_pages > self._windows.room() and num_pages > self.window_room():
                return False
            short_window = num_tokens - self._windows.allocator.swa_available_size()
        if short > self.tree.evictable_tokens:
            return False
        if short > 0 or short_window > 0:
            self.tree.evict(max(short, 0), max(short_window, 0))
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
