"""`kvstead chat`: talk with a model whose cache kvstead manages."""

from __future__ import annotations

from dataclasses import dataclass

import typer

from kvstead.cli.commands import takes
from kvstead.cli.model_arguments import ModelArguments, is_text, require_transformers


@dataclass(frozen=True, kw_only=True)
class ChatArguments(ModelArguments):
    """The command line of a chat."""

    def __post_init__(self) -> None:
        if self.system is not None and not is_text(self.system):
            raise typer.BadParameter("the text is not UTF-8.", param_hint="--system")


@takes(ChatArguments)
def chat(arguments: ChatArguments) -> None:
    """Chat with a Hugging Face model; each turn finds the ones before it in the cache, and says so.

    /reset begins anew, Ctrl-C stops an answer, Ctrl-D ends.
    """
    keywords = arguments.keywords(max_requests=1)
    require_transformers()

    # These imports take seconds, and help needs none of them.
    from kvstead.cli.chat_run import run_chat  # noqa: PLC0415

    run_chat(arguments, keywords)
