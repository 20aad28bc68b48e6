"""The part of `kvstead chat` that loads torch and transformers: ask, stream, remember."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from contextlib import closing
from typing import Any

from rich.console import Console

from kvstead.cli.model_arguments import ModelArguments, is_text
from kvstead.integrations.transformers import LLM, Completion, FinishReason, SamplingParams
from kvstead.integrations.transformers.prompts import Message
from kvstead.report.console import output_console
from kvstead.report.progress import loading_bar
from kvstead.report.table import print_text
from kvstead.report.units import format_bytes, format_count

_HELP = "Ask something. /reset begins anew, Ctrl-C stops an answer, Ctrl-D ends."


class Chat:
    """One conversation: the messages so far, of which the cache holds what was computed."""

    def __init__(self, llm: LLM, params: SamplingParams, system: str | None, console: Console) -> None:
        self._llm = llm
        self._params = params
        self._begin: list[Message] = [] if system is None else [{"role": "system", "content": system}]
        self._messages = list(self._begin)
        self._console = console

    def turn(self, text: str) -> None:
        """Take a line of the user's: a command, or a message, whose answer is written as it comes."""
        if not text.strip():
            return
        if text.strip() == "/reset":
            self._messages = list(self._begin)
            print_text("A new conversation.", self._console, style="dim")
        elif text.startswith("/"):
            print_text(f"{text.split(maxsplit=1)[0]} is no command. {_HELP}", self._console, style="dim")
        elif not is_text(text):
            print_text("That is not UTF-8 text, so it was not sent.", self._console, style="dim")
        else:
            self._answer([*self._messages, {"role": "user", "content": text}])

    def _answer(self, messages: list[Message]) -> None:
        parts: list[str] = []
        completion = None
        try:
            with closing(self._llm.stream([messages], self._params)) as pieces:
                for piece in pieces:
                    parts.append(piece.text)
                    completion = piece.completion
                    self._write(piece.text)
        except KeyboardInterrupt:
            self._write(" ...")
        self._write("\n")
        if completion is not None and completion.finish_reason is FinishReason.REJECTED:
            print_text(f"Not answered: {completion.reason} /reset begins anew.", self._console, style="dim")
            return
        self._messages = [*messages, {"role": "assistant", "content": "".join(parts)}]
        print_text(self._figures(completion), self._console, style="dim")

    def _figures(self, completion: Completion | None) -> str:
        """What of the turn was cached, and what the memory holds now."""
        stats = self._llm.manager.stats()
        held = f"{format_bytes(stats.live + stats.cached)} of {format_bytes(stats.total_bytes)} in the cache"
        if completion is None:
            return f"stopped; {held}"
        found = f"{format_count(completion.num_cached)} of {format_count(len(completion.prompt_tokens))} tokens cached"
        return f"{found}, {format_count(len(completion.tokens))} generated; {held}"

    def _write(self, text: str) -> None:
        """Bypass the console, which would expand tabs and cut lines."""
        self._console.file.write(text)
        self._console.file.flush()


def run_chat(arguments: ModelArguments, keywords: Mapping[str, Any]) -> None:
    """Load the model and take turns until the end of standard input. keywords: of `LLM`."""
    params = SamplingParams(**arguments.sampling())  # refuse faulty ones before anything is loaded
    with loading_bar() as show:
        llm = LLM(arguments.model, **keywords, report=show)
    console = output_console()
    chat = Chat(llm, params, arguments.system, console)
    print_text(f"{llm.name}, {format_bytes(llm.manager.total_bytes)} of cache. {_HELP}", console, style="dim")
    while True:
        try:
            chat.turn(_ask(console))
        except EOFError:
            console.file.write("\n")
            return
        except KeyboardInterrupt:  # at the prompt
            console.file.write("\n")


def _ask(console: Console) -> str:
    """The next line of standard input; a prompt is shown, and lines can be edited, where that is a terminal."""
    if not sys.stdin.isatty():
        line = sys.stdin.readline()
        if not line:
            raise EOFError
        print_text(f"> {line.rstrip()}", console, style="bold")
        return line.rstrip("\n")
    import readline  # noqa: F401, PLC0415 - `input` then edits lines, and has a history

    return input("> ")
