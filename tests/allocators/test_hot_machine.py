"""Any sequence of calls, legal or not, on pools with a device side."""

import pytest
from allocator_pair import FORMS, ORDERS, PAGE_SIZES
from hot_pair import CompressedPair, HiSparsePair
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, rule, run_state_machine_as_test
from test_allocator_machine import AllocatorMachine, Interrupted, interrupt
from test_window_machine import WindowMachine

forms = st.sampled_from(sorted(FORMS))


class HotRules:
    """What happens to the device side: rows leave it out, buffers come and go, and both are asked about."""

    def __init__(self):
        super().__init__()
        self.buffers = []

    @rule(data=st.data(), form=forms, new=st.booleans())
    def extend_logical_only(self, data, form, new):
        """Rows grow on the host alone."""
        chosen = [*self.some_rows(data), *([[]] if new else [])]
        steps = [data.draw(st.integers(0, 2 * self.page_size + 1)) for _ in chosen]
        lengths = [len(row) for row in chosen]
        grown = [length + step for length, step in zip(lengths, steps, strict=True)]
        slots = self.pair.logical_only(lengths, grown, [row[-1] if row else -1 for row in chosen], form=form)
        if slots is None:
            return
        for row, step in zip(chosen, steps, strict=True):
            fresh = not row
            row.extend(slots[:step])
            del slots[:step]
            if fresh and row:
                self.rows.append(row)

    @rule(data=st.data(), form=forms)
    def extend_hot_rows(self, data, form):
        """Rows grow that are on the device as far as they go, or stand on a page boundary."""
        row = next((row for row in self.some_rows(data) if self.able(row)), None)
        if row is not None:
            step = data.draw(st.integers(0, 2 * self.page_size + 1))
            slots = self.pair.extend([len(row)], [len(row) + step], row[-1:], form=form)
            row.extend(slots or [])

    @rule(data=st.data(), form=forms, extra=st.integers(-2, 3))
    def make_buffer(self, data, form, extra):
        """A row's device side goes into a buffer of more or less pages, with its newest token in front now and then."""
        row = next(iter(self.some_rows(data)), [])
        row = data.draw(st.permutations(row)) if data.draw(st.booleans()) else list(row)
        size = self.pair.model.hot_size
        num_pages = max(0, sum(slot > 0 for slot in self.pair.model.device_slots(row)) // size + extra)
        buffer = self.pair.buffer(row, num_pages * size, form)
        if buffer:
            self.buffers.append(buffer)

    @rule(data=st.data(), form=forms)
    def free_buffer(self, data, form):
        """A buffer is done with, named by any of its slots."""
        if self.buffers:
            buffer = self.buffers.pop(data.draw(st.integers(0, len(self.buffers) - 1)))
            pages = {slot // self.pair.model.hot_size: slot for slot in buffer}
            self.pair.free_indices(data.draw(st.permutations([*pages.values(), 0, -1])), form)

    @rule(data=st.data(), form=forms)
    def cool(self, data, form):
        """Rows lose their device side."""
        slots = [slot for row in self.some_rows(data) for slot in row]
        self.pair.free_hisparse(data.draw(st.permutations(slots)), form)

    @rule(data=st.data(), form=forms)
    def ask_for_device_slots(self, data, form):
        """Where the device side of any slots lies."""
        self.pair.device_slots(data.draw(st.lists(self.any_slot(), max_size=6)), form)
        self.pair.device_slots([-1, 0, *(slot for row in self.some_rows(data) for slot in row)], form)

    @rule(data=st.data(), form=forms)
    def any_device_call(self, data, form):
        """Any slots in and around the pools."""
        pair = self.pair
        slots = st.lists(self.any_slot(), max_size=4)
        pair.free_hisparse(data.draw(slots), form)
        pair.buffer(data.draw(slots), data.draw(st.integers(-1, 3 * self.page_size)), form)
        end = (pair.model.devices.num_pages + 2) * pair.model.hot_size
        pair.free_indices(data.draw(st.lists(st.integers(-2, end), max_size=3)), form)
        self.buffers.clear()

    @rule()
    def clear(self):
        """Start anew."""
        self.pair.clear()
        self.rows.clear()
        self.buffers.clear()

    def able(self, row):
        """Whether a row can go on with device slots."""
        model = self.pair.model
        page = row[-1] // self.page_size
        there = model.lens[page] if page in model.hot else 0
        return len(row) % self.page_size == 0 or there >= len(row) % self.page_size // model.ratio


class HiSparseMachine(HotRules, AllocatorMachine):
    """One logical side, whose groups are none."""

    @initialize(data=st.data(), order=st.sampled_from(ORDERS), num_pages=st.integers(0, 6), ratio=st.integers(1, 3))
    def make(self, data, order, num_pages, ratio):
        """Pools of any size; a few slots too many are unusable."""
        page_size = self.page_size = data.draw(st.sampled_from(PAGE_SIZES))
        size = num_pages * page_size + data.draw(st.integers(0, page_size - 1))
        self.pair = HiSparsePair(size, page_size, order, ratio)

    @rule(data=st.data(), form=forms, interrupted=st.booleans())
    def with_group(self, data, form, interrupted):
        """A `with` block makes no difference, whatever happens in it."""
        try:
            with self.pair.real.defer_frees(), self.pair.real.defer_frees():
                self.free_row(data, form)
                self.free_rows(data, form)
                assert self.pair.real.free_group is None
                interrupt(interrupted)
        except Interrupted:
            assert interrupted
        self.pair.check()


class CompressedMachine(HotRules, WindowMachine):
    """Two logical sides and blocks of tokens."""

    @initialize(data=st.data(), order=st.sampled_from(ORDERS), num_pages=st.integers(0, 9), ratio=st.integers(1, 4))
    def make(self, data, order, num_pages, ratio):
        """Three sides of any size; a few slots too many are unusable."""
        hot_size = data.draw(st.integers(1, 3))
        page_size = self.page_size = hot_size * ratio
        rest = st.integers(0, page_size - 1)
        sizes = [pages * page_size + data.draw(rest) for pages in (num_pages, data.draw(st.integers(0, 9)))]
        size = data.draw(st.integers(0, 9)) * hot_size + data.draw(st.integers(0, hot_size - 1))
        self.pair = CompressedPair(*sizes, size, page_size, order, ratio)


TestHiSparseAllocator = HiSparseMachine.TestCase
TestCompressedHiSparseAllocator = CompressedMachine.TestCase
TestHiSparseAllocator.settings = settings(max_examples=40, stateful_step_count=30)
TestCompressedHiSparseAllocator.settings = TestHiSparseAllocator.settings


@pytest.mark.soak
@pytest.mark.parametrize("machine", [HiSparseMachine, CompressedMachine])
def test_device_sides_agree_with_their_model_for_long(machine):
    """The same with many more and longer sequences."""
    run_state_machine_as_test(machine, settings=settings(max_examples=1500, stateful_step_count=60, deadline=None))
