import pytest
import torch
from replayer import Script, replay
from test_vectors import LOWEST_IN, scripts_of

from drop_in import DropIn, Storage
from kvstead.integrations.sglang.allocator import backends
from kvstead.integrations.sglang.allocator.npu import NPUPagedTokenToKVPoolAllocator
from kvstead.integrations.sglang.allocator.paged import PagedTokenToKVPoolAllocator
from kvstead.integrations.sglang.allocator.swa import PureSWATokenToKVPoolAllocator, SWATokenToKVPoolAllocator
from kvstead.integrations.sglang.allocator.token import TokenToKVPoolAllocator
from paths import needs_shared

NAMES = ("token_fifo", "token_sorted", "paged_lifo", "paged_sorted", "swa", "pure_swa")


class Narrow(DropIn):
    """The class for devices that index by int32, its answers widened for the comparison."""

    def alloc(self, n):
        """Slots, widened to int64."""
        return self._wide(super().alloc(n))

    def alloc_extend(self, prefix_lens, seq_lens, last_locs):
        """Slots, widened to int64."""
        return self._wide(super().alloc_extend(prefix_lens, seq_lens, last_locs))

    def alloc_decode(self, seq_lens, last_locs):
        """Slots, widened to int64."""
        return self._wide(super().alloc_decode(seq_lens, last_locs))

    def _wide(self, slots):
        assert slots is None or slots.dtype == torch.int32, f"slots are {slots.dtype}"
        return None if slots is None else slots.long()


def subjects(script: Script, *, need_sort: bool) -> list[DropIn]:
    """Every class under SGLang's names that claims to answer a script."""
    common = (torch.bfloat16, "cpu", Storage(), need_sort)
    if script.kind == "swa":
        return [DropIn(SWATokenToKVPoolAllocator(script.size, script.swa_size, script.page_size, *common))]
    if script.kind == "pure_swa":
        return [DropIn(PureSWATokenToKVPoolAllocator(script.size, script.page_size, *common))]
    if script.kind == "token":
        return [DropIn(TokenToKVPoolAllocator(script.size, *common))]
    sizes = (script.size, script.page_size)
    if len(script.ops) % 4:
        return [DropIn(PagedTokenToKVPoolAllocator(*sizes, *common))]
    return [Narrow(NPUPagedTokenToKVPoolAllocator(*sizes, *common))]


@pytest.fixture
def on_device(monkeypatch):
    """Uses the allocators for accelerators on the CPU."""
    monkeypatch.setattr(backends, "is_resident", lambda _device: True)


def replay_all(scripts, *, need_sort, exact=False):
    """Replay scripts on all that answer them."""
    for script in scripts:
        for subject in subjects(script, need_sort=need_sort):
            replay(script, subject, exact=exact)


def exact_scripts(name):
    """The scripts whose order of reuse is part of the contract."""
    scripts = scripts_of(name)
    exact = [script for script in scripts if (script.always_lowest if name in LOWEST_IN else script.page_size == 1)]
    assert len(exact) == {"token_fifo": 51, "swa": 34, "pure_swa": 34, **LOWEST_IN}[name]
    return exact


@needs_shared
@pytest.mark.parametrize("name", NAMES)
def test_recorded_answers_are_given_under_sglangs_names(name):
    """Every None, offset, page pattern and count is as recorded through SGLang's own signatures, sorted or not."""
    replay_all(scripts_of(name), need_sort="sorted" in name)


@needs_shared
@pytest.mark.parametrize("name", ["token_fifo", "token_sorted", "paged_sorted", "swa", "pure_swa"])
def test_recorded_slots_are_given_under_sglangs_names(name):
    """Where the order of reuse is a contract the drop-in returns the recorded slots, id for id."""
    replay_all(exact_scripts(name), need_sort=name in LOWEST_IN, exact=True)


@needs_shared
@pytest.mark.usefixtures("on_device")
@pytest.mark.parametrize("name", NAMES)
def test_recorded_answers_are_given_on_a_device(name):
    """The same holds for every fourth script with the allocators that are used on an accelerator."""
    replay_all(scripts_of(name)[::4], need_sort="sorted" in name)


@needs_shared
@pytest.mark.usefixtures("on_device")
@pytest.mark.parametrize("name", ["token_fifo", "token_sorted", "swa"])
def test_recorded_slots_are_given_on_a_device(name):
    """The same holds for every other script; sorted pages are sorted when they run short, as SGLang's are."""
    replay_all(exact_scripts(name)[::2], need_sort=name in LOWEST_IN, exact=True)
