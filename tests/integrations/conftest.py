"""Runs of every family, long, only on request; and one thread for all of them."""

import os

import pytest
import torch


def pytest_collection_modifyitems(config, items):
    """Leave out what needs `KVSTEAD_MODELS=1`."""
    if os.environ.get("KVSTEAD_MODELS") == "1":
        return
    kept = [item for item in items if "models" not in item.keywords]
    config.hook.pytest_deselected(items=[item for item in items if "models" in item.keywords])
    items[:] = kept


@pytest.fixture(autouse=True, scope="module")
def one_thread():
    """Models this small gain nothing from more, and lose tenfold where another worker has the other core."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
