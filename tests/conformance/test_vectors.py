import pytest
import torch
from replayer import Op, Script, read_scripts, replay

from kvstead.allocators import (
    Allocator,
    HiSparseAllocator,
    PagedAllocator,
    PureSWAAllocator,
    SWAAllocator,
    TokenAllocator,
)
from paths import SHARED, needs_shared

VECTORS = SHARED / "conformance"
SCRIPTS_IN = {
    "token_fifo": 51,
    "token_sorted": 40,
    "paged_lifo": 110,
    "paged_sorted": 62,
    "swa": 85,
    "pure_swa": 34,
    "hisparse": 34,
}
LOWEST_IN = {"token_sorted": 20, "paged_sorted": 32}


def scripts_of(name):
    found = list(read_scripts(VECTORS / f"{name}.jsonl"))
    assert len(found) == SCRIPTS_IN[name]
    return found


def subjects(script: Script, order: str) -> list[Allocator]:
    """Every class of ours that claims to answer a script; at page size 1 a pool without windows has two."""
    if script.kind == "swa":
        return [SWAAllocator(script.size, script.swa_size, script.page_size, order=order)]
    if script.kind == "hisparse":
        return [HiSparseAllocator(script.size, script.page_size, order=order)]
    if script.kind == "pure_swa":
        return [PureSWAAllocator(script.size, script.page_size, order=order)]
    paged = PagedAllocator(script.size, script.page_size, order=order)
    return [paged] if script.page_size > 1 else [paged, TokenAllocator(script.size, order=order)]


@needs_shared
@pytest.mark.parametrize("name", SCRIPTS_IN)
@pytest.mark.parametrize("order", ["lifo", "fifo", "lowest"])
def test_recorded_answers_under_page_renaming(name, order):
    """In any reuse order every null, offset, page pattern and count is as recorded, and no live page comes twice."""
    for script in scripts_of(name):
        for allocator in subjects(script, order):
            replay(script, allocator)


@needs_shared
@pytest.mark.parametrize("name", ["token_fifo", "swa", "pure_swa"])
def test_fifo_answers_id_for_id(name):
    """First in, first out at page size 1 gives the recorded slots themselves, on both sides, and in groups too."""
    exact = [script for script in scripts_of(name) if script.page_size == 1]
    assert len(exact) == {"token_fifo": 51, "swa": 34, "pure_swa": 34}[name]
    for script in exact:
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


def both(name: str, full_available: int, swa_available: int, **fields: object) -> Op:
    available = min(full_available, swa_available)
    return op(name, available=available, full_available=full_available, swa_available=swa_available, **fields)


WINDOW_LIFE = Script(
    "window life",
    "swa",
    size=12,
    swa_size=8,
    page_size=2,
    always_lowest=False,
    ops=[
        both("alloc", 6, 2, n=6, result=[2, 3, 4, 5, 6, 7], window=[2, 3, 4, 5, 6, 7]),
        both("group_begin", 6, 2),
        both("free_swa", 6, 2, slots=[2]),
        both("translate", 6, 2, slots=[-1, 2, 5], result=[-1, 0, 5]),
        both("free_swa_segment", 6, 2, slots=[2, 3], start_pos=0),
        both("group_end", 6, 4),
        both(
            "alloc_extend_swa_tail",
            *(2, 2),
            prefix_lens=[0],
            seq_lens=[3],
            last_locs=[-1],
            tail_len=1,
            result=[8, 9, 10],
            window=[0, 0, 8],
        ),
        both("alloc_decode", 2, 2, seq_lens=[4], last_locs=[10], result=[11], window=[9]),
        both("alloc_extend", 2, 2, prefix_lens=[0, 0], seq_lens=[1, 1], last_locs=[-1, -1], result=None),
        both("free_full_segment", 4, 2, slots=[2, 3], start_pos=0),
        both("free", 8, 4, slots=[8, 10]),
        both("free_segments", 12, 8, segments=[[[4, 5], 2], [[6, 7], 4]]),
        both("alloc", 4, 0, n=8, result=[2, 3, 4, 5, 6, 7, 8, 9], window=[8, 9, 6, 7, 4, 5, 2, 3]),
        both("clear", 12, 8),
    ],
)


class LooksUpAtTheEnd(SWAAllocator):
    """Asks which window pages were meant only when the group ends."""

    def free_swa(self, slots):
        """Notes the slots."""
        self.kept = slots.clone()

    def free_group_end(self):
        """Reads the mapping too late."""
        super().free_group_end()
        super().free_swa(self.kept)


