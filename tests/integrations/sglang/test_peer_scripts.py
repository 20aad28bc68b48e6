"""The same random legal scripts on SGLang's class and on ours, in one process."""

from collections.abc import Callable
from dataclasses import dataclass

import peer
import pytest
import torch
from recorder import PureWindowRecorder, Recorder, WindowRecorder
from replayer import replay

from drop_in import DropIn, Storage
from kvstead.integrations.sglang import leaves
from kvstead.integrations.sglang.allocator import paged, swa, token

pytestmark = pytest.mark.sglang

NUM_PAGES, NUM_WINDOWS = 20, 13
NUM_SCRIPTS, NUM_OPS = 15, 60


@dataclass(frozen=True, slots=True)
class Case:
    """How SGLang's class and ours are made and driven; `exact`: ours must hand out the very same slots."""

    name: str
    kind: str
    recorder: type[Recorder]
    theirs: Callable[[], DropIn]
    ours: Callable[[], DropIn]
    exact: bool = False


def pool(cls, *sizes, need_sort=False):
    """A factory of either side's class: their signatures are the same."""
    return lambda: DropIn(cls(*sizes, torch.bfloat16, "cpu", Storage(), need_sort))


def case(name, kind, recorder, theirs, ours, *sizes, need_sort=False, exact=False):
    """A case of classes that are made alike."""
    name += " sorted" if need_sort else ""
    makers = (pool(cls, *sizes, need_sort=need_sort) for cls in (theirs, ours))
    return Case(name, kind, recorder, *makers, exact=exact and not need_sort)


def cases():
    """Every class with the page sizes that it is for."""
    for need_sort in (False, True):
        names = (peer.TokenToKVPoolAllocator, token.TokenToKVPoolAllocator)
        yield case("token", "token", Recorder, *names, NUM_PAGES, need_sort=need_sort, exact=True)
        names = (peer.PagedTokenToKVPoolAllocator, paged.PagedTokenToKVPoolAllocator)
        for size in (1, 4, 16, 64):
            yield case(f"paged {size}", "paged", Recorder, *names, NUM_PAGES * size + 1, size, need_sort=need_sort)
        names = (peer.SWATokenToKVPoolAllocator, swa.SWATokenToKVPoolAllocator)
        for size in (1, 4, 16):
            sizes = (NUM_PAGES * size, NUM_WINDOWS * size, size)
            yield case(f"swa {size}", "swa", WindowRecorder, *names, *sizes, need_sort=need_sort, exact=size == 1)
        names = (peer.PureSWATokenToKVPoolAllocator, swa.PureSWATokenToKVPoolAllocator)
        yield case("pure", "pure_swa", PureWindowRecorder, *names, NUM_PAGES, 1, need_sort=need_sort, exact=True)


CASES = list(cases())


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_same_answers_and_counts_as_sglang(case):
    """Every null, offset, page pattern and count is SGLang's, and the slots themselves where its order is a promise."""
    answers = set()
    for seed in range(NUM_SCRIPTS):
        script = case.recorder(case.theirs(), seed).record(f"{case.name} {seed}", case.kind, NUM_OPS)
        answers |= {(op["op"], op["result"] is None) for op in script.ops}
        replay(script, case.ours(), exact=case.exact)
    growing = {name for name, _ in answers if name.startswith("alloc")}
    assert {(name, short) for name in growing for short in (False, True)} <= answers, "every way is short at times"


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_same_answers_where_books_live_on_the_device(case, monkeypatch):
    """The same, of fewer scripts, with the leaves that stand in on an accelerator."""
    monkeypatch.setattr(leaves, "is_resident", lambda _device: True)
    for seed in range(NUM_SCRIPTS, NUM_SCRIPTS + 4):
        script = case.recorder(case.theirs(), seed).record(f"{case.name} {seed}", case.kind, NUM_OPS)
        replay(script, case.ours(), exact=case.exact)


@pytest.mark.parametrize("page_size", [4, 16, 64])
@pytest.mark.parametrize("cls", [peer.PagedTokenToKVPoolAllocator, paged.PagedTokenToKVPoolAllocator])
def test_freed_pages_are_reused_first(cls, page_size):
    """What was freed last is handed out next, on both sides."""
    allocator = cls(NUM_PAGES * page_size, page_size, torch.bfloat16, "cpu", Storage(), need_sort=False)
    slots = allocator.alloc(8 * page_size)
    allocator.free(slots[: 2 * page_size])
    allocator.free_segment(slots[4 * page_size : 7 * page_size - 1], start_pos=0)
    last, first = allocator.alloc(3 * page_size), allocator.alloc(2 * page_size)
    assert sorted(last.tolist()) == slots[4 * page_size : 7 * page_size].tolist()
    assert sorted(first.tolist()) == slots[: 2 * page_size].tolist()


@pytest.mark.parametrize("page_size", [4, 16, 64])
def test_triton_kernels_give_the_same_answers(page_size, monkeypatch):
    """SGLang's kernels, through Triton's interpreter, lay rows out as ours."""
    for seed in range(3):
        theirs = pool(peer.PagedTokenToKVPoolAllocator, NUM_PAGES * page_size, page_size)()
        monkeypatch.setattr(theirs.inner, "use_triton_kernels", True)
        script = Recorder(theirs, seed).record(f"kernels {seed}", "paged", 30)
        replay(script, pool(paged.PagedTokenToKVPoolAllocator, NUM_PAGES * page_size, page_size)())
