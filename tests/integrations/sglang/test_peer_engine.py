"""SGLang 0.5.23's real scheduler, and once its whole engine, on its own classes and on ours: the same requests.

Every run is a process of its own, on a CPU, with SGLang's checks of its pools on; `engine/` has what is run.
"""

import json
import subprocess
import sys
from dataclasses import replace

import pytest
from engine.client import Engines, environment
from engine.configurations import DEFAULT, ON_OUR_TREE, SOAK, Configuration
from engine.driver import CHECKS
from engine.models import model_path

from kvstead.integrations.sglang.coverage import SEATS

pytestmark = pytest.mark.sglang


@pytest.fixture(scope="module")
def engines(tmp_path_factory):
    """One process for all comparisons of this file. Pages of SGLang's unified pools need Triton, interpreted here."""
    with Engines(tmp_path_factory.mktemp("engines"), TRITON_INTERPRET="1") as made:
        yield made


def assert_sound(run, library, tree="sglang"):
    """A run ended, on allocators of `library` and a cache of `tree`, all answered, and SGLang's checkers content."""
    assert not run["error"], run["error"]
    assert run["unfinished"] == []
    assert run["flushed"] == [True]
    assert run["leak warnings"] == 0
    assert run["warned"] == []
    assert len(run["checks"]) == len(CHECKS) + 2
    assert all(run["checks"].values())
    assert run["types"]["allocator"].startswith(f"{library}.")
    assert run["types"]["tree"].startswith(f"{tree}.")


def retractions(run):
    return sum(times for _, _, times in run["ends"].values())


def hits(run):
    return sum(tokens for _, tokens, _ in run["ends"].values())


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
    theirs, ours = engines.run(configuration, "off", "strict")
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
    theirs, followed = engines.run(configuration, "off", "audit")
    assert_sound(theirs, "sglang")
    assert_sound(followed, "sglang")
    assert_identical(theirs, followed)


@pytest.mark.soak
@pytest.mark.parametrize("configuration", parameters(ON_OUR_TREE))
def test_our_tree_serves_the_same_answers(engines, configuration):
    """With `--radix-cache-backend kvstead` every request gets the same tokens, with no fewer hits, in no more steps."""
    (theirs,) = engines.run(configuration, "strict")
    (ours,) = engines.run(replace(configuration, settings={"radix_cache_backend": "kvstead"}), "strict")
    assert_sound(theirs, "kvstead")
    assert_sound(ours, "kvstead", tree="kvstead")
    assert ours["tokens"] == theirs["tokens"]
    assert ours["steps"] <= theirs["steps"]
    assert hits(ours) >= hits(theirs)


@pytest.mark.parametrize("page_size", [1, 16])
def test_kvstead_as_radix_cache_backend_finds_as_much(engines, page_size):
    """On kvstead's own tree the scheduler does no worse than on SGLang's, and finds as many tokens in the cache."""
    configuration = Configuration("llama", "llama", "stream", 16, page_size=page_size)
    (theirs,) = engines.run(configuration, "off")
    (ours,) = engines.run(replace(configuration, settings={"radix_cache_backend": "kvstead"}), "strict")
    assert_sound(theirs, "sglang")
    assert_sound(ours, "kvstead", "kvstead")
    assert_no_worse(theirs, ours, configuration)
    assert hits(ours) >= hits(theirs) > 0


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
    assert len(found.pop("kvstead")["replaced"]) == len(SEATS)
    (theirs,) = engines.run(DEFAULT[0], "off")
    expected = {name: theirs["tokens"][f"0/{name}"] for name in found["first"]}
    assert found == {"first": expected, "ended": "abort", "flushed": True, "again": expected}
