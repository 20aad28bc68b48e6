"""Writes traces as Mooncake JSON Lines, one request at a time."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, NamedTuple

import numpy as np
import zstandard

from kvstead.errors import TraceError
from kvstead.replay.trace import Trace


class MooncakeRow(NamedTuple):
    """A request as the format has it. arrival_ms: since the trace's first. block_ids: of `block_size` tokens each."""

    arrival_ms: float
    prompt_len: int
    output_len: int
    block_ids: list[int]
    block_size: int

    def line(self) -> str:
        """The row as a JSON object, without the line's end."""
        return json.dumps(
            {
                "timestamp": self.arrival_ms,
                "input_length": self.prompt_len,
                "output_length": self.output_len,
                "hash_ids": self.block_ids,
                "block_size": self.block_size,
            }
        )


def write_mooncake(trace: Trace, path: str | Path) -> None:
    """Write `trace` as `write_lines` writes. Raises also as `mooncake_lines` does, before the file is touched."""
    write_lines(mooncake_lines(trace), path)


def write_lines(lines: Iterable[str], path: str | Path) -> None:
    """Write lines to a file, compressed where the name ends in `.gz` or `.zst`.

    The same lines give the same bytes. Raises `TraceError` where the file cannot be written.
    """
    path = Path(path)
    try:
        with path.open("wb") as file, _compressed(file, path.suffix) as stream:
            for line in lines:
                stream.write(f"{line}\n".encode())
    except OSError as error:
        raise TraceError(f"{path} cannot be written ({error.strerror}). Check the path and its permissions.") from error


def mooncake_lines(trace: Trace) -> Iterator[str]:
    """One JSON object per request, in order of arrival; times in milliseconds, to the microsecond.

    Raises `TraceError` unless every request carries prefix ids of one block size: the format has no other rows.
    """
    if trace.block_size is None or (trace.block_sizes == 0).any():
        sizes = ", ".join(map(str, np.unique(trace.block_sizes)))
        raise TraceError(
            f"{trace.name} has block sizes {sizes} (0: no prefix ids). "
            "Mooncake rows need ids of one block size in every request."
        )
    return (_row(trace, request).line() for request in range(len(trace)))


def _row(trace: Trace, request: int) -> MooncakeRow:
    milliseconds = round(float(trace.arrivals[request]) * 1000, 3)
    return MooncakeRow(
        int(milliseconds) if milliseconds.is_integer() else milliseconds,
        int(trace.prompt_lens[request]),
        int(trace.output_lens[request]),
        trace.blocks(request).tolist(),
        int(trace.block_sizes[request]),
    )


@contextmanager
def _compressed(file: BinaryIO, suffix: str) -> Iterator[BinaryIO]:
    if suffix == ".gz":
        with gzip.GzipFile(filename="", mode="wb", fileobj=file, mtime=0) as stream:  # neither name nor time of day
            yield stream  # type: ignore[misc]  # typeshed has it as no BinaryIO
    elif suffix == ".zst":
        with zstandard.ZstdCompressor().stream_writer(file, closefd=False) as stream:
            yield stream
    else:
        yield file
