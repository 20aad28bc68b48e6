"""The names of `kvstead.pools`, which are resolved when first used."""

import subprocess
import sys

import pytest

from kvstead import pools


def test_every_name_resolves():
    """Each exported name is a class or function of that name; any other is an attribute error."""
    assert [getattr(pools, name).__name__ for name in pools.__all__] == pools.__all__
    assert set(pools._MODULES) == set(pools.__all__)
    with pytest.raises(AttributeError, match="no attribute 'Nothing'"):
        pools.Nothing  # noqa: B018 - the lookup is the point


def test_an_allocator_needs_no_model():
    """The first allocator imports neither models nor their tensors."""
    code = (
        "import sys, kvstead; kvstead.PagedAllocator(64, 16); print(*(n for n in sys.modules if 'kvstead.model' in n))"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)  # noqa: S603
    assert found.stdout.strip() == ""
