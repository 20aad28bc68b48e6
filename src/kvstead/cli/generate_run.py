"""The part of `kvstead generate` that loads torch and transformers: load the model, generate, write texts, report."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict
from itertools import chain
from typing import Any

import typer
from rich.console import Console

from kvstead.cli.prompts import GenerateArguments, PromptRequest
from kvstead.errors import RequestError
from kvstead.integrations.transformers import LLM, Completion, FinishReason, Piece, SamplingParams
from kvstead.prefix import TokenKey
from kvstead.report.console import error_console, output_console
from kvstead.report.files import to_json
from kvstead.report.progress import loading_bar
from kvstead.report.table import print_generation, print_text

_MOST_TITLE = 72  # characters of a prompt that are shown above its answer


def generate_and_report(
    arguments: GenerateArguments, requests: Sequence[PromptRequest], keywords: Mapping[str, Any]
) -> bool:
    """Load, generate, print texts and summary; returns whether it was interrupted. keywords: of `LLM`."""
    sampling = arguments.sampling()
    params = [_params(request, sampling) for request in requests]  # refuse a faulty one before anything is loaded
    with loading_bar() as show:
        llm = LLM(arguments.model, **keywords, report=show)
    prompts = [
        each.prompt if arguments.raw and isinstance(each.prompt, str) else each.as_chat(arguments.system)
        for each in requests
    ]
    # With a JSON object on standard output, everything for the eye goes to standard error.
    console = error_console() if arguments.json else output_console()
    writer = AnswerWriter([request.title for request in requests], console)
    with closing(llm.stream(prompts, params)) as stream:
        completions, is_interrupted = _follow(stream, writer, len(requests), is_streamed=arguments.stream)
    summary = llm.summary() | {"interrupted": is_interrupted}
    print_generation(summary, console)
    if arguments.json:
        typer.echo(to_json({"completions": [asdict(completion) for completion in completions], "summary": summary}))
    return is_interrupted


def _follow(
    stream: Iterable[Piece], writer: AnswerWriter, num_prompts: int, *, is_streamed: bool
) -> tuple[list[Completion], bool]:
    """Write answers as they come, or at the end; returns completions by prompt, and whether it was interrupted."""
    pieces: list[list[Piece]] = [[] for _ in range(num_prompts)]
    is_interrupted = False
    try:
        for piece in stream:
            pieces[piece.index].append(piece)
            writer.add(piece.index, _shown(piece), is_last=piece.completion is not None)
            if is_streamed:
                writer.write()
    except KeyboardInterrupt:
        is_interrupted = True
    writer.write_rest()
    return [_completion(parts) for parts in pieces], is_interrupted


def _shown(piece: Piece) -> str:
    """The text of a piece, or why its prompt was rejected."""
    ended = piece.completion
    if ended is not None and ended.finish_reason is FinishReason.REJECTED:
        return f"(rejected: {ended.reason})"
    return piece.text


def _completion(pieces: Sequence[Piece]) -> Completion:
    """The completion of a prompt; after an interrupt, of the text that had come until then."""
    if pieces and pieces[-1].completion is not None:
        return pieces[-1].completion
    tokens = tuple(chain.from_iterable(piece.tokens for piece in pieces))
    return Completion((), tokens, "".join(piece.text for piece in pieces), FinishReason.ABORTED)


def _params(request: PromptRequest, sampling: Mapping[str, Any]) -> SamplingParams:
    try:
        given = {**sampling, **request.sampling}
        return SamplingParams(**given | {"keys": tuple(TokenKey(**key) for key in given.get("keys", ()))})
    except (RequestError, OverflowError) as error:  # also a whole number too large for a float
        raise RequestError(f"{request.place}: {error}" if request.place else str(error)) from error


class AnswerWriter:
    """Writes answers under their prompts, in the order of the prompts, in whatever order they arrive.

    titles: of the prompts; a single one is not shown. The first answer that has not ended is written as it comes. Those
    behind it wait, so that the text in the end is the same as if it had been written at the end.
    """

    def __init__(self, titles: Sequence[str], console: Console) -> None:
        self._titles = titles
        self._console = console
        self._parts: list[deque[str]] = [deque() for _ in titles]  # what is not written yet
        self._has_ended = [False] * len(titles)
        self._at = self._num_titled = 0  # the answer being written, and how many titles are written

    def add(self, index: int, text: str, *, is_last: bool) -> None:
        """Queue the next part of answer `index`; nothing is written yet."""
        self._parts[index].append(text)
        self._has_ended[index] = is_last

    def write(self) -> None:
        """Write the parts whose turn has come. After an interrupt the next call goes on where this one stopped."""
        while self._at < len(self._titles):
            if self._num_titled == self._at:
                self._num_titled += 1
                self._write_title()
            parts = self._parts[self._at]
            while parts:
                self._write(parts.popleft())
            if not self._has_ended[self._at]:
                return
            self._at += 1
            self._write("\n\n")

    def write_rest(self) -> None:
        """Write everything that was queued, and take all answers as ended."""
        self._has_ended = [True] * len(self._titles)
        self.write()

    def _write_title(self) -> None:
        if len(self._titles) > 1:
            line = " ".join(self._titles[self._at].split())
            shown = line if len(line) <= _MOST_TITLE else f"{line[: _MOST_TITLE - 3]}..."
            print_text(f"[{self._at + 1}] {shown}", self._console, style="bold")

    def _write(self, text: str) -> None:
        """Bypass the console, which would expand tabs and cut lines."""
        self._console.file.write(text)
        self._console.file.flush()
