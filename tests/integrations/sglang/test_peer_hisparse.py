"""The same random legal scripts on SGLang's allocator with hot slots and on ours, in one process."""

from types import MappingProxyType

import peer  # noqa: F401 - makes SGLang importable
import pytest
import torch
from recorder import Recorder, Row
from replayer import replay
from sglang.srt.mem_cache.allocator.hisparse import HiSparseTokenToKVPoolAllocator
from test_sg_hisparse import DevicePool, HotDropIn, hot_allocator

from kvstead.errors import DoubleFree, ForeignPage, UseAfterFree
from kvstead.integrations.sglang.allocator import backends

pytestmark = pytest.mark.sglang

NUM_PAGES = 13


class Coordinated(DevicePool):
    """A pool that finds the device side of slots by the mapping it was handed."""

    def _translate_loc_to_hisparse_device(self, slots):
        return self.mapping[slots]


class TheirDropIn(HotDropIn):
    """SGLang's class, which has no audit to compare with."""

    def device_slots(self, slots):
        """The device side of slots, as the pool finds it."""
        return self.inner.full_to_hisparse_device_index_mapping[torch.as_tensor(slots, dtype=torch.int64)]


def theirs(page_size, *, need_sort=False):
    sizes = (NUM_PAGES * page_size, page_size)
    return TheirDropIn(HiSparseTokenToKVPoolAllocator(*sizes, torch.bfloat16, "cpu", Coordinated(), need_sort))


class HotRecorder(Recorder):
    """Drives both sides. Rows whose device side is complete may grow on both, the others by single tokens."""

    counts = ("available", "logical_available", "device_available")
    methods = MappingProxyType({**Recorder.methods, "translate": "device_slots"})

    def __init__(self, subject, seed):
        super().__init__(subject, seed)
        self.buffers = []

    def acts(self):
        """Rows on the host alone, and buffers on the device, besides."""
        acts = [self.logical, self.buffer, self.buffer, self.give_buffer, self.ask]
        return [act for act in super().acts() if act != self.start] + acts

    def extend(self):
        """New rows and whole hot ones grow on both sides."""
        cold = [row for row in self.rows if row.cold]
        self.rows = [row for row in self.rows if not row.cold]
        super().extend()
        self.rows += cold

    def decode(self):
        """New tokens have no device side, so the rows cannot grow by more any longer."""
        before = [len(row) for row in self.rows]
        super().decode()
        for row, length in zip(self.rows, before, strict=True):
            row.cold = row.cold or len(row) > length

    def logical(self):
        """A row on the host alone."""
        slots = self.do("alloc_logical_only", **self.columns([[]], [self.rng.randint(1, 4 * self.page_size)]))
        if slots:
            self.rows.append(Row(slots))
            self.rows[-1].cold = True

    def buffer(self):
        """The device side of a row becomes a buffer, shorter or longer than it, if it fits."""
        num_slots = self.rng.randint(0, 4) * self.page_size
        if self.rows and num_slots <= self.subject.device_available_size():
            row = self.rng.choice(self.rows)
            row.cold = True
            self.buffers.append(self.do("alloc_device_buffer", slots=list(row), n=num_slots))

    def give_buffer(self):
        """Free a buffer."""
        if self.buffers:
            slots = self.buffers.pop(self.rng.randrange(len(self.buffers)))
            if slots:
                self.do("free_hisparse_indices", slots=slots)

    def ask(self):
        """Where rows are hot."""
        self.do("translate", slots=[-1, *(slot for row in self.rows for slot in row if self.rng.random() < 0.3)])

    def rarely(self):
        """A clear frees the buffers as well."""
        super().rarely()
        if self.ops and self.ops[-1]["op"] == "clear":
            self.buffers.clear()

    def start(self):
        """At the end: what buffers are left, and a batch."""
        while self.buffers:
            self.give_buffer()
        self.extend()

    def beside(self, name, answer):
        """The device side of new slots."""
        is_row = name.startswith("alloc") and name != "alloc_device_buffer" and answer is not None
        return {"device": self.subject.device_slots(answer).tolist()} if is_row else {}


@pytest.mark.parametrize("kept_on", ["host", "device"])
@pytest.mark.parametrize("need_sort", [False, True])
@pytest.mark.parametrize("page_size", [4, 16])
def test_same_answers_and_counts_with_hot_slots(page_size, need_sort, kept_on, monkeypatch):
    """Every None, offset, page pattern, device slot and count is SGLang's, inside groups and outside."""
    monkeypatch.setattr(backends, "is_resident", lambda _device: kept_on == "device")
    seen = set()
    for seed in range(10):
        script = HotRecorder(theirs(page_size, need_sort=need_sort), seed).record(f"hot {seed}", "hisparse", 60)
        replay(script, HotDropIn(hot_allocator(NUM_PAGES * page_size, page_size, need_sort=need_sort)))
        seen |= {(op["op"], op["result"] is None) for op in script.ops}
    assert {("alloc_extend", True), ("alloc_logical_only", False), ("alloc_device_buffer", False)} <= seen
    assert ("free_hisparse_indices", True) in seen


def ints(*values):
    return torch.tensor(values, dtype=torch.int64)


def test_row_that_grows_behind_a_token_without_a_device_slot_raises():
    """SGLang puts the new tokens into the padding of the device side; ours raises."""
    sides = theirs(4), HotDropIn(hot_allocator(NUM_PAGES * 4, 4))
    for side in sides:
        row = side.alloc_logical_only([0], [6], [-1])
    last = row[-1:].tolist()
    assert sides[0].device_slots(sides[0].alloc_extend([6], [8], last)).tolist() == [1, 2]
    with pytest.raises(UseAfterFree):
        sides[1].alloc_extend([6], [8], last)


def test_row_with_hot_slots_freed_twice_raises():
    """SGLang lists the logical page twice, though its mapping knows that the device slots are gone; ours raises."""
    sides = theirs(4), HotDropIn(hot_allocator(NUM_PAGES * 4, 4))
    for side in sides:
        side.alloc_extend([0], [4], [-1])
        row = side.alloc_extend([0], [4], [-1])
        side.free(row)
    sides[0].free(row)
    assert sides[0].logical_attn_allocator.free_pages.tolist().count(2) == 2
    with pytest.raises(DoubleFree):
        sides[1].free(row)


def test_buffer_freed_twice_raises():
    """SGLang lists the device page twice; ours raises."""
    sides = theirs(4), HotDropIn(hot_allocator(NUM_PAGES * 4, 4))
    for side in sides:
        row = side.alloc_extend([0], [8], [-1])
        buffer = side.alloc_device_buffer(row, 4)
        side.free_hisparse_indices(buffer)
    sides[0].free_hisparse_indices(buffer)
    assert sides[0].hisparse_attn_allocator.free_pages.tolist().count(1) == 2
    with pytest.raises(DoubleFree):
        sides[1].free_hisparse_indices(buffer)
    with pytest.raises(ForeignPage):
        sides[1].free_hisparse_indices(ints(999))
