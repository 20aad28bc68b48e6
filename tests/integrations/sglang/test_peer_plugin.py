"""SGLang 0.5.23 in processes of its own, with the plugin on and off."""

import json
import os
import subprocess
import sys
from functools import cache
from pathlib import Path

import peer  # noqa: F401 - makes SGLang importable
import pytest

from kvstead.integrations.sglang import coverage, surface
from kvstead.integrations.sglang.coverage import SEATS

pytestmark = pytest.mark.sglang


@cache
def process(mode):
    """What is found in a process with the switch set to `mode`, and what it said."""
    ended = subprocess.run(  # noqa: S603 - this interpreter
        [sys.executable, "-W", "ignore", str(Path(__file__).with_name("plugged.py"))],
        env=os.environ | {"KVSTEAD_SGLANG": mode},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr[-2000:]
    said = [line for line in ended.stderr.splitlines() if line.startswith("kvstead.sglang: ")]
    return json.loads(ended.stdout.splitlines()[-1]), said


@pytest.mark.parametrize("mode", ["1", "strict"])
def test_every_class_of_this_version_is_replaced(mode):
    """SGLang's loader replaces each in its module and in those that had imported it before, and logs it once."""
    found, said = process(mode)
    assert set(found["homes"].values()) == {"kvstead"}
    assert all(module.startswith("kvstead.") for module in [*found["early"], found["states"]])
    (line,) = said
    assert all(seat.name in line for seat in SEATS)
    assert "; not " not in line
    assert "HybridReqToTokenPool keeps SGLang's base" in line
    assert found["late"] == ["sglang"] * 3


def test_off_leaves_every_class_alone():
    """Nothing is replaced or logged, and every class could be replaced."""
    found, said = process("off")
    assert set(found["homes"].values()) == {"sglang"}
    assert found["faults"] == []
    assert not said


def test_caches_and_tables_of_sglang_answer_alike():
    """SGLang's prefix caches match as much and have as many slots available after every prompt, and as many rows."""
    (ours, _), (theirs, _) = process("1"), process("off")
    assert ours["trees"] == theirs["trees"]
    assert any(matched for matched, _ in ours["trees"][0])
    assert ours["rows"] == theirs["rows"]


def test_every_difference_that_is_explained_is_one():
    """No reason is given for a member that both have."""
    for finding in coverage.examine().findings:
        absent = surface.absent_members(finding.theirs, finding.ours)
        stand_ins = {other.ours for other in coverage.examine().findings}
        inherited = surface.inherited_members(finding.theirs, finding.ours, stand_ins)
        assert sorted(finding.left_out) == absent, finding.seat.name
        assert sorted(finding.inherited) == inherited, finding.seat.name
