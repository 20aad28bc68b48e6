"""The examples of `docs/pools.md`."""

import doctest

import torch

from kvstead import allocators, model, pools
from paths import ROOT


def test_the_example_prints_what_the_page_shows():
    """Every line of the session prints what the page shows below it."""
    text = (ROOT / "docs" / "pools.md").read_text().replace("```", "")
    names = {name: getattr(package, name) for package in (allocators, model, pools) for name in package.__all__}
    names["torch"] = torch
    session = doctest.DocTestParser().get_doctest(text, names, "pools.md", "docs/pools.md", 0)
    results = doctest.DocTestRunner().run(session)
    assert results.failed == 0
    assert results.attempted >= 14
