"""SGLang's memory classes on kvstead's allocators, under SGLang's names and signatures.

Names are resolved when first used, and none of them needs SGLang.
"""

from importlib import import_module
from typing import Any

from kvstead.integrations.sglang.coverage import SEATS

_HOMES = {seat.name: seat.ours.rpartition(".")[0] for seat in SEATS}
_HOMES["RadixCache"] = f"{__name__}.radix_cache"  # what stands in SGLang's module derives from a class of SGLang's too

__all__ = list(_HOMES)


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOMES])
