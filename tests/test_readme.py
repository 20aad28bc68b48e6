"""The README's examples do what it says."""

import re

import pytest

from kvstead.errors import DoubleFree
from kvstead.integrations import transformers
from paths import ROOT
from tiny_llm import save_tiny_llm

BLOCKS = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), flags=re.DOTALL)


def test_slots_example_prints_and_refuses_what_the_readme_shows(capsys):
    """The allocator example parks 7 pages, and its last line is refused with the words that follow it."""
    code, said = re.split(r"(?=# DoubleFree: )", BLOCKS[0])
    with pytest.raises(DoubleFree) as caught:
        exec(code, {})  # noqa: S102 - the README's own code
    assert capsys.readouterr().out == "1048464 112\n"
    assert "# 1048464 112" in code
    words = " ".join(line.removeprefix("#").strip() for line in said.splitlines())
    assert words == f"DoubleFree: {caught.value}"


def test_windows_example_prints_what_the_readme_shows(capsys):
    """The example with a window prints padding for what has gone, and everything is free in the end."""
    exec(BLOCKS[1], {})  # noqa: S102 - the README's own code
    for line in capsys.readouterr().out.splitlines():
        assert f"# {line}" in BLOCKS[1]


def test_manager_example_prints_what_the_readme_shows(capsys):
    """The manager example finds 96 of 100 tokens the second time."""
    exec(BLOCKS[2], {})  # noqa: S102 - the README's own code
    found, by_state = capsys.readouterr().out.splitlines()
    assert found == "96"
    assert "# 96" in BLOCKS[2]
    assert list(eval(by_state)) == ["live", "cached", "parked", "free", "padding"]  # noqa: S307 - printed just above


def test_chat_example_goes_on_where_it_was(tmp_path, monkeypatch, capsys):
    """The example of a chat runs, here with a tiny model: its second turn finds whole pages of the first."""
    assert len(BLOCKS) == 4
    tiny = transformers.LLM(save_tiny_llm(tmp_path), num_bytes=2**20)
    monkeypatch.setattr(transformers, "LLM", lambda: tiny)
    exec(BLOCKS[3], {})  # noqa: S102 - the README's own code
    *_texts, found = capsys.readouterr().out.splitlines()
    num_cached, _of, num_tokens = found.split()
    assert int(num_cached) % 16 == 0
    assert 128 <= int(num_cached) < int(num_tokens)
