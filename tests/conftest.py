"""Test profiles: Hypothesis without deadlines, and long runs only on request. A fixture for tests of interrupts."""

import os
import signal

import pytest
from hypothesis import HealthCheck, settings

os.environ.setdefault("OMP_NUM_THREADS", "1")  # more gain nothing here, and wait for each other beside another worker

_SOAK = os.environ.get("KVSTEAD_SOAK") == "1"

_ANY = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("default", _ANY, derandomize=True, max_examples=50)
settings.register_profile("soak", _ANY, max_examples=2000)
settings.load_profile("soak" if _SOAK else "default")


def pytest_collection_modifyitems(config, items):
    """Leave out what `make soak` runs."""
    if _SOAK:
        return
    kept = [item for item in items if "soak" not in item.keywords]
    left_out = [item for item in items if "soak" in item.keywords]
    config.hook.pytest_deselected(items=left_out)
    items[:] = kept


@pytest.fixture
def raising_interrupts():
    """Let SIGINT raise `KeyboardInterrupt`, also where it was ignored when the tests were started (`nohup`)."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)
