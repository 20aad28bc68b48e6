"""Runs one part of the scenarios on one side and prints what it measured as one JSON object.

python benchmarks/side.py kvstead|sglang allocators|windows|unified|pools|tree|window_tree|device|pages|import|replay
"""

from __future__ import annotations

import gc
import json
import platform
import sys
import warnings
from collections.abc import Callable, Iterator
from importlib.metadata import version

import numpy as np
import torch

from allocators import allocator_figures
from device import device_figures
from pools import PAGES, import_seconds, page_figures, pool_figures
from replay import replay_figures
from tree import tree_figures, window_tree_figures
from unified import unified_figures
from windows import window_figures

Figures = Iterator[tuple[str, float]]


def kvstead_parts() -> dict[str, Callable[[], Figures]]:
    from kvstead.pages import FreeList  # noqa: PLC0415
    from side_kvstead import KVSteadSide  # noqa: PLC0415 - each side's interpreter has only its own library
    from side_kvstead_device import KVSteadDeviceSide  # noqa: PLC0415

    side = KVSteadSide()
    names = "KVCacheManager, PagedAllocator, PrefixTree, Scheduler, TokenAllocator"
    return {
        "allocators": lambda: allocator_figures(side),
        "windows": lambda: window_figures(side),
        "unified": lambda: unified_figures(side),
        "pools": lambda: pool_figures(side),
        "tree": lambda: tree_figures(side),
        "window_tree": lambda: window_tree_figures(side),
        "device": lambda: device_figures(KVSteadDeviceSide()),
        "pages": lambda: page_figures(FreeList(PAGES)),
        "import": lambda: iter([("import", import_seconds(names))]),
        "replay": replay_figures,
    }


def sglang_parts() -> dict[str, Callable[[], Figures]]:
    from side_sglang import SGLangDeviceSide, SGLangSide  # noqa: PLC0415 - as above

    side = SGLangSide()
    return {
        "allocators": lambda: allocator_figures(side),
        "windows": lambda: window_figures(side),
        "unified": lambda: unified_figures(side),
        "pools": lambda: pool_figures(side),
        "tree": lambda: tree_figures(side),
        "window_tree": lambda: window_tree_figures(side),
        "device": lambda: device_figures(SGLangDeviceSide()),
    }


def versions(*packages: str) -> dict[str, str]:
    found = {"python": platform.python_version(), "torch": torch.__version__, "numpy": np.__version__}
    return found | {package: version(package) for package in packages}


def main(library: str, part: str) -> None:
    warnings.simplefilter("ignore")
    if library == "kvstead":
        parts, found = kvstead_parts(), versions("numba")
    else:
        parts, found = sglang_parts(), versions("sglang")
    gc.freeze()  # what has been imported need not be searched before every scenario
    print(json.dumps({"versions": found, "figures": dict(parts[part]())}))
    gc.unfreeze()


if __name__ == "__main__":
    main(*sys.argv[1:])
