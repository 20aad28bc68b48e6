"""SGLang's own allocators, followed by kvstead's audit through random calls and through planted faults: prints JSON.

Run by itself: classes that are followed stay so for the life of a process.
"""

import importlib
import json
import logging
import random
import sys
import warnings
from pathlib import Path

sys.path.append(str(Path(__file__).parents[3] / "benchmarks"))
warnings.simplefilter("ignore")
logging.disable(logging.CRITICAL)
side_sglang = importlib.import_module("side_sglang")  # imports SGLang's allocators

import torch  # noqa: E402
from sglang.srt.mem_cache.allocator.mamba import MambaSlotAllocator  # noqa: E402
from sglang.srt.mem_cache.allocator.paged import PagedTokenToKVPoolAllocator  # noqa: E402
from sglang.srt.mem_cache.allocator.token import TokenToKVPoolAllocator  # noqa: E402

from kvstead.integrations.sglang import auditing  # noqa: E402

PAGE_SIZE = 4


def rows_of(pool, rng, steps):
    """Take and free rows of whole pages, some of them in groups."""
    rows = []
    for _ in range(steps):
        if rng.random() < 1 / 2 and (row := pool.alloc(rng.randrange(1, 4) * PAGE_SIZE)) is not None:
            rows.append(row)
        rng.shuffle(rows)
        going = [rows.pop() for _ in range(min(len(rows), rng.randrange(3)))]
        is_grouped = rng.random() < 1 / 2
        if is_grouped:
            pool.free_group_begin()
        for row in going:
            if rng.random() < 1 / 2:
                pool.free(row)
            else:
                pool.free_segment(row, start_pos=0)
        if is_grouped:
            pool.free_group_end()


def grown(pool):
    """A row that is extended and decoded, and freed."""
    lengths = torch.tensor([6]), torch.tensor([7])
    none = torch.tensor([0])
    slots = pool.alloc_extend(none, none, lengths[0], lengths[0], torch.tensor([-1]), 6)
    last = pool.alloc_decode(lengths[1], lengths[1], slots[-1:])
    pool.free(torch.cat([slots, last]))


def paged():
    """A pool of pages."""
    return PagedTokenToKVPoolAllocator(40 * PAGE_SIZE, PAGE_SIZE, torch.float16, "cpu", None, need_sort=False)


def faults(audit, plant):
    """What is said first about a new pool in which something goes wrong."""
    pool = paged()
    plant(pool, pool.alloc(8))
    pool.alloc(4)
    return audit.pools[pool].first_fault


def main():
    """Follow legal calls on every kind of pool, then one fault of each kind."""
    audit = auditing.start()
    rng = random.Random(1)
    pools = [
        paged(),
        PagedTokenToKVPoolAllocator(40 * PAGE_SIZE, PAGE_SIZE, torch.float16, "cpu", None, need_sort=True),
        TokenToKVPoolAllocator(90, torch.float16, "cpu", None, need_sort=False),
        side_sglang.window_pool(40 * PAGE_SIZE, 40 * PAGE_SIZE, 1),
    ]
    for pool in pools:
        rows_of(pool, rng, 200)
        if pool.page_size > 1:
            grown(pool)
    grown(side_sglang.window_pool(40 * PAGE_SIZE, 40 * PAGE_SIZE, PAGE_SIZE))
    states = MambaSlotAllocator(6, "cpu")
    states.alloc_group_begin(3)
    states.free(states.alloc(1))
    states.alloc_group_end()
    found = {
        "followed": len(audit.pools),
        "legal": audit.facts()["first_faults"],
        "twice": faults(audit, lambda pool, row: (pool.free(row), pool.free(row))),
        "segment": faults(audit, lambda pool, row: (pool.free(row), pool.free_segment(row, start_pos=0))),
        "padding": faults(audit, lambda pool, _row: pool.free(torch.tensor([0]))),
        "written": faults(audit, lambda pool, _row: setattr(pool, "free_pages", pool.free_pages[1:])),
    }
    sys.stdout.write(json.dumps(found) + "\n")


if __name__ == "__main__":
    main()
