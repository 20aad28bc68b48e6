"""SGLang 0.5.23's real scheduler, and once its whole engine, on its own classes and on ours: the same requests.

Every run is a process of its own, on a CPU, with SGLang's checks of its pools on; `engine/` has what is run.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from engine.configurations import DEFAULT, SOAK
from engine.driver import CHECKS
from engine.models import model_path

from paths import ROOT

pytestmark = pytest.mark.sglang

HERE = Path(__file__).parent
_PLACES = (ROOT / "src", ROOT / "benchmarks", HERE, HERE / "engine" / "site")


def environment(**settings):
    """That of a process that runs SGLang: what only a GPU has is stood in for, also in the processes that it starts."""
    quiet = {"PYTHONWARNINGS": "ignore", "TRANSFORMERS_VERBOSITY": "error", "OMP_NUM_THREADS": "1"}
    return os.environ | quiet | {"PYTHONPATH": ":".join(map(str, _PLACES))} | settings


class Engines:
    """The process that runs schedulers; both runs of a comparison go side by side."""

    def __init__(self, home):
        self.home = home
        command = [sys.executable, "-m", "engine.server", str(home)]
        # SGLang's own unified pools use Triton for pages, which runs on a CPU if it is interpreted.
        settings = environment(TRITON_INTERPRET="1")
        self._errors = (home / "server.log").open("w")
        self._process = subprocess.Popen(  # noqa: S603 - this interpreter
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._errors, text=True, env=settings
        )

    def compare(self, configuration, mode="strict"):
        """What SGLang did, and what it did in `mode`, by default on our classes."""
        targets = {one: self.home / f"{one}.json" for one in ("off", mode)}
        runs = [
            {"configuration": configuration.as_json(), "mode": one, "target": str(target)}
            for one, target in targets.items()
        ]
        self._process.stdin.write(json.dumps(runs) + "\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline()
        assert answer, (self.home / "server.log").read_text()[-3000:]
        said = {one: Path(f"{target}.log").read_text()[-3000:] for one, target in targets.items()}
        assert json.loads(answer) == [0, 0], said
        return tuple(json.loads(target.read_text()) for target in targets.values())

    def close(self):
        """End the process."""
        self._process.stdin.close()
        self._process.stdout.close()
        self._process.wait(60)
        self._errors.close()


@pytest.fixture(scope="module")
def engines(tmp_path_factory):
    """One process for all comparisons of this file: importing SGLang takes longer than most of them."""
    made = Engines(tmp_path_factory.mktemp("engines"))
    yield made
    made.close()


def assert_sound(run, library):
    """A run ended, on the classes of `library`, with all requests answered and SGLang's checkers content."""
    assert not run["error"], run["error"]
    assert run["unfinished"] == []
    assert run["flushed"] == [True]
    assert run["leak warnings"] == 0
    assert run["warned"] == []
    assert len(run["checks"]) == len(CHECKS) + 2
    assert all(run["checks"].values())
    assert run["types"]["allocator"].startswith(f"{library}.")
    assert run["types"]["tree"].startswith("sglang.")


def retractions(run):
    return sum(times for _, _, times in run["ends"].values())


def assert_no_worse(theirs, ours, configuration):
    """The same answers, in no more steps, with no more retractions and evictions."""
    assert set(ours["ends"]) == set(theirs["ends"])
    assert all(ours["tokens"][request] == theirs["tokens"][request] for request in theirs["ends"])
    assert ours["steps"] <= theirs["steps"]
    assert retractions(ours) <= retractions(theirs)
    for side, number in theirs["evicted"].items():
        assert ours["evicted"][side] <= number * configuration.may_evict


def parameters(configurations):
    """The comparisons of a test, by name."""
    return [pytest.param(configuration, id=configuration.name) for configuration in configurations]


def assert_identical(theirs, ours):
    """The same batches with as many free slots at every step, cache hits and evictions."""
    for fact in ("tokens", "ends", "aborted", "batches", "evicted", "snapshots"):
        assert ours[fact] == theirs[fact], fact


def check(engines, configuration):
    theirs, ours = engines.compare(configuration)
    assert_sound(theirs, "sglang")
    assert_sound(ours, "kvstead")
    assert_no_worse(theirs, ours, configuration)
    if not configuration.unified:  # in a unified pool ours counts exactly what fits
        assert_identical(theirs, ours)


@pytest.mark.parametrize("configuration", parameters(DEFAULT))
def test_scheduler_takes_the_same_steps(engines, configuration):
    """On pools of their own batches, cache hits and free slots are identical; in a unified pool nothing is worse."""
    check(engines, configuration)


@pytest.mark.soak
@pytest.mark.parametrize("configuration", parameters(SOAK))
def test_scheduler_takes_the_same_steps_throughout(engines, configuration):
    """The same for more models, page sizes and orders of events."""
    check(engines, configuration)


@pytest.mark.soak
@pytest.mark.parametrize("configuration", parameters(DEFAULT[1:4]))
def test_audit_is_silent_where_nothing_is_wrong(engines, configuration):
    """Under `audit` SGLang's own classes take the same steps, and no fault is reported."""
    theirs, followed = engines.compare(configuration, "audit")
    assert_sound(theirs, "sglang")
    assert_sound(followed, "sglang")
    assert_identical(theirs, followed)


def test_whole_engine_serves(engines):
    """SGLang's engine, unpatched and in its own processes, answers as the scheduler does, before and after a flush."""
    model = model_path(engines.home, "llama")
    ended = subprocess.run(  # noqa: S603 - this interpreter
        [sys.executable, "-m", "engine.whole", str(model), "16"],
        env=environment(KVSTEAD_SGLANG="strict", **CHECKS),
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr[-3000:]
    found = json.loads(ended.stdout.splitlines()[-1])
    theirs, _ = engines.compare(DEFAULT[0])
    expected = {name: theirs["tokens"][f"0/{name}"] for name in found["first"]}
    assert found == {"first": expected, "ended": "abort", "flushed": True, "again": expected}
