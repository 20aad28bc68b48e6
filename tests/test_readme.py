"""The examples of the README and of the pages about embedding and sizing do what they say."""

import ast
import doctest
import re

import pytest

from kvstead.errors import DoubleFree
from kvstead.integrations import transformers
from paths import ROOT
from tiny_llm import save_tiny_llm

MANAGER, CHAT = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), flags=re.DOTALL)
EMBEDDING = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "embedding.md").read_text(), flags=re.DOTALL)
REFUSED, *RUNNING = EMBEDDING


def shown(code):
    """The comments behind the calls of `print`: what an example says that it prints, one line for each call."""
    calls = [
        node for node in ast.walk(ast.parse(code)) if isinstance(node, ast.Call) and ast.unparse(node.func) == "print"
    ]
    lines = re.findall(r"print\(.*\) +# (.*)", code)
    assert calls, "an example prints something"
    assert len(lines) == len(calls), "each print has its output behind it"
    return lines


@pytest.mark.parametrize("code", [MANAGER, *RUNNING])
def test_an_example_prints_what_stands_behind_its_lines(code, capsys):
    """Every line that an example prints is the comment behind the call, and none is missing."""
    exec(code, {})  # noqa: S102 - the project's own code
    assert capsys.readouterr().out.splitlines() == shown(code)


def test_a_double_free_is_refused_with_the_words_shown(capsys):
    """The allocator example prints its line, and its last call is refused with the words that follow it."""
    code, said = re.split(r"(?=# DoubleFree: )", REFUSED)
    with pytest.raises(DoubleFree) as caught:
        exec(code, {})  # noqa: S102 - the project's own code
    assert capsys.readouterr().out.splitlines() == shown(code)
    words = " ".join(line.removeprefix("#").strip() for line in said.splitlines())
    assert words == f"DoubleFree: {caught.value}"


def test_the_chat_goes_on_where_it_was(tmp_path, monkeypatch, capsys):
    """The example of a chat runs, here with a tiny model: its second turn finds whole pages of the first."""
    tiny = transformers.LLM(save_tiny_llm(tmp_path), num_bytes=2**20)
    monkeypatch.setattr(transformers, "LLM", lambda: tiny)
    exec(CHAT, {})  # noqa: S102 - the project's own code
    *_texts, found = capsys.readouterr().out.splitlines()
    num_cached, _of, num_tokens = found.split()
    assert len(shown(CHAT)) == 3
    assert int(num_cached) % 16 == 0
    assert 128 <= int(num_cached) < int(num_tokens)


def test_the_session_about_sizing_prints_what_it_shows():
    """Every line of the session in `docs/sizing.md` gives what stands below it."""
    results = doctest.testfile(str(ROOT / "docs" / "sizing.md"), module_relative=False)
    assert results.failed == 0
    assert results.attempted >= 5


@pytest.mark.parametrize(
    "page", ["README.md", "CONTRIBUTING.md", *(f"docs/{path.name}" for path in (ROOT / "docs").glob("*.md"))]
)
def test_links_lead_to_files_of_the_project(page):
    """A link of a page is an address of the web, or a file that is there."""
    for target in re.findall(r"\]\(([^)#\s]+)", (ROOT / page).read_text()):
        assert target.startswith("https://") or ((ROOT / page).parent / target).exists(), f"{page} links to {target}"
