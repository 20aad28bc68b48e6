"""What commands share: options as the fields of a dataclass, options that exclude each other, exit codes."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any, TypeVar, get_type_hints

import typer

EXIT_NOTHING_DONE = 1
EXIT_FAULT = 2
EXIT_INTERRUPTED = 130

_Options = TypeVar("_Options")


def takes(options: type[_Options]) -> Callable[[Callable[[_Options], None]], Callable[..., None]]:
    """Make a command of a function that takes one dataclass: each of its fields is an argument or option.

    options: a dataclass whose fields are annotated like the parameters of a typer command.
    """
    hints = get_type_hints(options, include_extras=True)
    signature = inspect.signature(options)
    parameters = [each.replace(annotation=hints[each.name]) for each in signature.parameters.values()]

    def make_command(function: Callable[[_Options], None]) -> Callable[..., None]:
        @wraps(function)
        def command(**values: Any) -> None:
            function(options(**values))

        command.__annotations__ = hints
        command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]  # typer reads it
        return command

    return make_command


def require_one(first: str, second: str, values: Sequence[object], *, least: int = 0) -> None:
    """Refuse two options that exclude each other, and none where one is needed."""
    given = sum(value is not None for value in values)
    if not least <= given <= 1:
        wanted = "Give one of them" if least else "Give only one"
        raise typer.BadParameter(
            f"{'both are' if given else 'neither is'} given. {wanted}.", param_hint=f"{first} / {second}"
        )
