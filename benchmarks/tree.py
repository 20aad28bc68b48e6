"""Scenarios of the prefix tree.

A prompt is 512 tokens, page size 64. Its first half is one of N/4 prefixes, shared by four prompts each and all of them
cached; the second half is its own. A measured prompt is a fresh one: its first half is found, its second is new.
"""

from __future__ import annotations

from collections.abc import Iterator
from statistics import median

import numpy as np

from sides import Tree, TreeSide
from timing import collector_off, microseconds

PAGE = 64
HALF = 256
EVICTED = 8192
FRESH = 400
VOCABULARY = 128_000


def tree_figures(side: TreeSide) -> Iterator[tuple[str, float]]:
    """Name and microseconds of every scenario, for every kind of tree the side has."""
    for name in side.names:
        for thousands in (10, 100):
            num_prompts = thousands * 1000
            for operation, spent in measure(side, name, num_prompts).items():
                yield f"tree {operation} {thousands}k{'' if name == side.names[0] else f' {name}'}", spent


def measure(side: TreeSide, name: str, num_prompts: int) -> dict[str, float]:
    """Medians over fresh prompts, and over evictions that follow them."""
    num_prefixes = num_prompts // 4
    # What is cached, the fresh prompts, and one more of them in hand.
    size = (num_prefixes + num_prompts + FRESH + 1) * HALF
    tree = side.tree(name, size, PAGE)
    rng = np.random.default_rng(7)
    prefixes = rng.integers(0, VOCABULARY, (num_prefixes, HALF))
    fill(tree, prefixes, num_prompts, rng)
    with collector_off():
        matches, inserts = zip(*[fresh(tree, prefixes, rng) for _ in range(FRESH)], strict=True)
        evictions = [evict(tree) for _ in range(9)]
    skip = FRESH // 10
    return {"match": median(matches[skip:]), "insert": median(inserts[skip:]), "evict": median(evictions[1:])}


def fill(tree: Tree, prefixes: np.ndarray, num_prompts: int, rng: np.random.Generator) -> None:
    """Cache the prefixes, then the prompts that begin with them."""
    rows = []
    for prefix in prefixes:
        rows.append(tree.alloc(HALF))
        tree.insert_call(tree.key(prefix), rows[-1], 0)()
    for number in range(num_prompts):
        which = number % len(prefixes)
        tokens = np.concatenate((prefixes[which], rng.integers(0, VOCABULARY, HALF)))
        tree.insert_call(tree.key(tokens), tree.row(rows[which], tree.alloc(HALF)), HALF)()


def fresh(tree: Tree, prefixes: np.ndarray, rng: np.random.Generator) -> tuple[float, float]:
    """Match and insert one prompt whose first half is cached."""
    tokens = np.concatenate((prefixes[rng.integers(len(prefixes))], rng.integers(0, VOCABULARY, HALF)))
    key = tree.key(tokens)
    found: list[object] = []
    match = tree.match_call(key)
    matched_in = microseconds(lambda: found.append(match()))
    assert tree.num_matched(found[0]) == HALF, "the first half of a measured prompt is cached"
    row = tree.row(tree.shared_slots(found[0]), tree.alloc(HALF))
    return matched_in, microseconds(tree.insert_call(key, row, HALF))


def evict(tree: Tree) -> float:
    """Give a long prompt's worth of tokens back to the pool."""
    before = tree.available_size()
    spent = microseconds(tree.evict_call(EVICTED))
    assert tree.available_size() >= before + EVICTED, "eviction gives back what was asked for"
    return spent
