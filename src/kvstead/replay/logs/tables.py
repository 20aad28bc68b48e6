"""Parquet tables, by pyarrow, which is large and needed for them alone."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from kvstead.errors import TraceError


def table_rows(path: str) -> Iterator[tuple[int, dict[str, Any]]]:
    """The rows of a Parquet file and their numbers, read in batches. Raises `TraceError` for a damaged file."""
    pyarrow = pyarrow_for(path)
    try:
        with pyarrow.parquet.ParquetFile(path) as table:
            yield from enumerate((row for batch in table.iter_batches(4096) for row in batch.to_pylist()), start=1)
    except (pyarrow.ArrowException, OSError) as error:
        raise TraceError(f"{path} is no whole Parquet file ({error}). Fetch the file again.") from error


def pyarrow_for(path: str | Path) -> Any:
    """The package that reads and writes Parquet. Raises `TraceError` where it is missing."""
    try:
        import pyarrow.parquet  # noqa: PLC0415 - of the extra `parquet`
    except ModuleNotFoundError:
        raise TraceError(f"{path}: Parquet needs pyarrow. Install it with: pip install 'kvstead[parquet]'") from None
    return pyarrow
