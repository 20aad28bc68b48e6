"""The slow, obviously right prefix cache with a window: one record a page, and brute force for every question."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from eviction_in_tokens import Gone

PIECE = 2  # windows that go at least, if a node has more than is wanted
LONGEST_JOIN = 8  # windows
Key = tuple  # (namespace, token, token, ...): a prefix that ends on a page boundary


def first_needed(length, span, *, is_chunked):
    """The first position that a sequence of `length` tokens needs the window side of, by trying all."""
    if is_chunked:
        needed = [p for p in range(length) if p // span == length // span]
    else:
        needed = [p for p in range(length) if p + span >= length]
    return min(needed, default=length)


def longest_restorable(live, page_size, span, *, is_chunked):
    """The longest length, whole pages, all of whose needed positions lie in live pages, by trying all."""
    tokens = [is_live for is_live in live for _ in range(page_size)]
    lengths = range(0, len(tokens) + 1, page_size)
    return max(n for n in lengths if all(tokens[first_needed(n, span, is_chunked=is_chunked) : n]))


@dataclass
class Usage:
    """When and how often a page was used, on one of its sides."""

    access: int
    created: int
    priority: int
    hits: int = 0

    def use(self, now, num_hits, priority):
        """Used at `now` by a key of that priority."""
        self.access = now
        self.hits += num_hits
        self.priority = max(self.priority, priority)

    def joined(self, lower):
        """Of two nodes that become one: the later use counts, and when the lower one was made."""
        at_most = {name: max(getattr(self, name), getattr(lower, name)) for name in ("access", "priority", "hits")}
        return Usage(created=lower.created, **at_most)

    def rank(self, policy):
        """Lower goes first."""
        return {
            "lru": (self.access,),
            "mru": (-self.access,),
            "fifo": (self.created,),
            "filo": (-self.created,),
            "lfu": (self.hits, self.access),
            "slru": (self.hits > 0, self.access),
            "priority": (self.priority, self.access),
        }[policy]


@dataclass
class Page:
    """One cached page, named by the whole prefix that ends with it."""

    page: int
    is_live: bool
    full: Usage
    window: Usage
    was_needed: bool = False  # whether a key has ended so near behind it that it needs the window


@dataclass
class WindowTreeModel:
    """Every cached page by the prefix that ends with it, and where nodes end.

    locks: (key, where its window part begins), one entry a lock.
    """

    page_size: int
    policy: str
    span: int
    is_chunked: bool
    pages: dict[Key, Page] = field(default_factory=dict)
    ends: set[Key] = field(default_factory=set)
    locks: list[tuple[Key, int]] = field(default_factory=list)
    clock: int = 0

    def prefixes(self, namespace, tokens):
        """All page-aligned prefixes of a key, shortest first."""
        return [(namespace, *tokens[:end]) for end in range(self.page_size, len(tokens) + 1, self.page_size)]

    def cached(self, namespace, tokens):
        """The prefixes that are cached; they form a chain."""
        return [key for key in self.prefixes(namespace, tokens) if key in self.pages]

    def path(self, key):
        """All prefixes of a cached key, itself last."""
        return self.prefixes(key[0], key[1:]) if key else []

    def floor(self, position):
        """The page boundary at or before a position."""
        return position - position % self.page_size

    def needed_from(self, length):
        """The first position that a sequence of `length` tokens needs the window side of."""
        return first_needed(length, self.span, is_chunked=self.is_chunked)

    def restorable(self, chain):
        """The longest length that every position it needs is live for."""
        live = [self.pages[key].is_live for key in chain]
        return longest_restorable(live, self.page_size, self.span, is_chunked=self.is_chunked)

    def match(self, namespace, tokens):
        """(usable, cached) tokens; a match that ends inside a node cuts it there."""
        chain = self.cached(namespace, tokens)
        length = self.restorable(chain)
        self.clock += 1
        if length:
            key = chain[length // self.page_size - 1]
            self.ends.add(key)
            self.use(key, 1, self.pages[key].full.priority)
        return length, len(chain) * self.page_size

    def insert(self, namespace, tokens, row_pages, live, priority, *, is_end=True):
        """Number of leading tokens that were cached already. `live`: whether each page of the row has a window."""
        keys = self.prefixes(namespace, tokens)
        num_shared = len(self.cached(namespace, tokens))
        revived = [not self.pages[key].is_live and has for key, has in zip(keys[:num_shared], live, strict=False)]
        self.ends.update(keys[i - 1] for i in range(1, num_shared) if revived[i] != revived[i - 1])
        for key, is_revived in zip(keys, revived, strict=False):
            if is_revived:
                self.pages[key].is_live = True
                self.pages[key].window.access = self.pages[key].full.access
        self.clock += 1
        if num_shared:
            self.ends.add(keys[num_shared - 1])
        for i in range(num_shared, len(keys)):
            usages = [Usage(self.clock, self.clock, priority) for _ in range(2)]
            self.pages[keys[i]] = Page(row_pages[i], live[i], *usages)
            if i + 1 == len(keys) or live[i] != live[i + 1]:
                self.ends.add(keys[i])
        if keys:
            self.use(keys[-1], 0, priority, is_end=is_end)
        return num_shared * self.page_size

    def use(self, key, num_hits, priority, *, is_end=True):
        """The path down to `key` is used; of windows those of nodes that reach into what `key` needs."""
        path = self.path(key)
        for at in path:
            self.pages[at].full.use(self.clock, num_hits, priority)
        if is_end:
            self.expect_end(key, num_hits)

    def expect_end(self, key, num_hits=0):
        """Sequences are expected to continue at `key`, where a node ends now: what they need counts as used."""
        self.ends.add(key)
        path, full = self.path(key), self.pages[key].full
        start = self.floor(self.needed_from(len(path) * self.page_size))
        self.cut_at(key, start)
        for node in self.nodes_of(path):
            if len(node[-1]) - 1 > start:
                for at in node:
                    self.pages[at].window.use(full.access, num_hits, full.priority)
                    self.pages[at].was_needed = True

    def lock(self, key):
        """One more lock; a node begins where its window part does."""
        start = self.floor(self.needed_from(len(key) - 1)) if key else 0
        self.cut_at(key, start)
        self.locks.append((key, start))
        return start

    def loosen(self, key, since, to):
        """A lock's window part shrinks; a node begins where it begins now."""
        self.cut_at(key, self.floor(to))
        self.locks.remove((key, since))
        self.locks.append((key, to))
        loose = [node[-1] for node in self.nodes_of(self.path(key)) if since < len(node[-1]) - 1 <= self.floor(to)]
        for end in loose[-1:]:
            self.join(self.above(end))

    def cut_at(self, key, position):
        """Let a node begin at a position on the way to `key`."""
        if 0 < position < len(key) - 1:
            self.ends.add(key[: 1 + position])

    def is_locked(self, key):
        """Whether a locked prefix goes through `key`."""
        return any(locked[: len(key)] == key for locked, _ in self.locks)

    def num_window_locks(self, key):
        """How many locks need the window side of the page that ends `key`."""
        return sum(locked[: len(key)] == key and len(key) - 1 > since for locked, since in self.locks)

    def nodes_of(self, path):
        """A chain of keys in pieces that end where nodes end."""
        nodes = [[]]
        for key in path:
            nodes[-1].append(key)
            if key in self.ends:
                nodes.append([])
        assert nodes.pop() == [], "the chain ends inside a node"
        return nodes

    def above(self, key):
        """The end of the node above the one that ends at `key`, or None."""
        nodes = self.nodes_of(self.path(key))
        return nodes[-2][-1] if len(nodes) > 1 else None

    def join(self, key):
        """The node that ends at `key` and what alone follows it become one, if they are alike and not too long."""
        following = [k for k in self.pages if key and k[: -self.page_size] == key]
        if len(following) != 1 or any(locked == key for locked, _ in self.locks):
            return
        upper, end = self.nodes_of(self.path(key))[-1], following[0]
        while end not in self.ends:
            (end,) = [k for k in self.pages if k[: -self.page_size] == end]
        lower = self.nodes_of(self.path(end))[-1]
        one, other = self.pages[key], self.pages[end]
        is_alike = (one.is_live, one.was_needed) == (other.is_live, other.was_needed)
        is_alike = is_alike and self.num_window_locks(key) == self.num_window_locks(end)
        if not is_alike or (len(upper) + len(lower)) * self.page_size > self.span * LONGEST_JOIN:
            return
        self.ends.remove(key)
        full, window = one.full.joined(other.full), one.window.joined(other.window)
        for at in (*upper, *lower):
            self.pages[at].full, self.pages[at].window = replace(full), replace(window)

    def nodes(self):
        """Every node as the list of its pages' keys, shortest first."""
        found = []
        for end in self.ends:
            path = self.path(end)
            found.append(self.nodes_of(path)[-1])
        return found

    def evict(self, num_tokens, num_window_tokens):
        """What goes, leaves first, then windows alone; the records follow."""
        freed, num_nodes, freed_windows = 0, 0, 0
        while freed < num_tokens and (leaves := self.leaves()):
            victim = min(leaves, key=self.leaf_rank)
            freed += len(victim) * self.page_size
            freed_windows += sum(self.page_size for key in victim if self.pages[key].is_live)
            num_nodes += 1
            self.drop(victim)
        tombstoned = self.evict_windows(num_window_tokens - freed_windows)
        return Gone(freed, num_nodes, freed_windows + tombstoned, tombstoned)

    def drop(self, node):
        """A node leaves."""
        self.ends.remove(node[-1])
        for key in node:
            del self.pages[key]

    def leaf_rank(self, node):
        """Lower goes first."""
        return self.pages[node[-1]].full.rank(self.policy)

    def leaves(self):
        """The nodes that nothing continues and no lock keeps."""
        parents = {key[: len(key) - self.page_size] for key in self.pages}
        return [node for node in self.nodes() if node[-1] not in parents and not self.is_locked(node[-1])]

    def evict_windows(self, wanted):
        """Windows go in the policy's order, root side first; of a long node no more than is wanted, or a piece."""
        freed, victims = 0, []
        waiting = sorted(self.waiting_windows(), key=self.window_rank)
        while freed < wanted and waiting:
            victims.append(self.bury(waiting.pop(0), wanted - freed))
            freed += len(victims[-1]) * self.page_size
        for node in victims:
            self.join_tombstones(node)
        return freed

    def waiting_windows(self):
        """The live nodes whose windows no lock needs."""
        return [n for n in self.nodes() if self.pages[n[-1]].is_live and not self.num_window_locks(n[-1])]

    def bury(self, node, wanted):
        """The windows of a node, or of its head, die; returns what did."""
        victim = node[: -(-max(wanted, PIECE * self.span) // self.page_size)]
        self.ends.add(victim[-1])
        for key in victim:
            self.pages[key].is_live = self.pages[key].was_needed = False
        return victim

    def join_tombstones(self, node):
        """A node that died becomes one with the dead on either side."""
        if node[-1] in self.ends:
            self.join(self.above(node[-1]))
            self.join(node[-1])

    def window_rank(self, node):
        """Lower goes first."""
        last = self.pages[node[-1]]
        return (last.was_needed, *last.window.rank(self.policy), len(node[-1]))

    def counts(self):
        """Tokens that are (evictable, protected) on the full side, (evictable, protected, dead) on the window's."""
        total = len(self.pages) * self.page_size
        locked = sum(self.page_size for key in self.pages if self.is_locked(key))
        live = [key for key, page in self.pages.items() if page.is_live]
        kept = sum(self.page_size for key in live if self.num_window_locks(key))
        num_live = len(live) * self.page_size
        return (total - locked, locked), (num_live - kept, kept, total - num_live)
