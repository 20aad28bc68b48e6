"""What the README shows of SmolLM2 is what it says."""

import re

import pytest

from paths import ROOT

pytestmark = pytest.mark.models

README = (ROOT / "README.md").read_text()


def test_the_chat_goes_as_the_readme_shows(capsys):
    """The example prints what stands behind its lines: two answers, and how much of the second turn was cached."""
    block = next(code for code in re.findall(r"```python\n(.*?)```", README, flags=re.DOTALL) if "LLM()" in code)
    exec(block, {})  # noqa: S102 - the README's own code
    assert capsys.readouterr().out.splitlines() == re.findall(r"print\(.*\) +# (.*)", block)
