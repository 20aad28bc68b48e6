"""Runs of every family only on request, because they are long; and one thread for all."""

import os

import pytest
import torch


def pytest_collection_modifyitems(config, items):
    """Deselect the tests marked `models` unless `KVSTEAD_MODELS=1`."""
    if os.environ.get("KVSTEAD_MODELS") == "1":
        return
    kept = [item for item in items if "models" not in item.keywords]
    config.hook.pytest_deselected(items=[item for item in items if "models" in item.keywords])
    items[:] = kept


@pytest.fixture(autouse=True, scope="module")
def one_thread():
    """Small models gain nothing from more threads, and slow down tenfold when another worker has the other core."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
