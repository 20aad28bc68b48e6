"""Follows SGLang's own allocators call by call, and reports the first wrong free, leak or divergence.

SGLang's classes stay as they are. Every call that takes or frees pages of a pool is repeated on a `PageShadow`, which
knows who took each page, where and when. What the pool says is available is compared with the shadow after each call,
and what SGLang's own checks report at idle comes with those who hold the pages.

Slots are copied to the host to be looked at, which waits for a device: this is for finding a fault, not for speed.
"""

from __future__ import annotations

import functools
import logging
import sys
from collections.abc import Callable, Sequence
from types import FrameType
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np

from kvstead.integrations.sglang.page_shadow import Holder, PageShadow
from kvstead.kernels.array_types import IntArray
from kvstead.kernels.arrays import to_host

_ALLOCATORS = "sglang.srt.mem_cache.allocator."
_SCHEDULER = "sglang.srt.managers.scheduler"
_CHECKER = "sglang.srt.managers.scheduler_components.invariant_checker"
_FRAMES_SAID = 3  # frames of a call site that are named
_FRAMES_SEARCHED = 8  # frames in which a request is looked for
_LARGEST = 10  # holders that are named

_log = logging.getLogger("kvstead.sglang")


class FollowedPool:
    """The shadow of one pool of SGLang's, an instance of one of its allocators of a single list of pages."""

    def __init__(self, pool: Any, page_size: int) -> None:
        self.page_size = page_size
        self.name = f"{type(pool).__name__} of {pool.size} slots"
        self.num_faults = 0
        self.first_fault = ""
        self.is_nested = False
        self.shadow = PageShadow(pool.size // page_size)

    def took(self, slots: Any, owners: Sequence[str], site: str) -> None:
        """Note slots that the pool has handed out; only those that open a page count."""
        slots = to_host(slots)
        opening = slots % self.page_size == 0
        owners = [owner for owner, opens in zip(owners, opening, strict=True) if opens] if len(owners) > 1 else owners
        if opening.any():
            self._note(self.shadow.take(slots[opening] // self.page_size, owners or [""], site))

    def freed(self, pages: IntArray, site: str, *, is_grouped: bool) -> None:
        """Note pages that the pool was given back."""
        if pages.size:
            self._note(self.shadow.free(pages, site, is_grouped=is_grouped))

    def compare(self, num_available: int, site: str) -> None:
        """Compare what the pool says is available with the shadow, as long as no fault explains a difference."""
        expected = self.shadow.num_free * self.page_size
        if num_available != expected and not self.num_faults:
            self._note(
                f"{num_available} slots are available where the calls so far leave {expected}: somebody changed the "
                f"pool's lists without a call, before {site}"
            )

    def _note(self, fault: str) -> None:
        if not fault:
            return
        self.num_faults += 1
        if self.num_faults == 1:
            self.first_fault = f"{self.name}: {fault}"
            _log.error("kvstead audit: %s. Further faults of this pool are counted only.", self.first_fault)


class Audit:
    """The pools of a process that are followed. `hook` makes SGLang's classes tell about their calls."""

    def __init__(self) -> None:
        self.pools: WeakKeyDictionary[Any, FollowedPool] = WeakKeyDictionary()

    def hook(self) -> None:
        """Follow SGLang's pools from now on, those that exist from their next `clear`."""
        from sglang.srt.mem_cache.allocator import mamba, paged, token

        for cls in (token.TokenToKVPoolAllocator, paged.PagedTokenToKVPoolAllocator):
            for name, follow in _FOLLOWED.items():
                self._wrap(cls, name, follow)
        for name, follow in _FOLLOWED_STATES.items():
            self._wrap(mamba.MambaSlotAllocator, name, follow)

    def explain(self, checker: Any) -> str:
        """Who holds pages that no prefix cache has, pool by pool, in words; for a report of a leak."""
        lines = []
        for pool, followed in list(self.pools.items()):
            cached = _cached_pages(checker, pool, followed.page_size)
            if holders := followed.shadow.holders(cached):
                lines.append(followed.name + (":" if cached is None else ", besides what is cached:"))
                lines += [_line(holder) for holder in holders[:_LARGEST]]
        lines += [f"first fault: {followed.first_fault}" for followed in self.pools.values() if followed.first_fault]
        return "\n".join(lines)

    def facts(self) -> dict[str, Any]:
        """What `/server_info` shows of the audit."""
        followed = list(self.pools.values())
        return {
            "pools": [pool.name for pool in followed],
            "num_faults": sum(pool.num_faults for pool in followed),
            "first_faults": [pool.first_fault for pool in followed if pool.first_fault],
        }

    def _wrap(self, cls: Any, name: str, follow: Callable[..., None]) -> None:
        original = getattr(cls, name, None)
        if original is None:
            return

        @functools.wraps(original)
        def call(pool: Any, *args: Any, **kwargs: Any) -> Any:
            followed = self.pools.get(pool)
            if followed is not None and followed.is_nested:
                return original(pool, *args, **kwargs)
            if followed is None:
                if name != "clear":
                    return original(pool, *args, **kwargs)
                followed = self.pools[pool] = FollowedPool(pool, getattr(pool, "page_size", 1))
            followed.is_nested = True
            try:
                answer = original(pool, *args, **kwargs)
            finally:
                followed.is_nested = False
            frames = _callers()
            site = _site(frames)
            follow(pool, followed, answer, frames, site, *args, **kwargs)
            if getattr(pool, "free_group", None) is None:
                followed.compare(pool.available_size(), site)
            return answer

        setattr(cls, name, call)


def _took(
    _pool: Any, followed: FollowedPool, answer: Any, frames: list[FrameType], site: str, *_: Any, **__: Any
) -> None:
    if answer is not None and answer.numel():
        followed.took(answer, _owners(frames, answer.numel()), site)


def _freed(
    pool: Any, followed: FollowedPool, _answer: Any, _frames: list[FrameType], site: str, slots: Any, **_: Any
) -> None:
    pages = np.unique(to_host(slots) // followed.page_size) if followed.page_size > 1 else to_host(slots)
    followed.freed(pages, site, is_grouped=getattr(pool, "free_group", None) is not None)


def _freed_pages(
    pool: Any, followed: FollowedPool, _answer: Any, _frames: list[FrameType], site: str, page_ids: Any
) -> None:
    followed.freed(to_host(page_ids), site, is_grouped=pool.free_group is not None)


def _ended_group(_pool: Any, followed: FollowedPool, *_: Any) -> None:
    followed.shadow.end_group()


def _cleared(pool: Any, followed: FollowedPool, *_: Any) -> None:
    followed.shadow.resize(pool.size // followed.page_size)


_FOLLOWED: dict[str, Callable[..., None]] = {
    "alloc": _took,
    "alloc_extend": _took,
    "alloc_decode": _took,
    "free": _freed,
    "free_segment": _freed,
    "free_page_ids": _freed_pages,
    "free_group_end": _ended_group,
    "clear": _cleared,
}
_FOLLOWED_STATES: dict[str, Callable[..., None]] = {"_do_alloc": _took, "free": _freed, "clear": _cleared}


def start() -> Audit:
    """Follow SGLang's pools in this process, and let its reports of leaks name the holders."""
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    audit = Audit()
    audit.hook()

    def report(original: Callable[..., None], checker: Any, strict: Any, counter: str, message: str) -> None:
        explained = audit.explain(checker)
        original(checker, strict, counter, f"{message}\nkvstead audit:\n{explained}" if explained else message)

    def check(original: Callable[..., None], checker: Any) -> None:
        try:
            original(checker)
        except AssertionError:
            _log.error("kvstead audit:\n%s", audit.explain(checker))
            raise

    def add(answer: Any, *_: Any, **__: Any) -> None:
        answer.internal_state["kvstead"] = {"audit": audit.facts()}

    HookRegistry.register(f"{_CHECKER}.raise_error_or_warn", report, HookType.AROUND)
    HookRegistry.register(f"{_CHECKER}.SchedulerInvariantChecker.self_check_during_busy", check, HookType.AROUND)
    if _SCHEDULER in sys.modules:
        HookRegistry.register(f"{_SCHEDULER}.Scheduler.get_internal_state", add, HookType.AFTER)
    HookRegistry.apply_hooks()
    _log.info("kvstead follows the calls of SGLang's own allocators and changes nothing (audit). This costs time.")
    return audit


def _callers() -> list[FrameType]:
    """The frames outside SGLang's allocators that led to a call, the innermost first."""
    frames: list[FrameType] = []
    frame: FrameType | None = sys._getframe(2)  # noqa: SLF001 - the one way to a frame
    while frame is not None and len(frames) < _FRAMES_SEARCHED:
        if not frame.f_globals.get("__name__", "").startswith((_ALLOCATORS, "kvstead.")):
            frames.append(frame)
        frame = frame.f_back
    return frames


def _site(frames: Sequence[FrameType]) -> str:
    names = [
        f"{frame.f_code.co_filename.rpartition('/')[2]}:{frame.f_lineno} {frame.f_code.co_name}"
        for frame in frames[:_FRAMES_SAID]
    ]
    return " < ".join(names) or "an unknown place"


def _owners(frames: Sequence[FrameType], num_slots: int) -> list[str]:
    """The request for which each slot is taken, where that can be seen: a batch says how many slots each takes."""
    for frame in frames:
        requests = _requests(frame)
        if not requests:
            continue
        ids = [f"request {request.rid}" for request in requests]
        lengths = getattr(frame.f_locals.get("batch"), "extend_lens", None)
        for counts in (lengths, [num_slots // len(ids)] * len(ids)):
            if counts is not None and len(counts) == len(ids) and sum(counts) == num_slots:
                return [name for name, count in zip(ids, counts, strict=True) for _ in range(count)]
    return [""]


def _requests(frame: FrameType) -> list[Any]:
    """The requests that a frame is about, as its local variables name them."""
    found = frame.f_locals
    batch = found.get("batch", found.get("self"))
    for requests in ([found.get("req")], found.get("reqs"), getattr(batch, "reqs", None)):
        if isinstance(requests, list) and requests and all(hasattr(request, "rid") for request in requests):
            return requests
    return []


def _cached_pages(checker: Any, pool: Any, page_size: int) -> IntArray | None:
    """Pages of a pool that the prefix cache has, where it can say; None for a pool that it cannot list."""
    tree, allocator = getattr(checker, "tree_cache", None), getattr(checker, "token_to_kv_pool_allocator", None)
    listing = getattr(tree, "all_values_flatten", None)
    if listing is None or pool not in {allocator, getattr(allocator, "full_attn_allocator", None)}:
        return None
    return np.unique(to_host(listing()) // page_size)


def _line(holder: Holder) -> str:
    who = holder.owner or "nobody that is named"
    return f"  {holder.num_pages} held by {who}, taken at {holder.site}, the first in call {holder.first_call}"
