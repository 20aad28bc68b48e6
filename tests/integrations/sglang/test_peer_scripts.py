"""The same random legal scripts on SGLang's class and on ours, in one process."""

from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace

import peer
import pytest
import torch
from recorder import PureWindowRecorder, Recorder, WindowRecorder
from replayer import replay

from drop_in import DropIn, Storage
from kvstead.integrations.sglang.allocator import backends, npu, paged, swa, token

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


def ringed(cls, page_size):
    """A factory of a class whose windows lie in a ring of each request's own, for three requests."""
    sizes = (NUM_PAGES * page_size, NUM_WINDOWS * page_size, page_size)
    rows = SimpleNamespace(available_size=lambda: 3)
    return lambda: DropIn(cls(*sizes, torch.bfloat16, "cpu", Rings(), need_sort=False, req_to_token_pool=rows))


class Rings(Storage):
    """A pool with rings of more window slots than any row has here."""

    swa_req_ring_size = 1000


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
    for size in (4, 16):
        makers = [ringed(cls, size) for cls in (peer.SWATokenToKVPoolAllocator, swa.SWATokenToKVPoolAllocator)]
        yield Case(f"rings {size}", "swa", WindowRecorder, *makers)


CASES = list(cases())


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_same_answers_and_counts_as_sglang(case):
    """Every None, offset, page pattern and count is SGLang's, and so are the slots where their order is a contract."""
    answers = set()
    for seed in range(NUM_SCRIPTS):
        script = case.recorder(case.theirs(), seed).record(f"{case.name} {seed}", case.kind, NUM_OPS)
        answers |= {(op["op"], op["result"] is None) for op in script.ops}
        replay(script, case.ours(), exact=case.exact)
    growing = {name for name, _ in answers if name.startswith("alloc")}
    assert {(name, short) for name in growing for short in (False, True)} <= answers, "every way is short at times"


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_same_answers_where_books_live_on_the_device(case, monkeypatch):
    """The same holds, of fewer scripts, for the allocators that are used on an accelerator."""
    monkeypatch.setattr(backends, "is_resident", lambda _device: True)
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


def test_ascend_class_gives_the_same_int32_slots():
    """Rows of many pages grow and decode as SGLang's do by its plain torch path."""
    answers = []
    for cls in (peer.NPUPagedTokenToKVPoolAllocator, npu.NPUPagedTokenToKVPoolAllocator):
        allocator = pool(cls, 4 * 300, 4)()
        rows = [allocator.alloc_extend([0, 0], [403, 416], [-1, -1])]
        last = rows[0][[402, -1]].tolist()
        for step in range(1, 9):
            rows.append(allocator.alloc_decode([403 + step, 416 + step], last))
            last = rows[-1].tolist()
        answers.append(torch.cat(rows))
    assert answers[0].dtype == answers[1].dtype == torch.int32
    assert torch.equal(*answers)