class FreesWindowsAtOnce(SWAAllocator):
    """Does not wait for the end of a group."""

    def free_swa(self, slots):
        """Behind the group's back."""
        group, self.free_group = self.free_group, None
        super().free_swa(slots)
        self.free_group = group


class FreesTheFullSideToo(SWAAllocator):
    """Takes the window side for the whole."""

    def free_swa(self, slots):
        """All of it."""
        self.free(slots)


class LeavesWindowsBehind(SWAAllocator):
    """Frees full pages alone, where no group is open."""

    def _follow(self, pages, after):
        if self.free_group is not None:
            super()._follow(pages, after)


class GivesTheHeadWindows(SWAAllocator):
    """Maps every page of a row whose tail alone needs it."""

    def alloc_extend_swa_tail(self, prefix_lens, seq_lens, last_locs, tail_len, owners=None):
        """As if the tail were all that is new."""
        assert tail_len < seq_lens[0]
        return self.alloc_extend(prefix_lens, seq_lens, last_locs, owners)


class ForgetsOffsets(SWAAllocator):
    """Knows the window page and no more."""

    def window_slots(self, slots):
        """Its first slot."""
        return super().window_slots(slots) // self.page_size * self.page_size


class LosesFullPages(SWAAllocator):
    """Takes full pages before it looks at the window side."""

    def _take(self, num_pages, num_windows, owner):
        pages = self._pool.take(num_pages, owner)
        if pages is None or num_windows > self.pools["window"].num_free:
            return None
        self.window_pages[pages[num_pages - num_windows :]] = self.pools["window"].take(num_windows)
        return pages


def test_sound_window_allocator_passes_the_sample_life():
    """The script that the faulty window classes fail is one that a sound class passes, in every order."""
    for order in ("lifo", "fifo", "lowest"):
        for allocator in subjects(WINDOW_LIFE, order):
            replay(WINDOW_LIFE, allocator)


@pytest.mark.parametrize(
    ("faulty", "complaint"),
    [
        (LooksUpAtTheEnd, r"op 3 \(translate\): window slots \[-1, 2, 5\] instead of \[-1, 0, 5\]"),
        (FreesWindowsAtOnce, r"op 2 \(free_swa\): available is 4 instead of 2"),
        (FreesTheFullSideToo, r"op 5 \(group_end\): full_available is 8 instead of 6"),
        (LeavesWindowsBehind, r"op 10 \(free\): available is 2 instead of 4"),
        (GivesTheHeadWindows, r"op 6 \(alloc_extend_swa_tail\): window slots"),
        (ForgetsOffsets, r"op 0 \(alloc\): slot 2 for 3: another offset"),
    ],
)
def test_replay_finds_faults_of_the_window_side(faulty, complaint):
    """An allocator that breaks one rule about windows is caught at the op that shows it."""
    with pytest.raises(AssertionError, match=complaint):
        replay(WINDOW_LIFE, faulty(WINDOW_LIFE.size, WINDOW_LIFE.swa_size, WINDOW_LIFE.page_size))


def test_replay_finds_what_a_short_window_side_loses():
    """An allocation that the window side refuses must leave the full side as it was."""
    ops = [both("alloc", 8, 4, n=4, result=[2, 3, 4, 5], window=[2, 3, 4, 5]), both("alloc", 8, 4, n=6, result=None)]
    life = Script("short windows", "swa", size=12, swa_size=8, page_size=2, always_lowest=False, ops=ops)
    replay(life, SWAAllocator(12, 8, 2))
    with pytest.raises(AssertionError, match=r"op 1 \(alloc\): available is 2 instead of 4"):
        replay(life, LosesFullPages(12, 8, 2))


PURE_LIFE = Script(
    "pure life",
    "pure_swa",
    size=4,
    page_size=1,
    always_lowest=False,
    ops=[
        both("alloc", 1, 1, n=3, result=[1, 2, 3]),
        both("free_swa", 2, 2, slots=[1]),
        both("free_full", 2, 2, slots=[1]),
        both("alloc", 1, 1, n=1, result=[4]),
        both("free_full_segment", 1, 1, slots=[4, 2], start_pos=0),
        both("free_segment", 3, 3, slots=[2, 3], start_pos=1),
    ],
)


