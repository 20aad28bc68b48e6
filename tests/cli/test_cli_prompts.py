import gzip
import io
import json
import sys

import pytest

from kvstead.cli.prompts import PromptRequest, read_prompts
from kvstead.errors import TraceError

CHAT = [{"role": "user", "content": "Hello?"}]
GOOD = {"prompt": "Hello?"}
KEY = {"start": 0, "end": None, "value": "tenant"}


@pytest.fixture
def written(tmp_path):
    """A file of the given lines; what is no text is written as JSON."""

    def write(*lines: object, compress=bytes):
        path = tmp_path / "prompts.jsonl"
        text = "\n".join(line if isinstance(line, str) else json.dumps(line) for line in lines)
        path.write_bytes(compress(text.encode()))
        return str(path)

    return write


def test_a_line_is_a_text_or_a_chat_with_its_sampling(written):
    """Texts and chats come in the order of their lines, blank ones between them left out, each with its place."""
    sampling = {"max_new_tokens": 5, "temperature": 1, "top_p": 0.5, "seed": 7, "keys": [KEY]}
    path = written(GOOD, "", {"messages": CHAT, **sampling}, "   ")
    first, second = read_prompts(path)
    assert first == PromptRequest("Hello?", {}, f"{path}, line 1")
    assert second == PromptRequest(CHAT, sampling, f"{path}, line 3")
    assert [one.title for one in (first, second)] == ["Hello?", "Hello?"]


@pytest.mark.parametrize("compress", [bytes, gzip.compress])
def test_prompts_come_by_standard_input_too(written, monkeypatch, compress):
    """A dash reads standard input, plain or compressed, and gives what the file gives."""
    path = written(GOOD, {"messages": CHAT}, compress=compress)
    with open(path, "rb") as stream:  # noqa: PTH123 - standard input is an open file
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stream.read())))
    assert [one.prompt for one in read_prompts("-")] == [one.prompt for one in read_prompts(path)]


@pytest.mark.parametrize(
    ("line", "wanted"),
    [
        ("Hello?", "one JSON object"),
        ("[1, 2]", "one JSON object"),
        ('{"prompt": "Hello?"', "one JSON object"),
        ({}, 'expected {"prompt": "..."} or {"messages": [...]}'),
        ({"seed": 1}, 'expected {"prompt": "..."} or {"messages": [...]}'),
        (GOOD | {"messages": CHAT}, 'expected {"prompt": "..."} or {"messages": [...]}'),
        (GOOD | {"max_tokens": 5}, "any of `max_new_tokens`, `temperature`, `top_p`, `top_k`, `stop`, `seed`"),
        ({"prompt": 5}, "as `prompt` a text, found 5"),
        ({"prompt": None}, "as `prompt` a text, found None"),
        ({"prompt": CHAT}, "as `prompt` a text"),
        ('{"prompt": "\\ud83d"}', "as `prompt` a text, found '\\ud83d'"),
        ({"messages": "Hello?"}, 'as `messages` a list of {"role": "...", "content": "..."}'),
        ({"messages": []}, "as `messages` a list"),
        ({"messages": ["Hello?"]}, "as `messages` a list"),
        ({"messages": [{"role": "user"}]}, "as `messages` a list"),
        ({"messages": [*CHAT, {"role": "user", "content": 5}]}, "as `messages` a list"),
        ({"messages": [{"role": "user", "content": "a", "name": "b"}]}, "as `messages` a list"),
        *(
            (GOOD | {key: value}, f"as `{key}` an integer")
            for key in ("max_new_tokens", "seed")
            for value in (True, 1.5)
        ),
        *((GOOD | {key: "1"}, f"as `{key}` a number, found '1'") for key in ("temperature", "top_p")),
        (GOOD | {"temperature": None}, "as `temperature` a number, found None"),
        *(
            (GOOD | {"keys": keys}, 'as `keys` a list of {"start": 0, "end": 8, "value": "..."}')
            for keys in (5, ["image"], [{"start": 0, "value": "a"}], [KEY | {"end": "8"}], [KEY | {"value": 5}])
        ),
    ],
)
def test_a_bad_line_is_refused_with_its_number(written, line, wanted):
    """Whatever is wrong with a line, the message has file, line and what was expected, and no prompt is taken."""
    path = written(GOOD, "", line, GOOD)
    with pytest.raises(TraceError) as refused:
        read_prompts(path)
    assert str(refused.value).startswith(f"{path}, line 3: expected ")
    assert wanted in str(refused.value)


@pytest.mark.parametrize("lines", [[], ["", "  "]])
def test_a_file_without_prompts_is_refused(written, lines):
    """An empty file says what was expected in it."""
    with pytest.raises(TraceError, match=r"prompts.jsonl has no prompts. Expected one line each: \{\"prompt\""):
        read_prompts(written(*lines))


@pytest.mark.parametrize("prompt", ["Hello?", CHAT])
def test_a_system_prompt_begins_each_chat_that_has_none(prompt):
    """A text becomes a user's; the system is said first unless a chat has its own."""
    assert PromptRequest(prompt).as_chat(None) == CHAT
    system = {"role": "system", "content": "Be brief."}
    assert PromptRequest(prompt).as_chat("Be brief.") == [system, *CHAT]
    own = [{"role": "system", "content": "Be long."}, *CHAT]
    assert PromptRequest(own).as_chat("Be brief.") == own
