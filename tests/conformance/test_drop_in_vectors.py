import pytest
import torch
from replayer import Script, replay
from test_vectors import LOWEST_IN, SCRIPTS_IN, scripts_of

from drop_in import DropIn, Storage
from kvstead.integrations.sglang.allocator.npu import NPUPagedTokenToKVPoolAllocator
from kvstead.integrations.sglang.allocator.paged import PagedTokenToKVPoolAllocator
from kvstead.integrations.sglang.allocator.swa import PureSWATokenToKVPoolAllocator, SWATokenToKVPoolAllocator
from kvstead.integrations.sglang.allocator.token import TokenToKVPoolAllocator
from paths import needs_shared


class Narrow(DropIn):
    """The class for devices that index by int32, its answers widened for the comparison."""

    def alloc(self, n):
        """As everywhere."""
        return self._wide(super().alloc(n))

    def alloc_extend(self, prefix_lens, seq_lens, last_locs):
        """As everywhere."""
        return self._wide(super().alloc_extend(prefix_lens, seq_lens, last_locs))

    def alloc_decode(self, seq_lens, last_locs):
        """As everywhere."""
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
    npu = NPUPagedTokenToKVPoolAllocator(script.size, script.page_size, *common)
    return [DropIn(PagedTokenToKVPoolAllocator(script.size, script.page_size, *common)), Narrow(npu)]


@needs_shared
@pytest.mark.parametrize("name", SCRIPTS_IN)
def test_recorded_answers_through_the_names_of_sglang(name):
    """Every null, offset, page pattern and count is as recorded through SGLang's own signatures, sorted or not."""
    for script in scripts_of(name):
        for subject in subjects(script, need_sort="sorted" in name):
            replay(script, subject)


@needs_shared
@pytest.mark.parametrize("name", ["token_fifo", "token_sorted", "paged_sorted", "swa", "pure_swa"])
def test_recorded_slots_themselves_through_the_names_of_sglang(name):
    """Where the order of reuse is part of the contract the drop-in gives the recorded slots, id for id."""
    need_sort = name in LOWEST_IN
    exact = [script for script in scripts_of(name) if (script.always_lowest if need_sort else script.page_size == 1)]
    assert len(exact) == {"token_fifo": 51, "swa": 34, "pure_swa": 34, **LOWEST_IN}[name]
    for script in exact:
        for subject in subjects(script, need_sort=need_sort):
            replay(script, subject, exact=True)
