import pytest
import torch
from replayer import Op, Script, read_scripts, replay

from kvstead.allocators import Allocator, PagedAllocator, TokenAllocator
from paths import SHARED, needs_shared

VECTORS = SHARED / "conformance"
FILES = ["token_fifo", "token_sorted", "paged_lifo", "paged_sorted"]
SCRIPTS_IN = {"token_fifo": 51, "token_sorted": 40, "paged_lifo": 110, "paged_sorted": 62}
LOWEST_IN = {"token_sorted": 20, "paged_sorted": 32}


def scripts_of(name):
    found = list(read_scripts(VECTORS / f"{name}.jsonl"))
    assert len(found) == SCRIPTS_IN[name]
    return found


def subjects(script: Script, order: str) -> list[Allocator]:
    """Every class of ours that claims to answer a script; at page size 1 that is both."""
    paged = PagedAllocator(script.size, script.page_size, order=order)
    return [paged] if script.page_size > 1 else [paged, TokenAllocator(script.size, order=order)]


@needs_shared
@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("order", ["lifo", "fifo", "lowest"])
def test_recorded_answers_under_page_renaming(name, order):
    """In any reuse order every null, offset, page pattern and count is as recorded, and no live page comes twice."""
    for script in scripts_of(name):
        for allocator in subjects(script, order):
            replay(script, allocator)


@needs_shared
def test_fifo_answers_id_for_id():
    """First in, first out at page size 1 gives the recorded slots themselves, in groups too."""
    for script in scripts_of("token_fifo"):
        for allocator in subjects(script, "fifo"):
            replay(script, allocator, exact=True)


@needs_shared
@pytest.mark.parametrize("name", ["token_sorted", "paged_sorted"])
def test_lowest_answers_id_for_id(name):
    """Where the recorded list always gave its lowest free page, so does ours."""
    exact = [script for script in scripts_of(name) if script.always_lowest]
    assert len(exact) == LOWEST_IN[name]
    for script in exact:
        for allocator in subjects(script, "lowest"):
            replay(script, allocator, exact=True)


def op(name: str, **fields: object) -> Op:
    return {"op": name, "available": 2, **fields}


LIFE = Script(
    "life",
    "paged",
    size=8,
    page_size=2,
    always_lowest=False,
    ops=[
        op("alloc", n=4, result=[2, 3, 4, 5], available=4),
        op("alloc_extend", prefix_lens=[0], seq_lens=[1], last_locs=[-1], result=[6]),
        op("alloc_decode", seq_lens=[2], last_locs=[6], result=[7]),
        op("alloc", n=4, result=None),
        op("group_begin"),
        op("free", slots=[3, 4, 2, 5]),
        op("alloc", n=2, result=[8, 9], available=0),
        op("group_end", available=4),
        op("alloc", n=4, result=[4, 5, 2, 3], available=0),
    ],
)


class KeepsTheCallersBuffer(PagedAllocator):
    """Looks at what was freed in a group only at its end."""

    def free(self, slots):
        """Notes the tensor, not what is in it."""
        self.kept = slots

    def free_group_end(self):
        """Reads it too late."""
        super().free_group_end()
        super().free(self.kept)


class HandsOutTwice(PagedAllocator):
    """Gives the first pages again."""

    def alloc(self, num_tokens, owner=0):
        """From the third page on, the first ones."""
        got = super().alloc(num_tokens, owner)
        return got if got is None or got[0] < 6 else torch.arange(num_tokens) + 2


class GrowsElsewhere(PagedAllocator):
    """Puts the second token of a page where the first one is."""

    def alloc_decode(self, seq_lens, last_locs, owners=None):
        """One slot too low."""
        return super().alloc_decode(seq_lens, last_locs, owners) - 1


class IgnoresGroups(PagedAllocator):
    """Frees at once, whatever is open."""

    def free_group_begin(self):
        """Opens none."""


def test_sound_allocator_passes_the_sample_life():
    """The script that the faulty classes fail is one that a sound class passes, in every order."""
    for order in ("lifo", "fifo", "lowest"):
        for allocator in subjects(LIFE, order):
            replay(LIFE, allocator)


@pytest.mark.parametrize(
    ("faulty", "complaint"),
    [
        (KeepsTheCallersBuffer, r"op 7 \(group_end\): .* -"),
        (HandsOutTwice, r"op 6 \(alloc\): page 1 .*parked"),
        (GrowsElsewhere, r"op 2 \(alloc_decode\): slot 6 for 7"),
        (IgnoresGroups, r"op 5 \(free\): available is 6 instead of 2"),
    ],
)
def test_replay_finds_faults(faulty, complaint):
    """An allocator that breaks one rule is caught at the op that shows it."""
    with pytest.raises(AssertionError, match=complaint):
        replay(LIFE, faulty(LIFE.size, LIFE.page_size))
