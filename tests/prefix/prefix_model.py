"""The slow, obviously right prefix cache: dictionaries from whole keys, and brute force for every question."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from hypothesis import strategies as st

from kvstead.prefix import Adapter, Namespace, TokenKey

Key = tuple  # (namespace, (token, its keys), ...): a prefix that ends on a page boundary


class Space(NamedTuple):
    """What a request's tokens depend on besides their ids: the keywords of `match` and `insert`."""

    namespace: Namespace
    keys: tuple[TokenKey, ...] = ()

    def pairs(self, tokens):
        """Each token with the keys over it: what must be equal for two tokens to be the same."""
        return [
            (token, frozenset((key.start, key.value) for key in self.keys if _covers(key, position)))
            for position, token in enumerate(tokens.tolist())
        ]

    def key(self, tokens):
        """The model's key of a prefix; the root is of every namespace."""
        return (self.namespace, *self.pairs(tokens)) if tokens.size else ()


def _covers(key, position):
    return key.start <= position and (key.end is None or position < key.end)


def spaces(namespaces):
    """Spaces with few different keys, in front of, inside and across pages, so that many are equal in part."""
    starts, lengths = st.sampled_from([0, 0, 1, 2, 3, 4, 63, 64, 129]), st.sampled_from([1, 2, 3, 5, 64, None, None])
    values = st.sampled_from(["x", "y", Adapter("x", "1"), Adapter("x", "2")])
    key = st.builds(lambda at, size, value: TokenKey(at, size and at + size, value), starts, lengths, values)
    keys = st.one_of(st.just(()), st.just((TokenKey(2, 5, "x"),)), st.lists(key, max_size=3).map(tuple))
    return st.builds(Space, st.sampled_from(namespaces), keys)


@dataclass
class Page:
    """One cached page, named by the whole prefix that ends with it."""

    page: int
    created: int
    access: int
    priority: int
    hits: int = 0
    run: int = 0  # which node of the tree it lies in


@dataclass
class PrefixModel:
    """Every cached page by the prefix that ends with it. Runs (nodes) are split exactly where sequences part."""

    page_size: int
    policy: str
    pages: dict[Key, Page] = field(default_factory=dict)
    pins: dict[Key, int] = field(default_factory=dict)
    clock: int = 0
    num_runs: int = 0

    def prefixes(self, namespace, tokens):
        """All page-aligned prefixes of a key, shortest first."""
        ends = range(self.page_size, len(tokens) + 1, self.page_size)
        return [(namespace, *tokens[:end]) for end in ends]

    def cached(self, namespace, tokens):
        """The prefixes that are cached; they form a chain."""
        return [key for key in self.prefixes(namespace, tokens) if key in self.pages]

    def parent(self, key):
        """The prefix one page shorter."""
        return key[: len(key) - self.page_size]

    def match(self, namespace, tokens):
        """Number of cached leading tokens; a match that ends inside a run parts it there."""
        chain = self.cached(namespace, tokens)
        self.part_after(chain)
        self.use(chain, num_hits=1, priority=None)
        return len(chain) * self.page_size

    def insert(self, namespace, tokens, pages, priority):
        """Number of leading tokens that were cached already."""
        keys = self.prefixes(namespace, tokens)
        chain = self.cached(namespace, tokens)
        self.part_after(chain)
        self.clock += 1
        self.num_runs += 1
        for key, page in list(zip(keys, pages, strict=True))[len(chain) :]:
            self.pages[key] = Page(page, self.clock, self.clock, priority, run=self.num_runs)
        self.clock -= 1
        self.use(keys, num_hits=0, priority=priority)
        return len(chain) * self.page_size

    def use(self, chain, num_hits, priority):
        """One tick of the clock for a whole chain."""
        self.clock += 1
        for key in chain:
            page = self.pages[key]
            page.access = self.clock
            page.hits += num_hits
            if priority is not None:
                page.priority = max(page.priority, priority)

    def part_after(self, chain):
        """Where a run goes on behind the chain's end, its first part becomes a run of its own."""
        if not chain:
            return
        run = self.pages[chain[-1]].run
        if any(key not in chain for key in self.run_keys(run)):
            self.num_runs += 1
            for key in chain:
                if self.pages[key].run == run:
                    self.pages[key].run = self.num_runs

    def run_keys(self, run):
        """The prefixes that end in a run, shortest first."""
        return [key for key, page in self.pages.items() if page.run == run]

    def locked(self, key):
        """Whether a pinned prefix goes through `key`."""
        return any(count and pinned[: len(key)] == key for pinned, count in self.pins.items())

    def leaves(self):
        """The runs that nothing continues and no lock keeps, as lists of keys."""
        parents = {self.parent(key) for key in self.pages}
        ends = [key for key in self.pages if key not in parents]
        return [self.run_keys(self.pages[key].run) for key in ends if not self.locked(key)]

    def rank(self, keys):
        """Lower goes first. All pages of a run share their history."""
        page = self.pages[max(keys, key=len)]
        return {
            "lru": (page.access,),
            "mru": (-page.access,),
            "fifo": (page.created,),
            "filo": (-page.created,),
            "lfu": (page.hits, page.access),
            "slru": (page.hits > 0, page.access),
            "priority": (page.priority, page.access),
        }[self.policy]

    def evict(self, num_tokens):
        """(tokens, runs) that go."""
        freed = runs = 0
        while freed < num_tokens and (leaves := self.leaves()):
            victim = min(leaves, key=self.rank)
            for key in victim:
                del self.pages[key]
            freed += len(victim) * self.page_size
            runs += 1
        return freed, runs

    def protected(self):
        """Tokens on the way to any pin."""
        return sum(self.page_size for key in self.pages if self.locked(key))


def keyed_nodes(root):
    """Every node of a tree but its root, with the whole key that ends there."""
    stack = [(root, ())]
    while stack:
        node, key = stack.pop()
        for name, child in node.children.items():
            space = () if key else (name[0],)
            stack.append((child, (*key, *space, *_pairs_of(child))))
        if node.parent is not None:
            yield key, node


def _pairs_of(node):
    """A node's tokens as `Space.pairs` names them."""
    return [
        (token, frozenset(name for name, stop in node.keys.items() if name[0] <= position < stop))
        for position, token in enumerate(node.tokens.tolist(), start=node.start)
    ]
