"""The facade for engine builders: the memory of all running requests and of the prefixes they leave behind.

One request's row, page size 4, prompt of 10 tokens of which 4 were found in the cache, one token generated:

    position    0  1  2  3 | 4  5  6  7 | 8  9 10
                '-- tree --'  '--- the request's own ---'
                protected = 4            computed = 10   allocated = 11 (`table.lengths`)   num_tokens = 11

`match` opens a row and locks the cached prefix, `extend` and `decode` grow it, `commit` notes what a step has computed,
`cache` hands whole computed pages to the tree so that others can share them. `finish`, `retract` and `abort` end it.
Layers with a window have a side of their own in all this, `kvstead.engine.windows`, and so have recurrent layers: a row
has a state as well, `kvstead.engine.states`, which an engine lets copy with `checkpoint` between two steps.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

import numpy as np
import torch
from numpy.typing import NDArray

from kvstead.allocators import WindowSide
from kvstead.engine.books import audit_ownership
from kvstead.engine.lease import Lease, Peek
from kvstead.engine.memory import ArenaOptions, MemoryRequest, plan_memory
from kvstead.engine.memory_pools import Memory
from kvstead.engine.request import token_ids
from kvstead.engine.room import ONE_STATE, ONLY_AN_END_HELPS, WINDOW_PAGE, Demand
from kvstead.engine.row_tokens import RowTokens
from kvstead.engine.states import RowStates
from kvstead.engine.view import MemoryView
from kvstead.engine.windows import RowWindows
from kvstead.errors import InvalidSize, RowOverflow
from kvstead.kernels.array_types import IntArray
from kvstead.kernels.arrays import Integers, to_device, to_host
from kvstead.model import ModelLayout
from kvstead.pages.page_table import require_tag
from kvstead.pools import RequestTable
from kvstead.prefix import Namespace, Node

_NO_NAMESPACE = Namespace()


class KVCacheManager(MemoryView):
    """Slots, rows and cached prefixes for one model layout in a fixed number of bytes.

    layout: what the model caches. num_bytes: the memory, padding included; or num_slots: usable slots, of the window
    side where every layer has a window (`.num_slots` are names without bytes then).

    pool_layout: how kinds of cache share the memory, see `kvstead.engine.memory`. "static" divides it once: by
    window_ratio (window slots per full slot), or num_window_slots beside num_slots, and by num_states; what is not
    given follows from the expected_length of a request in tokens, see `kvstead.model.sizing.split_memory`, and `.split`
    says how. "unified" lets pages move in one arena, with `eager`, `fence` and `may_move` as for `PoolChain`.
    "padded" and "ideal" only count, to compare layouts; they have no storage.

    page_size: tokens a page ("padded" may need larger ones; `.page_size` says). state_interval: how many tokens lie
    between two copies of a request's recurrent state that others can go on from. policy: which cached prefix goes
    first, see `kvstead.prefix`. max_requests: rows. max_length: tokens of the longest request. prefix_cache: whether
    prefixes are kept at all. storage: allocate the tensors too (`.pool`, `.window_pool`, `.state_pool`), or keep the
    books only. device: where slots and tensors live.

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
        num_states: int | None = None,
        window_ratio: float | None = None,
        expected_length: int | None = None,
        pool_layout: str = "static",
        eager: bool = False,
        fence: Callable[[], None] | None = None,
        may_move: Callable[[], bool] | None = None,
        page_size: int = 16,
        state_interval: int = 512,
        policy: str = "lru",
        max_requests: int = 256,
        max_length: int = 131_072,
        prefix_cache: bool = True,
        storage: bool = True,
        device: str | torch.device = "cpu",
    ) -> None:
        asked = MemoryRequest(
            pool_layout, page_size, num_bytes, num_slots, num_window_slots, num_states, window_ratio, expected_length
        )
        plan = plan_memory(layout, asked, max_requests, max_length)
        options = ArenaOptions(eager=eager, fence=fence, may_move=may_move, storage=storage)
        super().__init__(layout, Memory(layout, plan, options, device), RequestTable(max_requests, max_length), policy)
        self.prefix_cache = prefix_cache
        self._tokens = RowTokens(self.table)
        self.num_tokens, self.computed = self._tokens.known, self._tokens.computed
        self.protected: IntArray = np.zeros(max_requests + 1, dtype=np.int64)
        if isinstance(self.allocator, WindowSide):
            self.row_windows = RowWindows(self, self.allocator)
        if self.allocator.states is not None:
            self.row_states = RowStates(self, self.allocator.states, state_interval)
        self._page = Demand(1, 1 if self.row_windows else 0)
        self._owner = np.zeros(max_requests + 1, dtype=np.int32)
        self._node: list[Node] = [self.tree.root] * (max_requests + 1)
        self._namespace: list[Namespace] = [_NO_NAMESPACE] * (max_requests + 1)
        self.num_released = 0

    # Growing

    def peek(self, tokens: Integers, *, namespace: Namespace = _NO_NAMESPACE) -> Peek:
        """What `match` would find, and what could be evicted beside it, for deciding on admission.

        To the eviction policy this is a use of the prefix, as a match is.
        """
        if not self.prefix_cache:
            return Peek(0, self.room.evictable())
        match = self.tree.match(token_ids(tokens)[:-1], namespace=namespace)
        with self._locked(match.node):
            if self.row_states is not None and not self.room.has(ONE_STATE):
                self.row_states.drop_kept()  # as `match` would
            if self.row_windows is not None:
                self.row_windows.reclaim_pieces()
            return Peek(match.num_tokens, self.room.evictable())

    def match(self, tokens: Integers, *, namespace: Namespace = _NO_NAMESPACE, owner: int = 0) -> Lease | None:
        """Open a row for a request and lock the longest cached prefix of its tokens into it.

        tokens: all token ids known so far, 0 .. 2**31 - 1. At least one is left to compute. owner: tag for the pages
        that the request takes. A model with recurrent layers has its state for that prefix copied into a slot of the
        row, for which cached prefixes are evicted as far as needed; where there is room for one of the two only, and
        no other row is out, it begins anew. Returns None, with nothing changed but what was evicted, when all rows are
        out or there is no room for a state. Raises `RequestError` for no tokens or for ids out of range, `RowOverflow`
        for more than `max_length`, `InvalidSize` for a tag beyond 32 bits, `OpenGroup` when it would have to evict
        inside a free group. O(tokens), and a state.
        """
        ids = token_ids(tokens)
        require_tag(owner)
        if ids.size > self.table.width:
            raise RowOverflow(
                f"{ids.size} tokens do not fit a row of {self.table.width}. Cut the request or raise max_length."
            )
        if not self.table.num_free:
            return None
        node, cached, found, state = self.tree.root, 0, 0, None
        if self.prefix_cache:
            match = self.tree.match(ids[:-1], namespace=namespace)
            node, cached, found = match.node, match.num_tokens, match.num_found
        if self.row_states is not None:
            with self._locked(node):
                state = self.row_states.take(node, owner)
            if state is None and cached and self.table.num_free == self.table.num_rows:  # nothing to wait for
                node, cached = self.tree.root, 0
                state = self.row_states.take(node, owner)
            if state is None:
                return None
        taken = self.table.take()
        assert taken is not None, "rows were counted first"
        row = int(taken[0])
        self._tokens.open(row, ids)
        self._owner[row] = owner
        self._namespace[row] = namespace
        if cached:
            self.table.append(row, self.tree.slots(node))
        self.tree.lock(node)
        self._node[row] = node
        self.protected[row] = self.computed[row] = cached
        if self.row_windows:
            self.row_windows.open(row)
        if self.row_states and state is not None:
            self.row_states.open(row, state, cached, found)
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
        if not self._grow(num_pages, which):
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
        if not self._grow(self.table.opening(which, self.page_size), which):
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
        which = to_host(rows)
        self._tokens.commit(which, to_host(lengths), to_host(next_tokens))
        if self.row_states and self.row_states.num_kept:
            for row in which[self.row_states.kept[which] > 0].tolist():
                self.cache(row)

    def checkpoint(self, rows: Integers) -> None:
        """Copy the recurrent states of rows that stand where a copy is worth it, for others to go on from.

        To be called before rows grow, when all slots that they have are computed or will be by steps that were launched
        already. A copy is cached with its tokens once those are committed. Evicts cached prefixes for it, but never
        fails: without room there is no copy. Nothing happens for models without recurrent layers or without a prefix
        cache. Raises `StaleRow`, and `OpenGroup` when it would have to evict inside a free group. O(rows), and the
        copies.
        """
        if self.row_states is None or not self.prefix_cache:
            return
        for row in self.row_states.checkpoint(to_host(rows)).tolist():
            self.cache(row)

    def chunk_end(self, row: int, end: int) -> int:
        """Where a chunk of the row that could reach `end` tokens should end: there, or before it.

        A state can only be copied where a step ends, so for models with recurrent layers chunks end where a copy is of
        use. Raises `StaleRow`.
        """
        self.table.require_live(row)
        return self.row_states.stop(row, end) if self.row_states and self.prefix_cache else end

    def append(self, row: int, tokens: Integers) -> None:
        """Note token ids that are known behind the row's last one, as when speculative decoding accepts some.

        Raises `StaleRow`, `RowOverflow`.
        """
        self._tokens.append(row, tokens)

    def cache(self, row: int) -> None:
        """Hand the row's computed whole pages to the prefix tree; the row goes on reading them, locked.

        With recurrent layers, those up to its last copied state: nobody could go on from the others. Pages that the
        tree holds already (another request computed the same) are given back and the row adopts the tree's. Nothing
        happens without a prefix cache.
        """
        self.table.require_live(row)
        start = int(self.protected[row])
        end = int(self.computed[row]) // self.page_size * self.page_size
        if self.row_states:
            end = self.row_states.cacheable(row)
        if not self.prefix_cache or end <= start:
            return
        own = self.table.read(row, 0, end)
        inserted = self.tree.insert(self._tokens.ids[row, :end], own, namespace=self._namespace[row])
        self.tree.lock(inserted.node)
        if self.row_states:
            self.row_states.hand_over(row, self._node[row], inserted.node)
        self._unlock(row)
        self._node[row] = inserted.node
        self.protected[row] = end
        if self.row_windows:
            self.row_windows.open(row)
        if inserted.num_shared > start:
            self.allocator.free_segment(own[start : inserted.num_shared], start_pos=start)
            shared = self.tree.slots(inserted.node)[start : inserted.num_shared]
            self.table.overwrite(row, start, shared)

    # Ending

    def finish(self, row: int) -> None:
        """End a request: its computed whole pages stay cached, the rest and the row come back."""
        self.table.require_live(row)
        if self.row_states and self.prefix_cache:
            self.row_states.offer(row)
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
        if self.row_states:
            self.row_states.close(row)
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

    def window_room(self) -> int:
        """Pages of the window side that could be allocated now, dropping every window that nobody needs; else 0.

        Running rows let go what they need no more, as they do before an allocation fails.
        """
        if self.row_windows is None:
            return 0
        self.row_windows.reclaim()
        return self.room.most(WINDOW_PAGE)

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
        pages = self._most(wanted)
        if pages < wanted and self._let_go(self._page.times(wanted)):
            pages = self._most(wanted)
        return min(num_tokens, in_last_page + pages * self.page_size)

    @property
    def window_start(self) -> IntArray:
        """By row, the first position whose window slot is still held; of no meaning where no layer has a window."""
        return self.row_windows.start if self.row_windows else self.protected

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

    def owner_of(self, row: int) -> int:
        """The tag of the pages that the row takes."""
        return int(self._owner[row])

    def make_room(self, demand: Demand) -> bool:
        """Evict until so much is free; False, and nothing is evicted, where that would not do."""
        return self.room.make(demand) or (self._let_go(demand) and self.room.make(demand))

    def _grow(self, num_pages: int, rows: IntArray) -> bool:
        """Let the rows go on to where they are, and make room for their new pages."""
        if self.row_windows is not None:
            self.row_windows.slide(rows)
        return num_pages == 0 or self.make_room(self._page.times(num_pages))

    def _let_go(self, demand: Demand) -> bool:
        """Have rows give up what they do not need, if that may help; whether it may have."""
        may_help = demand.states > 0 or self.chain is not None
        has_dropped = may_help and self.row_states is not None and self.row_states.drop_kept()
        if self.row_windows is None or self.room.lack(demand) >= ONLY_AN_END_HELPS:
            return has_dropped
        self.row_windows.reclaim()
        return True

    def _most(self, num_pages: int) -> int:
        """How many of so many new pages of rows could be had now."""
        return num_pages if self.room.has(self._page.times(num_pages)) else self.room.most(self._page)

    @contextmanager
    def _locked(self, node: Node) -> Iterator[None]:
        """Keep a matched prefix, and the state at its end, while room is made beside it."""
        self.tree.lock(node)
        state = node.state
        if state is not None:
            self.tree.hold_state(node)
        try:
            yield
        finally:
            if state is not None:
                self.tree.let_state_go(node)
            self.tree.unlock(node)

    def _unlock(self, row: int) -> None:
        """Give back the row's lock, as far as its window has not done so already."""
        self.tree.unlock(self._node[row], window_from=int(self.row_windows.start[row]) if self.row_windows else None)

    def _new_pages(self, row: int, length: int) -> int:
        """Pages that a row takes to grow to `length` slots."""
        self.table.require_live(row)
        have = int(self.table.lengths[row])
        if length < have:
            raise InvalidSize(f"row {row} holds {have} slots and cannot shrink to {length}. Extend to more.")
        if length > self.table.width:
            raise RowOverflow(f"row {row} cannot grow to {length} slots; rows have {self.table.width}. End it there.")
        return self.pages(length) - self.pages(have)
