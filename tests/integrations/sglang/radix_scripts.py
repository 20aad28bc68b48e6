"""Random legal scripts for prefix caches, run on several at once; each answer must be the same on all."""

from __future__ import annotations

import random
from array import array
from dataclasses import dataclass

import torch

from prefix.prefix_model import PrefixModel

SIZE = 96  # slots: less than the scripts would keep, so that evictions are needed
NAMESPACES = [(None, None), ("adapter", None), (None, "tenant"), ("adapter", "tenant")]


@dataclass
class CacheSide:
    """A prefix cache with SGLang's methods, over an allocator with SGLang's methods."""

    cache: object
    allocator: object
    types: object  # the module of its parameter types
    key_type: object

    def key(self, tokens, namespace):
        """A key of its own kind."""
        return self.key_type(array("q", tokens), extra_key=namespace[0], cache_salt=namespace[1])

    def match(self, tokens, namespace):
        """(tokens found, the node)."""
        found = self.cache.match_prefix(self.types.MatchPrefixParams(key=self.key(tokens, namespace)))
        slots = self.cache.path_device_indices(found.last_device_node)
        assert len(slots) == found.device_prefix_len
        assert len(set(slots.tolist())) == len(slots)
        return found.device_prefix_len, found.last_device_node

    def insert(self, tokens, namespace, priority):
        """Leading tokens that were cached before; None when short. All slots that the cache does not take are freed."""
        page_size = self.cache.page_size
        row = self.allocator.alloc(-(-len(tokens) // page_size) * page_size)
        if row is None:
            return None
        params = self.types.InsertParams(key=self.key(tokens, namespace), value=row[: len(tokens)], priority=priority)
        shared = self.cache.insert(params).prefix_len
        whole = len(tokens) - len(tokens) % page_size
        self.allocator.free_segment(row[:shared], start_pos=0)
        self.allocator.free_segment(row[whole:], start_pos=whole)
        return shared

    def lock(self, tokens, namespace):
        """(tokens found, what unlocks them, by how many tokens fewer can be evicted)."""
        length, node = self.match(tokens, namespace)
        return length, node, self.cache.inc_lock_ref(node).delta

    def unlock(self, node):
        """By how many tokens more can be evicted."""
        return self.cache.dec_lock_ref(node).delta

    def evict(self, num_tokens):
        """Tokens that came back."""
        return self.cache.evict(self.types.EvictParams(num_tokens=num_tokens)).num_tokens_evicted

    def figures(self):
        """(available, evictable, protected, cached in all)."""
        sizes = self.cache.evictable_size(), self.cache.protected_size(), self.cache.total_size()
        return (self.allocator.available_size(), *sizes)


class ModelSide:
    """The slow model, used as a cache."""

    def __init__(self, page_size, policy):
        self.model = PrefixModel(page_size, policy)
        self.available = SIZE

    def match(self, tokens, namespace):
        """(tokens found, the prefix itself)."""
        length = self.model.match(namespace, tuple(tokens))
        return length, (namespace, *tokens[:length])

    def insert(self, tokens, namespace, priority):
        """As the cache side; the numbers of pages say nothing here."""
        num_pages = len(tokens) // self.model.page_size
        if -(-len(tokens) // self.model.page_size) * self.model.page_size > self.available:
            return None
        shared = self.model.insert(namespace, tuple(tokens), [0] * num_pages, priority)
        self.available -= num_pages * self.model.page_size - shared
        return shared

    def lock(self, tokens, namespace):
        """A pin, and what it keeps that was free to go."""
        length, prefix = self.match(tokens, namespace)
        before = self.model.protected()
        if length:
            self.model.pins[prefix] = self.model.pins.get(prefix, 0) + 1
        return length, prefix, before - self.model.protected()

    def unlock(self, prefix):
        """Take a pin away."""
        before = self.model.protected()
        if len(prefix) > 1:
            self.model.pins[prefix] -= 1
        return before - self.model.protected()

    def evict(self, num_tokens):
        """The lowest run, again and again."""
        gone, _ = self.model.evict(num_tokens)
        self.available += gone
        return gone

    def figures(self):
        """As the cache side."""
        total, protected = len(self.model.pages) * self.model.page_size, self.model.protected()
        return self.available, total - protected, protected, total


def same(answers):
    """The one answer that all sides gave."""
    assert len(set(answers)) == 1, f"the sides differ: {answers}"
    return answers[0]


def one_key(rng, page_size):
    """A key that parts from others anywhere."""
    return [[rng.randrange(2) for _ in range(rng.randrange(1, 6 * page_size + 4))]]


def key_by_nodes(rng, page_size):
    """All beginnings of a key that parts from others only where a stretch of two pages ends."""
    step = 2 * page_size
    tokens = [chunk for chunk in [rng.randrange(3) for _ in range(rng.randrange(1, 5))] for _ in range(step)]
    return [tokens[:end] for end in range(step, len(tokens) + 1, step)]


def run_script(sides, page_size, seed):
    """Match, insert, lock, unlock and evict at random, and compare lengths, changes and all figures at every step."""
    play(sides, page_size, seed, one_key, lambda rng: rng.randrange(1, 4 * page_size))


def run_script_of_whole_evictions(sides, page_size, seed):
    """The same, but an eviction takes all that it may, in any order."""
    play(sides, page_size, seed, one_key, lambda _: SIZE)


def run_script_of_whole_nodes(sides, page_size, seed):
    """The same, on keys that never part inside a node: every stretch is inserted before the next."""
    play(sides, page_size, seed, key_by_nodes, lambda rng: rng.randrange(1, 4 * page_size))


def play(sides, page_size, seed, make_keys, how_much):
    """A script of random operations. make_keys: what an insertion inserts; the rest is about the last of it."""
    rng = random.Random(seed)
    locks = []
    for _ in range(120):
        keys = make_keys(rng, page_size)
        tokens = keys[-1]
        namespace = rng.choice(NAMESPACES[: rng.choice((1, 4))])
        kind = rng.choices(("match", "insert", "lock", "unlock", "evict"), (2, 4, 2, 2, 1))[0]
        if kind == "match":
            same([side.match(tokens, namespace)[0] for side in sides])
        elif kind == "insert":
            priority = rng.randrange(3)
            for key in keys:
                same([side.insert(key, namespace, priority) for side in sides])
        elif kind == "lock":
            results = [side.lock(tokens, namespace) for side in sides]
            same([(length, delta) for length, _, delta in results])
            locks.append([handle for _, handle, _ in results])
        elif kind == "unlock" and locks:
            handles = locks.pop(rng.randrange(len(locks)))
            same([side.unlock(handle) for side, handle in zip(sides, handles, strict=True)])
        elif kind == "evict":
            num_tokens = how_much(rng)
            same([side.evict(num_tokens) for side in sides])
        same([side.figures() for side in sides])
    for handles in locks:
        same([side.unlock(handle) for side, handle in zip(sides, handles, strict=True)])
    same([side.evict(SIZE) for side in sides])
    assert same([side.figures() for side in sides]) == (SIZE // page_size * page_size, 0, 0, 0)


@dataclass
class Params:
    """What a cache is made of, in SGLang's words."""

    token_to_kv_pool_allocator: object
    page_size: int
    eviction_policy: str = "lru"
    req_to_token_pool: object = None
    disable: bool = False
    is_eagle: bool = False
    eviction_policy_config: object = None
    enable_kv_cache_events: bool = False


class Table:
    """A table of rows, as `ReqToTokenPool` has it."""

    def __init__(self, num_rows, width):
        self.req_to_token = torch.zeros((num_rows + 1, width), dtype=torch.int32)

    def write(self, indices, values):
        """Plain assignment."""
        self.req_to_token[indices] = values.to(torch.int32)
