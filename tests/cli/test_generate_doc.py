"""The page about generating shows what is so."""

import re
from functools import partial

import pytest

from kvstead.integrations import transformers
from kvstead.integrations.transformers import FAMILIES, REFUSED, Way
from paths import ROOT
from tiny_llm import save_tiny_llm

PAGE = (ROOT / "docs" / "generate.md").read_text()


def test_the_examples_run(tmp_path, monkeypatch, capsys):
    """Every example runs as it stands, here with a tiny model: answers, their pieces, and one that is aborted."""
    tiny = partial(transformers.LLM, save_tiny_llm(tmp_path), max_length=40)
    monkeypatch.setattr(transformers, "LLM", lambda _name, num_bytes: tiny(num_bytes=num_bytes >> 11))
    blocks = re.findall(r"```python\n(.*?)```", PAGE, flags=re.DOTALL)
    names = {}
    said, aborted = [], []
    for block in blocks:
        exec(block, names)  # noqa: S102 - the page's own code
        said.append(capsys.readouterr().out.splitlines())
        aborted.append(names["llm"].summary()["requests"]["aborted"])
    answers, pieces, steps, sampled = said
    assert [line.split()[-2:] for line in answers] == [["length", "0"]] * 3
    assert sum(line in {"length", "stop"} for line in pieces) == 3
    assert aborted == [0, 0, 1, 0]
    assert len(steps) > 30  # the other request went on
    assert sampled == ["True"]


@pytest.mark.parametrize("way", Way)
def test_the_table_has_every_family(way):
    """The families of a way in the page are those in the table that decides."""
    row = next(line for line in PAGE.splitlines() if line.startswith(f"| `{way}` |"))
    assert re.findall(r"`(\w+)`", row.split("|")[2]) == [name for name, its_way in FAMILIES.items() if its_way is way]


def test_refused_families_are_named():
    """Every family that is refused by name stands in the paragraph that says why."""
    paragraph = PAGE.partition("Not run: ")[2].partition("\n\n")[0]
    assert set(re.findall(r"`(\w+)`", paragraph)) == set(REFUSED)
