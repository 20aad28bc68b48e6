"""Writes traces as Mooncake JSON Lines."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import zstandard

from kvstead.errors import TraceError
from kvstead.replay.trace import Trace


def write_mooncake(trace: Trace, path: str | Path) -> None:
    """Write `trace` as Mooncake JSON Lines, compressed where the name ends in `.gz` or `.zst`.

    The same trace gives the same bytes. Raises `TraceError` as `mooncake_lines` does, before the file is touched, and
    where the file cannot be written.
    """
    path = Path(path)
    data = "".join(f"{line}\n" for line in mooncake_lines(trace)).encode()
    if path.suffix == ".gz":
        data = gzip.compress(data, mtime=0)  # no time of day in the file
    elif path.suffix == ".zst":
        data = zstandard.ZstdCompressor().compress(data)
    try:
        path.write_bytes(data)
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
    return (_line(trace, request) for request in range(len(trace)))


def _line(trace: Trace, request: int) -> str:
    milliseconds = round(float(trace.arrivals[request]) * 1000, 3)
    return json.dumps(
        {
            "timestamp": int(milliseconds) if milliseconds.is_integer() else milliseconds,
            "input_length": int(trace.prompt_lens[request]),
            "output_length": int(trace.output_lens[request]),
            "hash_ids": trace.blocks(request).tolist(),
            "block_size": int(trace.block_sizes[request]),
        }
    )