class FreesFull(PureSWAAllocator):
    """Thinks that there is a full side."""

    def free_full(self, slots):
        """Frees the one there is."""
        self.free([slot for slot in slots if self.page_states()[slot] == 1])

    def free_full_segment(self, slots, *, start_pos):
        """Frees the one there is."""
        self.free_full(slots[start_pos:])


class KeepsTheWindow(PureSWAAllocator):
    """Thinks that the window side is not the whole."""

    def free_swa(self, slots):
        """Frees nothing."""


@pytest.mark.parametrize(
    ("faulty", "complaint"),
    [
        (FreesFull, r"op 4 \(free_full_segment\): available is 3 instead of 1"),
        (KeepsTheWindow, r"op 1 \(free_swa\): available is 1 instead of 2"),
    ],
)
def test_replay_finds_faults_of_the_pure_window(faulty, complaint):
    """One pool that is not the window side as a whole is caught where it shows; a sound one passes."""
    replay(PURE_LIFE, PureSWAAllocator(PURE_LIFE.size, PURE_LIFE.page_size))
    with pytest.raises(AssertionError, match=complaint):
        replay(PURE_LIFE, faulty(PURE_LIFE.size, PURE_LIFE.page_size))


def tiers(name: str, logical_available: int, device_available: int, **fields: object) -> Op:
    available = min(logical_available, device_available)
    sides = {"logical_available": logical_available, "device_available": device_available}
    return op(name, **{"available": available, **sides, **fields})


DEVICE_LIFE = Script(
    "device life",
    "hisparse",
    size=6,
    page_size=2,
    always_lowest=False,
    ops=[
        tiers("alloc_extend", 8, 2, prefix_lens=[0], seq_lens=[3], last_locs=[-1], result=[2, 3, 4], device=[2, 3, 4]),
        tiers("alloc_decode", 8, 2, seq_lens=[4], last_locs=[4], result=[5], device=[0]),
        tiers("translate", 8, 2, slots=[-1, 4, 5], result=[-1, 4, 0]),
        tiers("group_begin", 8, 2),
        tiers("alloc_device_buffer", 8, 4, slots=[2, 3, 4, 5], n=2, result=[2, 3]),
        tiers("translate", 8, 4, slots=[2, 4], result=[0, 0]),
        tiers("alloc_logical_only", 4, 4, prefix_lens=[4], seq_lens=[7], last_locs=[5], result=[6, 7, 8]),
        tiers("free", 8, 4, slots=[6, 7, 8]),
        tiers("group_end", 8, 4),
        tiers("free_hisparse_indices", 8, 6, slots=[2, 3]),
        tiers("alloc_extend", 8, 6, prefix_lens=[0], seq_lens=[7], last_locs=[-1], result=None),
    ],
)


class WaitsForTheGroup(HiSparseAllocator):
    """Parks what it frees inside a group."""

    def free_group_begin(self):
        """As others do."""
        PagedAllocator.free_group_begin(self)

    def free_group_end(self):
        """As others do."""
        PagedAllocator.free_group_end(self)


class DecodesOnTheDevice(HiSparseAllocator):
    """Takes a token that decode has added to a page on the device for one that is there."""

    def device_slots(self, slots):
        """By page alone."""
        self._hot.lens[:] = self.page_size
        return super().device_slots(slots)


class KeepsTheMapping(HiSparseAllocator):
    """Leaves slots where a buffer has been made of them."""

    def alloc_device_buffer(self, slots, num_tokens):
        """The mapping is as before."""
        before = self.device_pages.copy()
        buffer = super().alloc_device_buffer(slots, num_tokens)
        self.device_pages[:] = before
        return buffer


@pytest.mark.parametrize(
    ("faulty", "complaint"),
    [
        (WaitsForTheGroup, r"op 4 \(alloc_device_buffer\): available is 2 instead of 4"),
        (DecodesOnTheDevice, r"op 1 \(alloc_decode\): device slots \[5\] for \[0\]"),
        (KeepsTheMapping, r"op 5 \(translate\): device slots"),
    ],
)
def test_replay_finds_faults_of_the_device_side(faulty, complaint):
    """An allocator that breaks one rule about device slots is caught where it shows; a sound one passes."""
    for order in ("lifo", "fifo", "lowest"):
        for allocator in subjects(DEVICE_LIFE, order):
            replay(DEVICE_LIFE, allocator)
    with pytest.raises(AssertionError, match=complaint):
        replay(DEVICE_LIFE, faulty(DEVICE_LIFE.size, DEVICE_LIFE.page_size))
