"""How a kernel is compiled and loaded, and short names for the numba types in its signature.

A kernel is compiled for one signature, and the machine code is kept on disk. It is loaded when the kernel is first
called, so importing kvstead loads nothing. Arguments of other types raise `TypeError`, as they would be another kernel.

The log (`kvstead`) says once when kernels have to be compiled, and once when their code cannot be kept: then they are
compiled in every process.
"""

from __future__ import annotations

import gc
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache, partial
from pathlib import Path
from typing import Any, TypeVar, cast


@contextmanager
def _collector_off() -> Iterator[None]:
    """Numba makes so many objects that several full collections follow, each of which looks at all of torch's."""
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collects:
            gc.enable()


with _collector_off():
    from numba import njit, types

_log = logging.getLogger("kvstead")

i64 = types.int64
I64 = types.int64[::1]
I32 = types.int32[::1]
U8 = types.uint8[::1]
U64 = types.uint64[::1]

_Function = TypeVar("_Function", bound=Callable[..., Any])


def kernel(signature: object) -> Callable[[_Function], _Function]:
    """Compile for one signature, when first used, and keep the machine code; the GIL is released while it runs."""

    def make(function: _Function) -> _Function:
        settings: dict[str, Any] = {"error_model": "numpy", "nogil": True}
        try:
            compiled: Any = njit(cache=True, **settings)(function)
        except RuntimeError as error:  # no folder for the machine code can be written
            _say_uncached(str(error))
            compiled = njit(**settings)(function)
        if compiled is not function:  # numba leaves it alone under NUMBA_DISABLE_JIT
            load = partial(_load, compiled, signature)
            compiled._compile_for_args = lambda *_args, **_kwargs: load()  # noqa: SLF001 - what numba calls for new types
            compiled.get_call_template = lambda *args: load().get_call_template(*args)
        return cast("_Function", compiled)

    return make


def _load(compiled: Any, signature: object) -> Any:
    """Load a kernel, or compile it, for its signature and for no other; from then on it calls itself."""
    with _collector_off():
        for hook in ("_compile_for_args", "get_call_template"):
            vars(compiled).pop(hook, None)
        if not _is_kept(compiled):
            _say_compiling()
        try:
            compiled.compile(signature)
        except OSError as error:  # it is compiled and works, but cannot be written
            _say_uncached(str(error))
        compiled.disable_compile()
        return compiled


def _is_kept(compiled: Any) -> bool:
    """Whether machine code of the kernel is on disk, as far as numba says where."""
    files = getattr(getattr(compiled, "_cache", None), "_impl", None)
    if files is None:
        return False
    return Path(files.locator.get_cache_path(), f"{files.filename_base}.nbi").exists()


@cache
def _say_compiling() -> None:
    _log.warning("kvstead compiles its kernels for this machine. That takes some seconds, once.")


@cache
def _say_uncached(why: str) -> None:
    _log.warning(
        "kvstead cannot keep compiled kernels (%s) and compiles them in every process. Set NUMBA_CACHE_DIR to a folder "
        "that can be written and has room.",
        why.splitlines()[0],
    )
