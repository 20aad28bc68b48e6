"""The README's chat with SmolLM2."""

import re

import pytest

from paths import ROOT

pytestmark = pytest.mark.models

README = (ROOT / "README.md").read_text()


def test_the_chat_prints_what_the_readme_shows(capsys):
    """The example prints what its comments show: two answers, and how much of the second turn was cached."""
    block = next(code for code in re.findall(r"```python\n(.*?)```", README, flags=re.DOTALL) if "LLM()" in code)
    exec(block, {})  # noqa: S102 - the README's own code
    assert capsys.readouterr().out.splitlines() == re.findall(r"print\(.*\) +# (.*)", block)
