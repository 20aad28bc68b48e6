"""What SGLang is and does in a process in which its plugins have been loaded: prints it as JSON.

Run by itself, with KVSTEAD_SGLANG set: replaced classes stay replaced for the life of a process.
"""

import importlib
import json
import logging
import os
import random
import sys
import warnings
from importlib.metadata import EntryPoint
from pathlib import Path

sys.path.append(str(Path(__file__).parents[3] / "benchmarks"))
warnings.simplefilter("ignore")
side_sglang = importlib.import_module("side_sglang")  # imports SGLang's allocators, before the plugin has run

import numpy as np  # noqa: E402
import torch  # noqa: E402
from sglang.srt import plugins  # noqa: E402
from sglang.srt.mem_cache import memory_pool  # noqa: E402
from sglang.srt.mem_cache.allocator import swa  # noqa: E402

from kvstead.integrations.sglang import coverage, replacing  # noqa: E402

PAGE_SIZE = 4


def home(name):
    """Where a class that SGLang's modules name comes from."""
    seat = next(seat for seat in coverage.SEATS if seat.name == name)
    module = importlib.import_module(seat.theirs.rpartition(".")[0])
    return getattr(module, name).__module__.partition(".")[0]


def prompts(count):
    """Prompts that share beginnings."""
    rng = random.Random(1)
    for _ in range(count):
        yield np.array([rng.randrange(2) for _ in range(rng.randint(1, 8) * PAGE_SIZE)])


def tree_life(tree):
    """What SGLang's cache has matched and has available, prompt by prompt."""
    seen = []
    for prompt in prompts(60):
        key = tree.key(prompt)
        found = tree.match_call(key)()
        matched = tree.num_matched(found)
        missing = len(prompt) - matched
        if missing > min(tree.available_size(), getattr(tree, "window_available_size", tree.available_size)()):
            tree.evict_call(len(prompt))()
            continue
        tree.insert_call(key, tree.row(tree.shared_slots(found), tree.alloc(missing)), matched)()
        seen.append((matched, tree.available_size()))
    return seen


def trees():
    """SGLang's radix cache on one pool and on two sides."""
    pool = side_sglang._paged(40 * PAGE_SIZE, PAGE_SIZE)
    sides = side_sglang.window_pool(40 * PAGE_SIZE, 40 * PAGE_SIZE, PAGE_SIZE)
    plain = side_sglang.SGLangTree(pool, side_sglang._cache("python", pool, PAGE_SIZE))
    windowed = side_sglang.SGLangWindowTree(sides, side_sglang.window_cache("python", sides, PAGE_SIZE, 8))
    return [tree_life(plain), tree_life(windowed)]


def rows():
    """Rows of requests, some of which go."""
    table = memory_pool.ReqToTokenPool(6, 16, "cpu", enable_memory_saver=False)
    taken = table.alloc_rows(4)
    table.write((taken[0], slice(0, 2)), torch.tensor([5, 6], dtype=torch.int32))
    table.free_rows(taken[1:3])
    kept = table.req_to_token[taken[0], :2].tolist()
    return [len(set(taken)), table.available_size(), kept, int(table.req_generation.sum())]


def late_bases():
    """Where the bases of subclasses come from that are imported now, and what their objects pass for."""
    tree = importlib.import_module("sglang.srt.mem_cache.pure_swa_radix_cache").PureSWARadixCache
    mine = type("Tree", (importlib.import_module("sglang.srt.mem_cache.radix_cache").RadixCache,), {})
    pool = type("Pool", (swa.SWATokenToKVPoolAllocator,), {"__module__": "somebody.elses"})
    return [base.__module__.partition(".")[0] for cls in (tree, mine, pool) for base in cls.__bases__]


def main():
    """Load the plugin as SGLang would, then look."""
    plugins.entry_points = lambda group: [
        EntryPoint("kvstead", "kvstead.integrations.sglang.plugin:register", group) for _ in [0] if "plugins" in group
    ]
    logging.basicConfig(level=logging.INFO, stream=sys.stderr, format="%(name)s: %(message)s")
    plugins.load_plugins()
    if os.environ["KVSTEAD_SGLANG"] != "off":  # a scheduler of SGLang's does this when it is made
        replacing.replace_classes(strict=os.environ["KVSTEAD_SGLANG"] == "strict")
    found = {
        "homes": {seat.name: home(seat.name) for seat in coverage.SEATS},
        "early": [side_sglang.PagedTokenToKVPoolAllocator.__module__, swa.TokenToKVPoolAllocator.__module__],
        "states": memory_pool.MambaSlotAllocator.__module__,
        "late": late_bases(),
        "trees": trees(),
        "rows": rows(),
    }
    if "sglang" in found["homes"].values():
        found["faults"] = [(finding.seat.name, finding.fault) for finding in coverage.examine().faults]
    sys.stdout.write(json.dumps(found) + "\n")


if __name__ == "__main__":
    main()
