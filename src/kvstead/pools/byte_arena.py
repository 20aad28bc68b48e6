"""One byte buffer that pools of different entry sizes share.

Each pool lays its pages on a grid of its own that starts at byte 0; which of them hold anything is the chain's business
(`kvstead.arena`). Page 0 of every pool, and what else begins below `sink_bytes`, is the sink: padded rows are written
there and nobody reads them.

    byte      0          sink_bytes                                                      total_bytes
              |  sink    |                                                                       |
    pages of 48 bytes    |  1  |  2  |  3  |  4  |  5  | ...
    pages of 32          | . | 2 | 3 | 4 | 5 | 6 | 7 | ...     page 1 would reach into the sink
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from kvstead.errors import InvalidSize, LayoutError
from kvstead.kernels.array_types import IntArray
from kvstead.kernels.arrays import to_device
from kvstead.pools.entry_spec import EntrySpec

# A gather needs as much memory again as it moves: on the host what a core caches, elsewhere what can be spared.
_HOST_COPY_BYTES = 256 << 10
_DEVICE_COPY_BYTES = 64 << 20


class ByteArena:
    """`total_bytes` of zeros on `device`, uint8; with `storage=False` only the arithmetic, for simulation.

    `specs` and `sink_bytes` are set by `register`. Raises `InvalidSize` for fewer bytes than 1.
    """

    def __init__(self, total_bytes: int, device: str | torch.device = "cpu", *, storage: bool = True) -> None:
        if total_bytes < 1:
            raise InvalidSize(f"total_bytes is {total_bytes}. An arena has 1 byte or more.")
        self.total_bytes = total_bytes
        self.device = torch.device(device)
        self.specs: tuple[EntrySpec, ...] = ()
        self.sink_bytes = 0
        self.storage = torch.zeros(total_bytes, dtype=torch.uint8, device=self.device) if storage else None

    def register(self, specs: Sequence[EntrySpec]) -> None:
        """Say which pools share the arena; the sink becomes as large as the largest page. Once an arena.

        Raises `LayoutError` for a second call, no pools, two of one name, or a pool that has no page above the sink.
        """
        if self.specs:
            raise LayoutError(f"the arena has its pools, {_names(self.specs)}. Make another arena for other pools.")
        if not specs or len({spec.name for spec in specs}) < len(specs):
            raise LayoutError(f"an arena needs pools of different names, got {_names(specs) or 'none'}. Rename them.")
        sink = max(spec.page_bytes for spec in specs)
        for spec in specs:
            if self.total_bytes // spec.page_bytes <= -(-sink // spec.page_bytes):
                raise LayoutError(
                    f"pool {spec.name!r} has no page of {spec.page_bytes} bytes between the sink of {sink} bytes and "
                    f"the end of an arena of {self.total_bytes} bytes. Make the arena larger."
                )
        self.sink_bytes = sink
        self.specs = tuple(specs)

    def first_page(self, spec: EntrySpec) -> int:
        """The first page above the sink."""
        return -(-self.sink_bytes // spec.page_bytes)

    def num_pages(self, spec: EntrySpec) -> int:
        """Pages on this pool's grid, from byte 0: its ids are below this."""
        return self.total_bytes // spec.page_bytes

    def num_usable(self, spec: EntrySpec) -> int:
        """Pages from the sink to the end: those that can ever hold anything."""
        return self.num_pages(spec) - self.first_page(spec)

    def pages(self, spec: EntrySpec) -> torch.Tensor:
        """All pages of one pool's grid, uint8[num_pages, page_bytes], without a copy; pools' views overlap.

        Raises `LayoutError` without storage.
        """
        if self.storage is None:
            raise LayoutError("this arena keeps books only. Make it with storage=True to have pages.")
        return self.storage.as_strided((self.num_pages(spec), spec.page_bytes), (spec.page_bytes, 1))

    def copy(self, spec: EntrySpec, dst: IntArray, src: IntArray) -> None:
        """Copy pages `src` of one pool to `dst`, int64[k] each; no page is in both, so their order is free.

        One gather and one scatter for every 64 MiB (256 KiB on the host). Without storage nothing happens.
        """
        if self.storage is None:
            return
        pages = widest(self.pages(spec))
        at_once = _HOST_COPY_BYTES if self.device.type == "cpu" else _DEVICE_COPY_BYTES
        step = max(1, at_once // spec.page_bytes)
        for at in range(0, src.size, step):
            taken = pages.index_select(0, to_device(src[at : at + step], self.device))
            pages.index_copy_(0, to_device(dst[at : at + step], self.device), taken)

    def zero(self, spec: EntrySpec, pages: IntArray) -> None:
        """Fill pages of one pool with zeros, int64[k]. Without storage nothing happens."""
        if self.storage is not None and pages.size:
            widest(self.pages(spec)).index_fill_(0, to_device(pages, self.device), 0)


def widest(pages: torch.Tensor) -> torch.Tensor:
    """The same pages in the widest integers that divide them: indexed copies cost by the element, not by the byte."""
    for dtype in (torch.int64, torch.int32, torch.int16):
        if pages.shape[1] % dtype.itemsize == 0:
            return pages.view(dtype)
    return pages


def _names(specs: Sequence[EntrySpec]) -> str:
    return ", ".join(repr(spec.name) for spec in specs)
