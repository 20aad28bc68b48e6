"""What `kvstead generate` is asked for: its command line, and prompts from there or from a file of JSON lines."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any

import typer

from kvstead.cli.commands import require_one
from kvstead.cli.model_arguments import SAMPLING, ModelArguments, is_text
from kvstead.errors import TraceError
from kvstead.replay.logs.json_lines import Unreadable, json_record, malformed
from kvstead.replay.streams import read_lines, source_name

Message = dict[str, str]

_CONTENT = ("prompt", "messages")
_KEYS = ", ".join(f"`{key}`" for key in SAMPLING)
_WANTED = f'{{"prompt": "..."}} or {{"messages": [...]}}, and any of {_KEYS}, `keys`'


@dataclass(frozen=True, slots=True)
class PromptRequest:
    """One prompt: a text, or the messages of a chat.

    sampling: the keywords of `SamplingParams` that it gives itself, `keys` as dicts. place: its file and line, "" on
    the command line.
    """

    prompt: str | list[Message]
    sampling: Mapping[str, Any] = field(default_factory=dict)
    place: str = ""

    @property
    def title(self) -> str:
        """The text, or the last message of the chat."""
        return self.prompt if isinstance(self.prompt, str) else self.prompt[-1]["content"]

    def as_chat(self, system: str | None) -> list[Message]:
        """Its messages; a text is one of the user. `system` comes first, unless the chat has a system message."""
        messages = [{"role": "user", "content": self.prompt}] if isinstance(self.prompt, str) else self.prompt
        if system is None or messages[0]["role"] == "system":
            return messages
        return [{"role": "system", "content": system}, *messages]


@dataclass(frozen=True, kw_only=True)
class GenerateArguments(ModelArguments):
    """The command line of a generation."""

    prompt: Annotated[list[str] | None, typer.Option(metavar="TEXT", help="May be given several times.")] = None
    prompts: Annotated[
        str | None, typer.Option(metavar="FILE.jsonl", help="Lines of a prompt or messages; - is standard input.")
    ] = None
    raw: Annotated[bool, typer.Option("--raw", help="Take texts as they are, not as chats.")] = False
    max_running: Annotated[int, typer.Option(min=1, metavar="N", help="Requests on the memory at once.")] = 64
    stream: Annotated[bool, typer.Option("--stream", help="Write texts as they come.")] = False
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object on standard output.")] = False

    def __post_init__(self) -> None:
        require_one("--prompt", "--prompts", [self.prompt or None, self.prompts], least=1)
        require_one("--system", "--raw", [self.system, self.raw or None])
        if not all(map(is_text, [*(self.prompt or ()), self.system or ""])):
            raise typer.BadParameter("the text is not UTF-8.", param_hint="--prompt / --system")

    def requests(self) -> list[PromptRequest]:
        """The prompts of the command line, or of the file it names. Raises `TraceError` for a faulty line."""
        return read_prompts(self.prompts) if self.prompts is not None else [*map(PromptRequest, self.prompt or ())]


def read_prompts(path: str) -> list[PromptRequest]:
    """The prompts of a file, or of standard input for `-`: JSON Lines, plain, gzip or zstandard.

    Raises `TraceError` for a line that is not a prompt, with its number, and for a file without prompts.
    """
    source = source_name(path)
    lines = ((number, line) for number, line in enumerate(read_lines(path), start=1) if line and not line.isspace())
    prompts = [_parse(f"{source}, line {number}", line) for number, line in lines]
    if not prompts:
        raise TraceError(f"{source} has no prompts. Expected one line each: {_WANTED}.")
    return prompts


def _parse(place: str, line: str) -> PromptRequest:
    try:
        record = dict(json_record(line))
    except Unreadable:
        malformed(place, "one JSON object", line)
    content = [key for key in _CONTENT if key in record]
    if len(content) != 1 or not record.keys() <= {*_CONTENT, *SAMPLING, "keys"}:
        malformed(place, _WANTED, record)
    prompt = record.pop(content[0])
    is_right = is_text(prompt) if content == ["prompt"] else _is_chat(prompt)
    if not is_right:
        wanted = "a text" if content == ["prompt"] else 'a list of {"role": "...", "content": "..."}'
        malformed(place, f"as `{content[0]}` {wanted}", prompt)
    if not _are_keys(record.get("keys", [])):
        malformed(place, 'as `keys` a list of {"start": 0, "end": 8, "value": "..."}', record["keys"])
    for key, (wanted, types) in SAMPLING.items():
        if key in record and type(record[key]) not in types:  # `isinstance` would take true for an integer
            malformed(place, f"as `{key}` {wanted}", record[key])
    return PromptRequest(prompt, record, place)


def _is_chat(messages: object) -> bool:
    if not isinstance(messages, list) or not messages:
        return False
    return all(
        isinstance(message, dict) and message.keys() == {"role", "content"} and all(map(is_text, message.values()))
        for message in messages
    )


def _are_keys(keys: object) -> bool:
    return isinstance(keys, list) and all(
        isinstance(key, dict)
        and key.keys() == {"start", "end", "value"}
        and type(key["start"]) is int
        and type(key["end"]) in {int, type(None)}
        and is_text(key["value"])
        for key in keys
    )
