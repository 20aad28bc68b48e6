"""The examples of the README and of the pages about embedding, sizing and replays do what they say."""

import ast
import doctest
import os
import re
import shlex

import pytest

from kvstead.cli.main import main
from kvstead.errors import DoubleFree
from kvstead.integrations import transformers
from paths import ROOT, SHARED, needs_shared
from tiny_llm import save_tiny_llm

MANAGER, CHAT = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), flags=re.DOTALL)
EMBEDDING = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "embedding.md").read_text(), flags=re.DOTALL)
REFUSED, *RUNNING = EMBEDDING
TERMINAL = re.compile(r"```\n\$ (kvstead replay [^\n]*)\n(.*?)```", flags=re.DOTALL)
((DEMO, DEMO_SAYS),) = TERMINAL.findall((ROOT / "README.md").read_text())
REPLAYS = TERMINAL.findall((ROOT / "docs" / "benchmarks.md").read_text())
LEFT_OUT = re.compile(r"  (memory management|wall time) ")


def shown(code):
    """The comments behind the calls of `print`: what an example says that it prints, one line for each call."""
    calls = [
        node for node in ast.walk(ast.parse(code)) if isinstance(node, ast.Call) and ast.unparse(node.func) == "print"
    ]
    lines = re.findall(r"print\(.*\) +# (.*)", code)
    assert calls, "an example prints something"
    assert len(lines) == len(calls), "each print has its output behind it"
    return lines


def said(command, capsys):
    """The lines that a command prints, without empty ones and those about its own time."""
    with pytest.raises(SystemExit) as ended:
        main(shlex.split(command)[1:])
    assert not ended.value.code
    lines = [line.rstrip() for line in capsys.readouterr().out.splitlines()]
    return [line for line in lines if line and not LEFT_OUT.match(line)]


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


def test_the_demo_prints_the_readmes_table(monkeypatch, capsys):
    """`make demo` runs the README's command, and it prints what stands below it."""
    monkeypatch.chdir(ROOT)
    assert DEMO in (ROOT / "Makefile").read_text()
    assert said(DEMO, capsys) == [line for line in DEMO_SAYS.splitlines() if line]


@needs_shared
@pytest.mark.models
@pytest.mark.skipif(os.environ.get("KVSTEAD_MODELS") != "1", reason="half a minute each")
@pytest.mark.parametrize(
    ("command", "shown_lines"), REPLAYS, ids=[command.split("--model ")[1] for command, _ in REPLAYS]
)
def test_replays_of_a_production_trace_print_the_tables_shown(command, shown_lines, tmp_path, monkeypatch, capsys):
    """Each replay prints the lines of the page about benchmarks, in their order; one table there is cut off."""
    (tmp_path / "conversation_trace.jsonl").symlink_to(SHARED / "traces" / "mooncake_conversation.jsonl")
    monkeypatch.chdir(tmp_path)
    expected = [line for line in shown_lines.splitlines() if line]
    assert len(expected) >= 8
    assert said(command, capsys)[: len(expected)] == expected


def test_the_comparison_quotes_measured_figures():
    """Every figure of the README's comparison stands in a page of `benchmarks/results`."""
    pages = "\n".join(path.read_text() for path in (ROOT / "benchmarks" / "results").glob("*.md"))
    table = (ROOT / "README.md").read_text().partition("## How it compares")[2].partition("##")[0]
    rows = [[cell.strip() for cell in line.split("|")[2:4]] for line in table.splitlines() if line.startswith("| ")][1:]
    assert len(rows) >= 5
    for figure in (
        cell.removesuffix(" tokens/s").partition(" (")[0].removesuffix(" tokens/s") for row in rows for cell in row
    ):
        assert f" {figure} " in pages, f"{figure} is in no page of results"


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
