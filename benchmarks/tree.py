"""Scenarios of the prefix tree.

A prompt is 512 tokens, page size 64. Its first half is one of N/4 prefixes, shared by four prompts each and all of them
cached; the second half is its own. A measured prompt is a fresh one: its first half is found, its second is new. The
trees with windows hold the window side of everything until it is evicted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from statistics import median

import numpy as np

from sides import Call, Tree, TreeSide, WindowTreeSide
from timing import collector_off, microseconds

PAGE = 64
HALF = 256
EVICTED = 8192
FRESH = 400
SPAN = 128  # tokens of a window
VOCABULARY = 128_000


def tree_figures(side: TreeSide) -> Iterator[tuple[str, float]]:
    """Name and microseconds of every scenario, for every kind of tree the side has."""
    for name in side.names:
        for thousands in (10, 100):
            tree = side.tree(name, pool_size(thousands * 1000), PAGE)
            for operation, spent in measure(tree, thousands * 1000).items():
                yield f"tree {operation} {thousands}k{'' if name == side.names[0] else f' {name}'}", spent


def window_tree_figures(side: WindowTreeSide) -> Iterator[tuple[str, float]]:
    """The same for trees with windows, and the eviction of the window side alone."""
    for thousands in (10, 100):
        tree = side.window_tree(pool_size(thousands * 1000), PAGE, SPAN)
        figures = measure(tree, thousands * 1000)
        figures["evict windows"] = evictions(tree.evict_windows_call, tree.window_available_size)
        for operation, spent in figures.items():
            yield f"window tree {operation} {thousands}k", spent


def pool_size(num_prompts: int) -> int:
    """Slots of what is cached, of the fresh prompts, and of one more of them in hand."""
    return (num_prompts // 4 + num_prompts + FRESH + 1) * HALF


def measure(tree: Tree, num_prompts: int) -> dict[str, float]:
    """Medians over fresh prompts, and over evictions that follow them."""
    rng = np.random.default_rng(7)
    prefixes = rng.integers(0, VOCABULARY, (num_prompts // 4, HALF))
    fill(tree, prefixes, num_prompts, rng)
    with collector_off():
        matches, inserts = zip(*[fresh(tree, prefixes, rng) for _ in range(FRESH)], strict=True)
    skip = FRESH // 10
    evicted_in = evictions(tree.evict_call, tree.available_size)
    return {"match": median(matches[skip:]), "insert": median(inserts[skip:]), "evict": evicted_in}


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


def evictions(evict_call: Callable[[int], Call], available_size: Callable[[], int]) -> float:
    """The median of giving a long prompt's worth of tokens back to the pool, the first time not counted."""
    with collector_off():
        return median([evict(evict_call, available_size) for _ in range(9)][1:])


def evict(evict_call: Callable[[int], Call], available_size: Callable[[], int]) -> float:
    before = available_size()
    spent = microseconds(evict_call(EVICTED))
    assert available_size() >= before + EVICTED, "eviction gives back what was asked for"
    return spent
