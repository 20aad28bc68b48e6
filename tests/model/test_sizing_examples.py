"""The examples of the document on sizing."""

import doctest

from paths import ROOT


def test_the_document_on_sizing_shows_what_comes_back():
    """Each of its expressions gives what is printed below it."""
    failed, attempted = doctest.testfile(str(ROOT / "docs" / "sizing.md"), module_relative=False)
    assert attempted == 5
    assert failed == 0
