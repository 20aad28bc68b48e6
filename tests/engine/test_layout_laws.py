"""Laws that hold between the ways to share a memory, on any stream of requests."""

import re

import numpy as np
import pytest

from kvstead.engine import KVCacheManager
from kvstead.errors import LayoutError
from kvstead.pages.amounts import FULL, WINDOW, Amounts
from tiny_model import tiny_layout, tiny_state_layout, tiny_window_layout

LAYOUTS = {
    "full": tiny_layout(),
    "full window": tiny_window_layout(5),
    "full state": tiny_state_layout(),
    "full window state": tiny_state_layout(3, state_rows=7),
    "full chunk state": tiny_state_layout(6, chunked=True, state_rows=1),
}
POOL_LAYOUTS = ["static", "padded", "unified", "ideal"]
KINDS = pytest.mark.parametrize("kind", LAYOUTS)


def managers(layout, num_bytes, page_size, **options):
    """One of every way to lay out so many bytes, without storage; those that are too small for it are left out."""
    options = {"max_requests": 12, "max_length": 256, "storage": False, **options}
    made = {}
    for pool_layout in POOL_LAYOUTS:
        try:
            made[pool_layout] = KVCacheManager(
                layout, num_bytes, pool_layout=pool_layout, page_size=page_size, **options
            )
        except LayoutError:
            assert pool_layout != "ideal" or num_bytes < 4000
    return made


def check_bytes(manager):
    """Bytes by state add up, none is negative, and sides of their own add up to the whole."""
    stats = manager.stats()
    assert sum(stats.by_state.values()) == stats.total_bytes == manager.total_bytes
    assert min(stats.by_state.values()) >= 0
    for side in stats.by_side.values():
        assert sum(side.by_state.values()) == side.total_bytes
        assert min(side.by_state.values()) >= 0
    assert manager.chain is not None or sum(side.total_bytes for side in stats.by_side.values()) == stats.total_bytes


@KINDS
@pytest.mark.parametrize("page_size", [1, 4])
def test_what_any_layout_grants_the_ideal_one_would_have(kind, page_size):
    """With the same history and bytes, `ideal` has capacity whenever another has; all bytes add up after each call."""
    num_refused = 0
    for seed in range(3):
        rng = np.random.default_rng([seed, page_size])
        num_bytes = int(rng.integers(2000, 9000))
        for name, manager in managers(LAYOUTS[kind], num_bytes, page_size, prefix_cache=False).items():
            if name == "ideal":
                continue
            ideal = managers(LAYOUTS[kind], num_bytes, manager.page_size, prefix_cache=False)["ideal"]
            rows = {}
            for _ in range(100):
                is_new = not rows or rng.random() < 0.25
                if is_new:
                    tokens = rng.integers(0, 5, rng.integers(1, 60))
                    lease = manager.match(tokens)
                    if lease is None:
                        num_refused += 1
                    else:
                        twin = ideal.match(tokens)
                        assert twin is not None, f"{name} has capacity for a state, ideal has not"
                        rows[lease.row] = twin.row
                elif rng.random() < 0.12:
                    row = list(rows)[rng.integers(len(rows))]
                    manager.finish(row)
                    ideal.finish(rows.pop(row))
                else:
                    row = list(rows)[rng.integers(len(rows))]
                    end = int(manager.table.lengths[row] + rng.integers(1, 20))
                    if end < 250:
                        manager.append(row, [1] * max(0, end - int(manager.num_tokens[row])))
                        ideal.append(rows[row], [1] * max(0, end - int(ideal.num_tokens[rows[row]])))
                        if manager.extend([row], [end]) is None:
                            num_refused += 1
                        else:
                            assert ideal.extend([rows[row]], [end]) is not None, f"{name} has capacity, ideal has not"
                            for each, at in ((manager, row), (ideal, rows[row])):
                                each.commit([at], [end], [1])
                check_bytes(manager)
                check_bytes(ideal)
            for each in (manager, ideal):
                each.audit()
    assert num_refused > 0


@KINDS
@pytest.mark.parametrize("page_size", [1, 4])
def test_arena_refuses_only_what_no_placement_has_room_for(kind, page_size):
    """A unified memory says no exactly where its chain could not with everything evictable gone; all counts agree."""
    for seed in range(3):
        rng = np.random.default_rng([seed, page_size])
        num_bytes = int(rng.integers(2500, 5000))
        manager = managers(LAYOUTS[kind], num_bytes, page_size, state_interval=4, eager=bool(seed % 2))["unified"]
        tree, rows, num_refused = manager.tree, [], 0
        for _ in range(150):
            choice = rng.random()
            if not rows or choice < 0.3:
                lease = manager.match(rng.integers(0, 2, rng.integers(1, 60)))
                rows += [] if lease is None else [lease.row]
            elif choice < 0.4:
                manager.finish(rows.pop(rng.integers(len(rows))))
            else:
                row = rows[rng.integers(len(rows))]
                end = min(int(manager.table.lengths[row] + rng.integers(1, 30)), 250)
                end = manager.chunk_end(row, end) if end > manager.table.lengths[row] else end
                manager.append(row, rng.integers(0, 2, max(0, end - int(manager.num_tokens[row]))))
                num_pages = manager.pages(end) - manager.pages(int(manager.table.lengths[row]))
                if manager.extend([row], [end]) is None:
                    num_refused += 1
                    want = {FULL: num_pages, WINDOW: num_pages}
                    want = {name: count for name, count in want.items() if name in manager.chain.pools}
                    assert not manager.chain.fits(want, without=tree.evictable())
                    assert manager.row_states is None or manager.row_states.num_kept == 0
                else:
                    manager.commit([row], [end], [0])
                    manager.checkpoint(np.array([row]))
            check_bytes(manager)
        manager.audit()
        assert num_refused > 0
        for row in rows:
            manager.abort(row)
        assert manager.flush()
        check_bytes(manager)


@KINDS
@pytest.mark.parametrize("page_size", [1, 4, 16])
def test_memory_that_is_named_as_enough_is_enough(kind, page_size):
    """A memory can be made of the bytes that a refusal names as enough for a page of each kind."""
    layout = LAYOUTS[kind]
    for pool_layout in ("unified", "padded", "ideal"):
        options = {"page_size": page_size, "pool_layout": pool_layout, "storage": False, "max_length": 64}
        for num_bytes in (0, *range(1, 3000, 197)):
            try:
                manager = KVCacheManager(layout, num_bytes, **options)
            except LayoutError as error:
                enough = re.search(r"([\d,]+) are enough", str(error))
                KVCacheManager(layout, int(enough[1].replace(",", "")), **options)
            else:
                least = Amounts(dict.fromkeys(manager.plan.sides, 1))
                assert manager.capacity.holds(least)
                assert manager.capacity.has(least)
