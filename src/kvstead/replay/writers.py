"""Writes traces as Mooncake JSON Lines or as a Parquet table, request by request."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np
import zstandard
from numpy.typing import NDArray

from kvstead.errors import TraceError
from kvstead.replay.logs.tables import pyarrow_for
from kvstead.replay.stats import session_of
from kvstead.replay.trace import Trace


class MooncakeRow(NamedTuple):
    """A request as the format has it. arrival_ms: since the trace's first. block_ids: of `block_size` tokens each.

    session: names the chat of a turn that others wait for or that waits. delay_ms: from the end of the turn before;
    where there is one, the row has no arrival.
    """

    arrival_ms: float
    prompt_len: int
    output_len: int
    block_ids: list[int] | None
    block_size: int
    session: str | None = None
    delay_ms: float | None = None

    def fields(self) -> dict[str, Any]:
        """The row's fields by the format's names, without those that it does not have."""
        fields = {
            "timestamp": self.arrival_ms if self.delay_ms is None else None,
            "input_length": self.prompt_len,
            "output_length": self.output_len,
            "hash_ids": self.block_ids,
            "block_size": None if self.block_ids is None else self.block_size,
            "session_id": self.session,
            "delay": self.delay_ms,
        }
        return {name: value for name, value in fields.items() if value is not None}

    def line(self) -> str:
        """The row as a JSON object, without the line's end."""
        return json.dumps(self.fields())


def write_trace(trace: Trace, path: str | Path) -> None:
    """Write a trace as a Parquet table where the name ends in `.parquet`, else as `write_mooncake`."""
    write = write_parquet if Path(path).suffix == ".parquet" else write_mooncake
    write(trace, path)


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

    Raises `TraceError` for block ids of several sizes: equal ids would not mean equal tokens.
    """
    return (row.line() for row in mooncake_rows(trace))


def mooncake_rows(trace: Trace) -> Iterator[MooncakeRow]:
    """The requests of a trace as rows, in order of arrival. Raises as `mooncake_lines`, before the first."""
    if trace.has_reuse and trace.block_size is None:
        sizes = ", ".join(map(str, np.unique(trace.block_sizes)))
        raise TraceError(f"{trace.name} has block sizes {sizes}. Write the traces of each block size on their own.")
    sessions = session_of(trace)
    turns = np.bincount(sessions, minlength=len(trace))
    return (_row(trace, request, sessions, turns) for request in range(len(trace)))


def write_parquet(trace: Trace, path: str | Path) -> None:
    """Write a trace as a Parquet table of Mooncake's fields. Raises as `write_mooncake`, and without pyarrow."""
    rows = mooncake_rows(trace)
    pyarrow = pyarrow_for(path)
    tokens, milliseconds = pyarrow.int64(), pyarrow.float64()
    schema = pyarrow.schema(
        [
            ("timestamp", milliseconds),
            ("input_length", tokens),
            ("output_length", tokens),
            ("block_size", tokens),
            ("session_id", pyarrow.string()),
            ("delay", milliseconds),
            ("hash_ids", pyarrow.list_(pyarrow.int64())),
        ]
    )
    try:
        with pyarrow.parquet.ParquetWriter(str(path), schema, compression="zstd") as table:
            while batch := [row.fields() for row in islice(rows, 4096)]:
                table.write_table(pyarrow.Table.from_pylist(batch, schema=schema))
    except OSError as error:
        raise TraceError(f"{path} cannot be written ({error}). Check the path and its permissions.") from error


def _row(trace: Trace, request: int, sessions: NDArray[np.int64], turns: NDArray[np.int64]) -> MooncakeRow:
    session, block_size = int(sessions[request]), int(trace.block_sizes[request])
    return MooncakeRow(
        _milliseconds(trace.arrivals[request]),
        int(trace.prompt_lens[request]),
        int(trace.output_lens[request]),
        trace.blocks(request).tolist() if block_size else None,
        block_size,
        f"{session}" if turns[session] > 1 else None,
        _milliseconds(trace.delays[request]) if trace.follows[request] >= 0 else None,
    )


def _milliseconds(seconds: float) -> float:
    rounded = round(float(seconds) * 1000, 3)
    return int(rounded) if rounded.is_integer() else rounded


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
