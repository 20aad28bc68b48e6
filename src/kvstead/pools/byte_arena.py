"""One byte buffer that pools of different entry sizes share.

Each pool has its own grid of pages, which starts at byte 0. The chain (`kvstead.arena`) knows which pages are in use.
Page 0 of every pool, and every other page that begins below `sink_bytes`, is the sink: kernels write padded rows there,
and nothing reads them.

    byte      0          sink_bytes                                                      total_bytes
              |  sink    |                                                                       |
    pages of 48 bytes    |  1  |  2  |  3  |  4  |  5  | ...
    pages of 32          | . | 2 | 3 | 4 | 5 | 6 | 7 | ...     page 1 lies partly in the sink
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from kvstead.errors import InvalidSize, LayoutError
from kvstead.kernels.array_types import IntArray
from kvstead.kernels.arrays import to_device, whole
from kvstead.pools.entry_spec import EntrySpec

# A gather needs as much memory again as it moves. On the host the copy should stay in a core's cache.
_HOST_COPY_BYTES = 256 << 10
_DEVICE_COPY_BYTES = 64 << 20


class ByteArena:
    """`total_bytes` of zeros on `device`, uint8; with `storage=False` only the arithmetic, for simulation.

    `register` sets `specs` and `sink_bytes`. Raises `InvalidSize` for fewer than 1 byte.
    """

    def __init__(self, total_bytes: int, device: str | torch.device = "cpu", *, storage: bool = True) -> None:
        total_bytes = whole(total_bytes, "total_bytes")
        if total_bytes < 1:
            raise InvalidSize(f"total_bytes is {total_bytes}. Use 1 byte or more.")
        self.total_bytes = total_bytes
        self.device = torch.device(device)
        self.specs: tuple[EntrySpec, ...] = ()
        self.sink_bytes = 0
        self.storage = torch.zeros(total_bytes, dtype=torch.uint8, device=self.device) if storage else None

    def __repr__(self) -> str:
        pools = f"for {_names(self.specs)}" if self.specs else "without pools"
        return f"<ByteArena of {self.total_bytes:,} bytes, {pools}>"

    def register(self, specs: Sequence[EntrySpec]) -> None:
        """Set the pools that share the arena, once; the sink becomes as large as the largest page.

        Raises `LayoutError` for a second call, no pools, two of one name, or a pool without a page above the sink.
        """
        if self.specs:
            raise LayoutError(f"the arena already has pools: {_names(self.specs)}. Make another arena for other pools.")
        if not specs or len({spec.name for spec in specs}) < len(specs):
            raise LayoutError(
                f"the arena's pools are {_names(specs) or 'none'}. Give at least one, each under a name of its own."
            )
        sink = max(spec.page_bytes for spec in specs)
        for spec in specs:
            if self.total_bytes // spec.page_bytes <= -(-sink // spec.page_bytes):
                raise LayoutError(
                    f"an arena of {self.total_bytes} bytes holds no page of {spec.page_bytes} bytes of pool "
                    f"{spec.name!r} above its sink of {sink} bytes. Make the arena larger."
                )
        self.sink_bytes = sink
        self.specs = tuple(specs)

    def first_page(self, spec: EntrySpec) -> int:
        """The first page above the sink."""
        return -(-self.sink_bytes // spec.page_bytes)

    def num_pages(self, spec: EntrySpec) -> int:
        """Pages on this pool's grid, from byte 0: ids are below this number."""
        return self.total_bytes // spec.page_bytes

    def num_usable(self, spec: EntrySpec) -> int:
        """Pages above the sink: those that can hold data."""
        return self.num_pages(spec) - self.first_page(spec)

    def pages(self, spec: EntrySpec) -> torch.Tensor:
        """All pages of one pool's grid, uint8[num_pages, page_bytes]: a view, which overlaps those of other pools.

        Raises `LayoutError` without storage.
        """
        if self.storage is None:
            raise LayoutError("this arena has no storage. Make it with storage=True.")
        return self.storage.as_strided((self.num_pages(spec), spec.page_bytes), (spec.page_bytes, 1))

    def copy(self, spec: EntrySpec, dst: IntArray, src: IntArray) -> None:
        """Copy pages `src` of one pool to `dst`, int64[k] each; no page may be in both. Does nothing without storage.

        One gather and one scatter for every 64 MiB (256 KiB on the host).
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
        """Fill pages of one pool with zeros, int64[k]. Does nothing without storage."""
        if self.storage is not None and pages.size:
            widest(self.pages(spec)).index_fill_(0, to_device(pages, self.device), 0)


def widest(pages: torch.Tensor) -> torch.Tensor:
    """The same pages as the widest integers that divide them: indexed copies cost by the element, not by the byte."""
    for dtype in (torch.int64, torch.int32, torch.int16):
        if pages.shape[1] % dtype.itemsize == 0:
            return pages.view(dtype)
    return pages


def _names(specs: Sequence[EntrySpec]) -> str:
    return ", ".join(repr(spec.name) for spec in specs)
