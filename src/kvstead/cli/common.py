"""What commands have in common: how they end, and how options exclude each other."""

from __future__ import annotations

from collections.abc import Sequence

import typer

EXIT_FAULT = 2
EXIT_INTERRUPTED = 130


def require_one(first: str, second: str, values: Sequence[object], *, least: int = 0) -> None:
    """Refuse two options that exclude each other, and none where one is needed."""
    given = sum(value is not None for value in values)
    if not least <= given <= 1:
        wanted = "Give one of them" if least else "Give one of them at most"
        raise typer.BadParameter(
            f"{'both are' if given else 'neither is'} given. {wanted}.", param_hint=f"{first} / {second}"
        )
