"""The facade for engine builders: the memory of all running requests and of the prefixes that are cached.

`match` opens a row and locks the cached prefix, `extend` and `decode` grow it, `commit` notes what a step has computed,
`cache` hands whole computed pages to the tree so that others can share them. `finish`, `retract` and `abort` end it.
`checkpoint` copies recurrent states between two steps. `kvstead.engine.rows` draws what is known of a row.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager

import numpy as np
import torch
from numpy.typing import NDArray

from kvstead.byte_sizes import parse_bytes
from kvstead.engine.audit import audit_memory
from kvstead.engine.memory import ArenaOptions, Memory
from kvstead.engine.memory_plan import SIDE_KINDS, MemoryRequest, plan_memory
from kvstead.engine.request import token_ids, token_keys
from kvstead.engine.row_capacity import RowCapacity
from kvstead.engine.row_prefixes import Lease, Peek, RowPrefixes
from kvstead.engine.rows import Rows
from kvstead.engine.stats import MemoryStats, live_entries, memory_stats
from kvstead.errors import InvalidSize, RowOverflow
from kvstead.kernels.array_types import IntArray
from kvstead.kernels.arrays import Integers, to_device, to_host, whole
from kvstead.model import ModelLayout, load_layout
from kvstead.pages.amounts import FULL, STATE, WINDOW
from kvstead.pages.page_table import require_tag
from kvstead.prefix import PLAIN, Evicted, Keys, Namespace, Node, PrefixTree


class KVCacheManager:
    """Slots, rows and cached prefixes for one model layout in a fixed number of bytes.

    layout: what the model caches, or a bundled model's name. num_bytes: the memory, padding included, also as text
    ("4GiB"); or num_slots: usable slots, of the window side where no layer keeps more (`.num_slots` are names then).

    pool_layout: how kinds of cache share the memory, see `kvstead.engine.memory_plan`. "static" divides it once: by
    window_ratio (window slots per full slot), or num_window_slots beside num_slots, and by num_states; what is not
    given follows from the expected_length of a request in tokens, see `kvstead.model.sizing.split_memory`, and `.split`
    says how. "unified" lets pages move in one arena, with `eager`, `fence` and `may_move` as for `PoolChain`.
    "padded" and "ideal" only count, to compare layouts; they have no storage.

    page_size: tokens per page ("padded" may need larger ones; `.page_size` says). state_interval: tokens between
    further copies of a prompt's state, or None. policy: which cached prefix is evicted first, see `kvstead.prefix`.
    max_requests: rows. max_length: tokens of the longest request. prefix_cache: whether prefixes are kept at all.
    storage: allocate tensors too (`.pool`, `.window_pool`, `.state_pool`, or None), or only count. device: of tensors.
    `.table` holds the slots and lengths of rows, see `kvstead.pools.RequestTable`; `.computed` and `.num_tokens` their
    computed and known tokens, int[max_requests].
    Raises `LayoutError` for unknown models, kinds not managed yet or memory too small for a page, `InvalidSize` for
    sizes that contradict each other or are none.
    """

    def __init__(
        self,
        layout: ModelLayout | str,
        num_bytes: int | str | None = None,
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
        state_interval: int | None = 512,
        policy: str = "lru",
        max_requests: int = 256,
        max_length: int = 131_072,
        prefix_cache: bool = True,
        storage: bool = True,
        device: str | torch.device = "cpu",
    ) -> None:
        layout = load_layout(layout) if isinstance(layout, str) else layout
        size = parse_bytes(num_bytes) if isinstance(num_bytes, str) else num_bytes
        sizes = size, num_slots, num_window_slots, num_states, window_ratio, expected_length
        plan = plan_memory(layout, MemoryRequest(pool_layout, page_size, *sizes), max_requests, max_length)
        self.memory = memory = Memory(layout, plan, ArenaOptions(eager, fence, may_move, storage), device)
        self.layout, self.plan, self.page_size, self.total_bytes = layout, plan, plan.page_size, plan.total_bytes
        self.allocator, self.chain, self.window, self.split = memory.allocator, memory.chain, plan.window, plan.split
        self.token_bytes, self.window_token_bytes, self.state_bytes = map(plan.entry_bytes, SIDE_KINDS)
        self.num_slots, self.num_window_slots, self.num_states = map(memory.num_entries, SIDE_KINDS)
        self.pool, self.window_pool, self.state_pool = memory.pool, memory.window_pool, memory.state_pool
        self.tree = tree = PrefixTree(self.allocator, policy=policy, window=plan.window, states=self.allocator.states)
        self.rows = rows = Rows(max_requests, max_length, plan.page_size, tree.root)
        self.table, self.num_tokens, self.computed = rows.table, rows.known, rows.computed
        self.protected, self.prefix_cache = rows.protected, prefix_cache
        self._growth = growth = RowCapacity(memory, tree, rows, state_interval, prefix_cache=prefix_cache)
        self.capacity, self.row_windows, self.row_states = growth.capacity, growth.windows, growth.states
        self._prefixes = RowPrefixes(memory, tree, rows, growth, is_kept=prefix_cache)

    def __repr__(self) -> str:
        return f"<KVCacheManager of {self.layout.name}, {self.plan.pool_layout} layout: {self.stats()}>"

    def peek(self, tokens: Integers, *, namespace: Namespace = PLAIN, keys: Keys = ()) -> Peek:
        """What `match` would find, and what could be evicted beside it; the eviction policy counts it as a match."""
        return self._prefixes.peek(token_ids(tokens), namespace, keys)

    def match(self, tokens: Integers, *, namespace: Namespace = PLAIN, keys: Keys = (), owner: int = 0) -> Lease | None:
        """Open a row for a request and lock the longest cached prefix of its tokens into it.

        tokens: all ids known so far, 0 .. 2**31 - 1, at least one more than are taken from the cache. namespace, keys:
        what they depend on besides. owner: tag for the pages that the request takes. With recurrent layers the prefix's
        state is copied into a slot of the row, and other cached prefixes are evicted if there is no slot. If only one
        of the two states fits and no row is in use, nothing is taken from the cache. None when all rows are in use or
        there is no capacity for a state; only evicted prefixes are gone then. Raises `RequestError` for no tokens, ids
        out of range and keys that are none, `RowOverflow` for more than `max_length`, `InvalidSize` for a tag beyond 32
        bits, `OpenGroup` when it would have to evict inside a free group. O(tokens).
        """
        ids, owner = token_ids(tokens), whole(owner, "owner")
        require_tag(owner)
        if ids.size > self.table.width:
            raise RowOverflow(f"{ids.size} tokens do not fit rows of {self.table.width}. Cut them or raise max_length.")
        return self._prefixes.open(ids, owner, namespace, token_keys(keys))

    def extend(self, rows: Integers, lengths: Integers) -> torch.Tensor | None:
        """Grow rows to `lengths` slots, evicting cached prefixes as far as needed.

        Returns the new slots, int64[sum of growth], one row after the other; None, and nothing is evicted, when there
        is no capacity even so. Raises `InvalidSize` for a row that would shrink or is named twice and for another
        number of lengths than rows, `RowOverflow`, `StaleRow`, `OpenGroup` when it would evict inside a free group.
        """
        which, seq = to_host(rows), to_host(lengths)
        if not self._growth.make_pages(which, self.rows.new_pages(which, seq)):
            return None
        prefix = self.table.lengths[which]
        last = np.where(prefix > 0, self.table.slots[which, prefix - 1], -1)
        slots = self.allocator.alloc_extend(prefix, seq, last, self.rows.owner[which])
        assert slots is not None, "capacity was made for the extension"
        self.rows.write(which, seq, to_host(slots))
        return slots

    def decode(self, rows: Integers) -> torch.Tensor | None:
        """Grow each row by one slot: int64[rows], or None when there is no capacity; raises as `extend`."""
        which, table = to_host(rows), self.table
        if not self._growth.make_pages(which, table.opening(which, self.page_size)):
            return None
        slots = self.allocator.alloc_decode_rows(table.slots, table.lengths, which, self.rows.owner[which])
        assert slots is not None, "capacity was made for the decode step"
        return to_device(slots, self.allocator.device)

    def commit(self, rows: Integers, lengths: Integers, next_tokens: Integers) -> None:
        """Note what a step has computed: the cache entries of each row's first `lengths` tokens are valid now.

        next_tokens: the token id sampled behind them; it becomes known where all known tokens were computed, and is
        ignored in the middle of a prompt. Raises `InvalidSize` for a length below what was computed before or beyond
        what is allocated and known, a row named twice, or other numbers of lengths and tokens than rows; `RequestError`
        for an id out of range; `StaleRow`.
        """
        which = to_host(rows)
        self.rows.commit(which, to_host(lengths), to_host(next_tokens))
        self._prefixes.cache_kept(which)

    def checkpoint(self, rows: Integers) -> None:
        """Copy the recurrent states of rows that stand where a copy is useful, for other requests to continue from.

        To be called before rows grow, when all their slots are computed or will be by steps already launched. A copy is
        cached with its tokens once those are committed. Evicts cached prefixes for it; without capacity there is no
        copy. Nothing happens without recurrent layers or a prefix cache. Raises `StaleRow`, `OpenGroup`. O(rows).
        """
        if self.row_states is not None and self.prefix_cache:
            self._prefixes.cache_kept(self.row_states.checkpoint(to_host(rows)))

    def chunk_end(self, row: int, end: int) -> int:
        """Where a chunk that may reach `end` should end: there, at a state's copy or before others' windows go."""
        self.table.require_live(row)
        return self._growth.chunk_end(row, end) if self.prefix_cache else end

    def append(self, row: int, tokens: Integers) -> None:
        """Note ids known behind the row's last one, as from speculative decoding. Raises `StaleRow`, `RowOverflow`."""
        self.rows.append(row, tokens)

    def cache(self, row: int) -> None:
        """Hand the row's computed whole pages to the prefix tree; the row goes on reading them, locked.

        With recurrent layers a copy of its state goes along. Pages that the tree holds already (another request
        computed the same) are freed and the row adopts the tree's. Nothing happens without a prefix cache.
        """
        self.table.require_live(row)
        self._prefixes.cache(row)

    def finish(self, row: int) -> None:
        """End a request: its computed whole pages stay cached, the rest and the row come back. Raises `StaleRow`."""
        self.table.require_live(row)
        if self.row_states and self.prefix_cache:
            self.row_states.offer(row)
        self._prefixes.cache(row)
        self._prefixes.end(row)

    def retract(self, row: int) -> NDArray[np.int32]:
        """Take a running request off the memory to resume it later: as `finish`; returns its known tokens, int32[*]."""
        known = self.rows.known_tokens(row)
        self.finish(row)
        return known

    def abort(self, row: int) -> None:
        """End a request and cache nothing more of it. What it shares with the tree stays there. Raises `StaleRow`."""
        self.table.require_live(row)
        self._prefixes.end(row)

    def defer_frees(self) -> AbstractContextManager[None]:
        """The free group, for the time in which a step's results are processed."""
        return self.allocator.defer_frees()

    def flush(self) -> bool:
        """Drop all cached prefixes. False, and nothing changed, while a request holds a row or a group is open."""
        is_idle = self.allocator.free_group is None and self.table.num_free == self.table.num_rows
        return is_idle and self.tree.clear()

    def growth(self, row: int, num_tokens: int) -> int:
        """By how many tokens, `num_tokens` at most, a row could grow now. Raises `StaleRow`, `InvalidSize` below 0."""
        self.table.require_live(row)
        num_tokens = whole(num_tokens, "num_tokens")
        if num_tokens < 0:
            raise InvalidSize(f"row {row} cannot grow by {num_tokens} tokens. Ask for 0 or more.")
        return self._growth.growth(row, num_tokens)

    def window_room(self) -> int:
        """Window pages that could be allocated now; rows release what they no longer need, as before a shortage."""
        return self._growth.window_pages()

    def physical_slots(self, slots: Integers) -> torch.Tensor:
        """Where slots lie now: rows of `pool`, int64 of the same shape; in an arena until pages are taken again."""
        return self.memory.slots(slots)

    def window_slots(self, slots: Integers) -> torch.Tensor:
        """Where the window side of full slots lies now: int64 of the same shape, 0 (padding) where there is none.

        -1 stays -1 but in an arena, where it is 0. Valid as `physical_slots`. Raises `InvalidSize` without windows.
        """
        if self.row_windows is None:
            raise InvalidSize(f"{self.layout.name} has no window slots. Only models with windows or chunks do.")
        return self.memory.window_slots(slots)

    def state_slots(self, rows: Integers) -> torch.Tensor:
        """Where the states of rows lie now: rows of `state_pool`, int64[rows]; valid as `physical_slots`.

        Raises `InvalidSize` where no layer has a state, `StaleRow`.
        """
        if self.row_states is None:
            raise InvalidSize(f"{self.layout.name} keeps no recurrent states. Only models with such layers do.")
        return self.row_states.physical_slots(to_host(rows))

    @property
    def window_start(self) -> IntArray:
        """By row, the first position whose window slot is still held; without meaning where no layer has a window."""
        return self.row_windows.start if self.row_windows else self.protected

    @property
    def evicted(self) -> Evicted:
        """Everything evicted so far, by side."""
        return self.tree.evicted

    @property
    def first_shortage(self) -> float | None:
        """The share of the bytes that was live or cached when a demand did not fit for the first time, or None."""
        return self.capacity.first_shortage

    @property
    def num_state_copies(self) -> int:
        """States copied since the start."""
        return self.row_states.num_copies if self.row_states else 0

    def pages(self, num_tokens: int) -> int:
        """Pages that `num_tokens` tokens of one row take."""
        return self.rows.pages(num_tokens)

    def live_tokens(self) -> int:
        """Slots that running requests hold, shared prefixes included, in whole pages. O(1)."""
        return live_entries(self.memory, self.tree, FULL)

    def window_live_tokens(self) -> int:
        """Window slots that running requests hold, in whole pages. O(1)."""
        return live_entries(self.memory, self.tree, WINDOW)

    def live_states(self) -> int:
        """States that running requests hold, copies that are not cached yet included. O(1)."""
        return live_entries(self.memory, self.tree, STATE)

    def stats(self) -> MemoryStats:
        """Bytes by state and side, adding up to `total_bytes`. O(1)."""
        return memory_stats(self.memory, self.tree.evictable())

    def known_tokens(self, row: int) -> NDArray[np.int32]:
        """The row's token ids so far, prompt and output: int32[*], a copy. Raises `StaleRow`."""
        return self.rows.known_tokens(row)

    def lock_of(self, row: int) -> Node:
        """The tree node up to which the row's prefix is locked (the root if none of it is shared)."""
        return self.rows.node[row]

    def audit(self) -> None:
        """Check that every live page has one owner, a row or a node, and all counts. Raises `AuditError`. O(pool)."""
        audit_memory(self.memory, self.tree, self.rows, self.row_windows, self.row_states)
