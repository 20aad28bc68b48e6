"""SGLang's own allocators under kvstead's audit, in a process of their own."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.sglang


def test_legal_calls_are_silent_and_each_fault_is_named():
    """Random legal calls on every pool report nothing; a page freed twice, padding and a changed list each do."""
    command = [sys.executable, "-W", "ignore", str(Path(__file__).with_name("audited.py"))]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603 - this interpreter
    assert ended.returncode == 0, ended.stderr[-2000:]
    found = json.loads(ended.stdout.splitlines()[-1])
    assert found["followed"] == 6
    assert found["legal"] == []
    for twice in ("twice", "segment"):
        assert "page 1 was freed while nobody held it, at audited.py:" in found[twice]
        assert "it was taken at audited.py:" in found[twice]
        assert "and freed at audited.py:" in found[twice]
    assert "page 0 is padding" in found["padding"]
    assert "somebody changed the pool's lists without a call" in found["written"]
