"""The classes of an installed engine that kvstead replaces, as a table."""

from __future__ import annotations

from collections.abc import Iterable

from rich import box
from rich.markup import escape
from rich.table import Column, Table


def coverage_table(title: str, rows: Iterable[tuple[str, str]]) -> Table:
    """One line per class. rows: the path of each class, and why it is not replaced ("" if it is)."""
    columns = Column("class", no_wrap=True), "replaced"
    table = Table(*columns, title=escape(title), title_justify="left", title_style="bold", box=box.SIMPLE_HEAD)
    for path, fault in rows:
        table.add_row(escape(path), escape(f"no: {fault}" if fault else "yes"))
    return table
