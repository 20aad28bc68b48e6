"""The classes of an installed engine that kvstead replaces, as a table."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rich import box
from rich.markup import escape
from rich.table import Column, Table


def coverage_table(title: str, rows: Iterable[tuple[str, str, Sequence[str]]]) -> Table:
    """One line per class. rows: its path, why it is not replaced ("" if it is), and which members are left out."""
    columns = Column("class", no_wrap=True), "replaced"
    table = Table(*columns, title=escape(title), title_justify="left", title_style="bold", box=box.SIMPLE_HEAD)
    for path, fault, left_out in rows:
        replaced = f"yes, without {', '.join(left_out)}" if left_out else "yes"
        table.add_row(escape(path), escape(f"no: {fault}" if fault else replaced))
    return table
