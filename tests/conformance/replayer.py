"""Replays recorded allocator scripts on an allocator of ours, whatever pages ours picks.

A script names the pages its own allocator picked. `Renaming` keeps, for the pages alive, which of ours stands for which
of theirs: learned where pages are handed out, used to translate what a script frees or grows. With the identity asked
for (`exact`), ours must pick the very same.

`DRIVERS` says how the ops of each recorded class are put to ours; a class with a second pool brings its own driver.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from kvstead.allocators import Allocator

Op = dict[str, Any]

_JUNK = -77  # what a caller's buffer holds once a free has returned


@dataclass(frozen=True, slots=True)
class Script:
    """One line of a vector file: a fresh allocator's life."""

    name: str
    kind: str
    size: int
    page_size: int
    always_lowest: bool
    ops: list[Op]
    swa_size: int = 0


def read_scripts(path: Path) -> Iterator[Script]:
    """All scripts of a vector file."""
    with path.open() as lines:
        for raw in map(json.loads, lines):
            lowest = raw.get("always_lowest", False)
            yield Script(
                raw["id"], raw["class"], raw["size"], raw["page_size"], lowest, raw["ops"], raw.get("swa_size", 0)
            )


class Renaming:
    """Which page of ours stands for which recorded one, both ways, for pages that are alive."""

    def __init__(self, page_size: int, *, exact: bool) -> None:
        self.page_size = page_size
        self.exact = exact
        self._ours: dict[int, int] = {}
        self._theirs: dict[int, int] = {}
        self._parked: set[int] = set()

    def learn(self, recorded: list[int], got: list[int]) -> None:
        """Take note of slots handed out: the same offsets and page pattern, and no page that is held already."""
        assert len(got) == len(recorded), f"{len(got)} slots instead of {len(recorded)}"
        for theirs, ours in zip(recorded, got, strict=True):
            (page, offset), (our_page, our_offset) = divmod(theirs, self.page_size), divmod(ours, self.page_size)
            assert offset == our_offset, f"slot {ours} for {theirs}: another offset in the page"
            assert our_page not in self._parked, f"page {our_page} was handed out while parked"
            expected = page if self.exact else self._ours.setdefault(page, our_page)
            assert our_page == expected, f"page {our_page} for {page}, which was to be {expected}"
            holder = self._theirs.setdefault(our_page, page)
            assert holder == page, f"page {our_page} for {page} was handed out for {holder} and still lives"
            self._ours[page] = our_page

    def translate(self, slots: list[int]) -> list[int]:
        """Recorded slots as ours; -1 stays -1."""
        size = self.page_size
        return [slot if slot < 0 else self._ours[slot // size] * size + slot % size for slot in slots]

    def translate_known(self, slots: list[int]) -> list[int]:
        """Recorded slots as ours; those of pages that nobody holds stay what they are."""
        return [self.translate([slot])[0] if slot // self.page_size in self._ours else slot for slot in slots]

    def forget(self, slots: list[int], *, into_group: bool) -> None:
        """The pages of recorded `slots` are freed, at once or when the open group ends."""
        for page in {slot // self.page_size for slot in slots}:
            ours = self._ours.pop(page)
            del self._theirs[ours]
            if into_group:
                self._parked.add(ours)

    def group_ended(self) -> None:
        """What was parked may be handed out again."""
        self._parked.clear()

    def clear(self) -> None:
        """Nobody holds anything."""
        self._ours.clear()
        self._theirs.clear()
        self._parked.clear()


class OnePool:
    """Puts the ops of a one-pool class to an allocator of ours: one method an op."""

    def __init__(self, allocator: Allocator, *, exact: bool) -> None:
        self.allocator = allocator
        self.pages = Renaming(allocator.page_size, exact=exact)

    def apply(self, op: Op) -> None:
        """Do one op and compare the answer and every count with what was recorded."""
        getattr(self, op["op"])(op)
        for name, count in self.counts().items():
            assert count == op[name], f"{name} is {count} instead of {op[name]}"

    def counts(self) -> dict[str, int]:
        """The figures that stand behind every recorded op, by their recorded names."""
        return {"available": self.allocator.available_size()}

    def alloc(self, op: Op) -> None:
        """Whole pages."""
        self._compare(op, self.allocator.alloc(op["n"]))

    def alloc_extend(self, op: Op) -> None:
        """Rows that grow by any number of tokens."""
        last = self.pages.translate(op["last_locs"])
        self._compare(op, self.allocator.alloc_extend(op["prefix_lens"], op["seq_lens"], last))

    def alloc_decode(self, op: Op) -> None:
        """Rows that grow by one."""
        last = self.pages.translate(op["last_locs"])
        self._compare(op, self.allocator.alloc_decode(op["seq_lens"], last))

    def free(self, op: Op) -> None:
        """Slots in any order."""
        buffer = self._buffer(op["slots"])
        self.allocator.free(buffer)
        buffer.fill_(_JUNK)
        self._forget(op["slots"])

    def free_segment(self, op: Op) -> None:
        """One stretch of a row."""
        buffer = self._buffer(op["slots"])
        self.allocator.free_segment(buffer, start_pos=op["start_pos"])
        buffer.fill_(_JUNK)
        self._forget(op["slots"])

    def free_segments(self, op: Op) -> None:
        """Several stretches of one row."""
        buffers = [(self._buffer(slots), start) for slots, start in op["segments"]]
        self.allocator.free_segments(buffers)
        for buffer, _ in buffers:
            buffer.fill_(_JUNK)
        for slots, _ in op["segments"]:
            self._forget(slots)

    def group_begin(self, _op: Op) -> None:
        """Frees wait from here on."""
        self.allocator.free_group_begin()

    def group_end(self, _op: Op) -> None:
        """They take effect; without a group nothing happens."""
        self.allocator.free_group_end()
        self.pages.group_ended()

    def clear(self, _op: Op) -> None:
        """A fresh pool again."""
        self.allocator.clear()
        self.pages.clear()

    def _buffer(self, slots: list[int]) -> torch.Tensor:
        return torch.tensor(self.pages.translate(slots), dtype=torch.int64)

    def _forget(self, slots: list[int]) -> None:
        self.pages.forget(slots, into_group=self.allocator.free_group is not None)

    def _compare(self, op: Op, got: torch.Tensor | None) -> None:
        recorded = op["result"]
        assert (got is None) == (recorded is None), f"{op['op']} gave {got} instead of {recorded}"
        if got is not None:
            assert got.dtype == torch.int64, f"slots are {got.dtype}"
            self.pages.learn(recorded, got.tolist())


class TwoPools(OnePool):
    """Puts the ops of the class with a window side to ours: a renaming for each side, and which pages are linked."""

    def __init__(self, allocator: Allocator, *, exact: bool) -> None:
        super().__init__(allocator, exact=exact)
        self.windows = Renaming(allocator.page_size, exact=exact)
        self.links: dict[int, int] = {}  # recorded window page of each recorded full page that has one

    def counts(self) -> dict[str, int]:
        """Both sides, and the shorter of them."""
        full, window = self.allocator.full_available_size(), self.allocator.swa_available_size()
        return {**super().counts(), "full_available": full, "swa_available": window}

    def alloc_extend_swa_tail(self, op: Op) -> None:
        """A row with window pages under its tail alone."""
        last = self.pages.translate(op["last_locs"])
        got = self.allocator.alloc_extend_swa_tail(op["prefix_lens"], op["seq_lens"], last, op["tail_len"])
        self._compare(op, got)

    def free_swa(self, op: Op) -> None:
        """The window side of slots."""
        self._free(self.allocator.free_swa, op["slots"])
        self._forget_peers(op["slots"])

    def free_swa_segment(self, op: Op) -> None:
        """The window side of a stretch of a row."""
        self._free(self.allocator.free_swa_segment, op["slots"], start_pos=op["start_pos"])
        self._forget_peers(op["slots"])

    def free_full(self, op: Op) -> None:
        """Slots whose window side is gone."""
        self._free(self.allocator.free_full, op["slots"])
        self._forget(op["slots"])

    def free_full_segment(self, op: Op) -> None:
        """A stretch of a row whose window side is gone."""
        self._free(self.allocator.free_full_segment, op["slots"], start_pos=op["start_pos"])
        self._forget(op["slots"])

    def translate(self, op: Op) -> None:
        """Window slots of full ones."""
        got = self.allocator.window_slots(self.pages.translate(op["slots"])).tolist()
        expected = [slot and self.windows.translate([slot])[0] for slot in op["result"]]
        assert got == expected, f"window slots {got} instead of {expected}"

    def group_end(self, op: Op) -> None:
        """Frees of both sides take effect."""
        super().group_end(op)
        self.windows.group_ended()

    def clear(self, op: Op) -> None:
        """Both sides are fresh, and nothing is anybody's window page."""
        super().clear(op)
        self.windows.clear()
        self.links.clear()

    def _free(self, free: Callable[..., None], slots: list[int], **position: int) -> None:
        buffer = self._buffer(slots)
        free(buffer, **position)
        buffer.fill_(_JUNK)

    def _forget(self, slots: list[int]) -> None:
        self._forget_peers(slots)
        super()._forget(slots)

    def _forget_peers(self, slots: list[int]) -> None:
        size = self.allocator.page_size
        gone = [self.links.pop(page) for page in {slot // size for slot in slots} if page in self.links]
        self.windows.forget([page * size for page in gone], into_group=self.allocator.free_group is not None)

    def _compare(self, op: Op, got: torch.Tensor | None) -> None:
        super()._compare(op, got)
        if got is None:
            return
        recorded, ours = op["window"], self.allocator.window_slots(got).tolist()
        assert [slot > 0 for slot in ours] == [slot > 0 for slot in recorded], f"window slots {ours} for {recorded}"
        self.windows.learn([slot for slot in recorded if slot], [slot for slot in ours if slot])
        size = self.allocator.page_size
        self.links |= {full // size: slot // size for full, slot in zip(op["result"], recorded, strict=True) if slot}


class PureWindow(OnePool):
    """Puts the ops of the class in which every slot is its own window slot to ours.

    A recorded `free_full` does nothing and so may name slots that are free or another request's by then. Those are put
    to ours too, as whatever they are called now, for ours does nothing either.
    """

    def counts(self) -> dict[str, int]:
        """The one pool, under three names."""
        full, window = self.allocator.full_available_size(), self.allocator.swa_available_size()
        return {**super().counts(), "full_available": full, "swa_available": window}

    def free_swa(self, op: Op) -> None:
        """The same as `free`."""
        buffer = self._buffer(op["slots"])
        self.allocator.free_swa(buffer)
        buffer.fill_(_JUNK)
        self._forget(op["slots"])

    def free_swa_segment(self, op: Op) -> None:
        """The same as `free_segment`."""
        buffer = self._buffer(op["slots"])
        self.allocator.free_swa_segment(buffer, start_pos=op["start_pos"])
        buffer.fill_(_JUNK)
        self._forget(op["slots"])

    def free_full(self, op: Op) -> None:
        """Nothing."""
        self.allocator.free_full(self.pages.translate_known(op["slots"]))

    def free_full_segment(self, op: Op) -> None:
        """Nothing."""
        self.allocator.free_full_segment(self.pages.translate_known(op["slots"]), start_pos=op["start_pos"])


class HotPools(OnePool):
    """Puts the ops of the class with a device side to ours: a renaming for each side, and who owns which pages."""

    def __init__(self, allocator: Allocator, *, exact: bool) -> None:
        super().__init__(allocator, exact=exact)
        self.devices = Renaming(allocator.page_size, exact=exact)
        self.hot: dict[int, int] = {}  # recorded device page of each recorded logical page that has one

    def counts(self) -> dict[str, int]:
        """Both sides, and the shorter of them."""
        logical, device = self.allocator.logical_available_size(), self.allocator.device_available_size()
        return {**super().counts(), "logical_available": logical, "device_available": device}

    def alloc_logical_only(self, op: Op) -> None:
        """Rows that grow on the host alone."""
        last = self.pages.translate(op["last_locs"])
        self._compare(op, self.allocator.alloc_logical_only(op["prefix_lens"], op["seq_lens"], last))

    def alloc_device_buffer(self, op: Op) -> None:
        """The device side of a row as a buffer of its own."""
        buffer = self._buffer(op["slots"])
        got = self.allocator.alloc_device_buffer(buffer, op["n"])
        buffer.fill_(_JUNK)
        recorded = op["result"]
        assert (got is None) == (recorded is None), f"a buffer is {got} instead of {recorded}"
        if recorded is not None:
            lost = self._leave_devices(op["slots"]) - {slot // self.pages.page_size for slot in recorded}
            self._free_devices(lost)
            self.devices.learn(recorded, got.tolist())

    def free_hisparse_indices(self, op: Op) -> None:
        """The end of a buffer."""
        buffer = torch.tensor(self.devices.translate(op["slots"]), dtype=torch.int64)
        self.allocator.free_hisparse_indices(buffer)
        buffer.fill_(_JUNK)
        self._free_devices({slot // self.pages.page_size for slot in op["slots"]})

    def translate(self, op: Op) -> None:
        """Device slots of logical ones."""
        got = self.allocator.device_slots(self.pages.translate(op["slots"])).tolist()
        expected = [slot and self.devices.translate([slot])[0] for slot in op["result"]]
        assert got == expected, f"device slots {got} instead of {expected}"

    def clear(self, op: Op) -> None:
        """Both sides are fresh, and nothing is on the device."""
        super().clear(op)
        self.devices.clear()
        self.hot.clear()

    def _forget(self, slots: list[int]) -> None:
        self._free_devices(self._leave_devices(slots))
        super()._forget(slots)

    def _leave_devices(self, slots: list[int]) -> set[int]:
        size = self.pages.page_size
        return {self.hot.pop(page) for page in {slot // size for slot in slots} if page in self.hot}

    def _free_devices(self, pages: set[int]) -> None:
        self.devices.forget([page * self.pages.page_size for page in pages], into_group=False)

    def _compare(self, op: Op, got: torch.Tensor | None) -> None:
        super()._compare(op, got)
        if got is None:
            return
        size = self.pages.page_size
        recorded = op.get("device", [0] * len(got))
        ours = self.allocator.device_slots(got).tolist()
        assert [slot > 0 for slot in ours] == [slot > 0 for slot in recorded], f"device slots {ours} for {recorded}"
        self.devices.learn([slot for slot in recorded if slot], [slot for slot in ours if slot])
        self.hot |= {page // size: slot // size for page, slot in zip(op["result"], recorded, strict=True) if slot}


DRIVERS: dict[str, type[OnePool]] = {
    "token": OnePool,
    "paged": OnePool,
    "swa": TwoPools,
    "pure_swa": PureWindow,
    "hisparse": HotPools,
}


def replay(script: Script, allocator: Allocator, *, exact: bool = False) -> None:
    """Run a whole script; an `AssertionError` names the script and the op where the answers part."""
    driver = DRIVERS[script.kind](allocator, exact=exact)
    for number, op in enumerate(script.ops):
        try:
            driver.apply(op)
        except Exception as error:
            raise AssertionError(f"{script.name}, op {number} ({op['op']}): {error}") from error
    allocator.audit()
