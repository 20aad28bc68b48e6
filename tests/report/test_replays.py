"""Replays from Python: the same figures as the command's, as columns, frames and plots."""

import json
import re
import shlex
import sys
from types import SimpleNamespace

import numpy as np
import pytest

import kvstead
from kvstead.cli.main import main
from kvstead.errors import InvalidSize, LayoutError, TraceError
from kvstead.replay.readers import read_trace
from paths import ROOT

OF_ITS_OWN_TIME = ("wall_s", "memory_us_per_step")


@pytest.fixture(scope="module")
def trace(tmp_path_factory):
    """Twelve requests of two prompts, one second apart."""
    path = tmp_path_factory.mktemp("traces") / "small.jsonl"
    rows = [
        {"timestamp": 1000 * at, "input_length": 1024, "output_length": 8, "hash_ids": [at % 2, 2 + at % 2]}
        for at in range(12)
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.fixture(scope="module")
def replayed(trace):
    """The small trace on a memory that holds it."""
    return kvstead.replay_trace(trace, model="smollm2-135m", memory="1GiB", step_seconds=0.01)


def test_a_call_measures_what_the_command_does(trace, replayed, tmp_path, capsys):
    """The summary is the command's, but for wall times; the columns are those of its files."""
    with pytest.raises(SystemExit):
        main(shlex.split(f"replay {trace} --model smollm2-135m --memory 1GiB --step-ms 10 --json --out {tmp_path}"))
    said = json.loads(capsys.readouterr().out)
    summary = json.loads(json.dumps(replayed.summary))
    assert {key: value for key, value in summary.items() if key not in OF_ITS_OWN_TIME} == {
        key: value for key, value in said.items() if key not in OF_ITS_OWN_TIME
    }
    for columns, name in ((replayed.timeline, "timeline.csv"), (replayed.requests, "requests.csv")):
        lines = (tmp_path / name).read_text().splitlines()
        assert lines[0].split(",") == list(columns)
        assert {len(values) for values in columns.values()} == {len(lines) - 1}


def test_a_trace_that_was_read_replays_as_its_file(trace, replayed):
    """A `Trace` gives the figures of the file it was read from."""
    again = kvstead.replay_trace(read_trace(trace), model="smollm2-135m", memory=1 << 30, step_seconds=0.01)
    assert again.summary["prefix"] == replayed.summary["prefix"]
    assert all(np.array_equal(again.requests[name], values) for name, values in replayed.requests.items())


@pytest.mark.parametrize("package", ["pandas", "polars"])
@pytest.mark.parametrize("of", ["requests", "timeline"])
def test_a_frame_has_the_columns(replayed, package, of, monkeypatch):
    """The package that is there gets all columns by name."""
    for name in ("pandas", "polars"):
        monkeypatch.setitem(sys.modules, name, SimpleNamespace(DataFrame=dict) if name == package else None)
    assert replayed.frame(of) == getattr(replayed, of)


def test_a_frame_without_a_package_says_what_to_install(replayed, monkeypatch):
    """Without pandas and Polars the arrays remain, and the error says so."""
    for name in ("pandas", "polars"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(ImportError, match=r"needs pandas or polars\. Install one, or use the arrays of `\.timeline`"):
        replayed.frame("timeline")


def test_plots_are_written_to_the_folder(replayed, tmp_path):
    """Each path returned is a picture in the folder, which is made."""
    paths = replayed.plot(tmp_path / "new")
    assert paths
    for path in paths:
        assert path.parent == tmp_path / "new"
        assert path.stat().st_size > 1000


def test_its_text_says_what_was_served_and_how_full(replayed):
    """The repr names the model, the requests and the live peak."""
    live = replayed.summary["memory"]["peak_live_bytes"]
    assert repr(replayed).startswith("<ReplayedTrace of smollm2-135m: 12 of 12 requests finished, ")
    assert f"live peak {live:,} of 1,073,741,824 bytes" in repr(replayed)


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"memory": "1 gibs"}, InvalidSize, "'1 gibs' is not a size"),
        ({"layout": "dynamic"}, InvalidSize, "layout is 'dynamic'. Use one of static"),
        ({"mode": "fast"}, InvalidSize, "mode is 'fast'. Use one of batched"),
        ({"model": "lama"}, LayoutError, "'lama' is not a bundled model"),
        ({"pagesize": 8}, TypeError, "pagesize"),
        ({"trace": "nowhere.jsonl"}, (TraceError, OSError), "nowhere.jsonl"),
    ],
)
def test_what_cannot_be_replayed_is_named(trace, options, error, words):
    """A wrong size, layout, model, option or file is refused with its name."""
    asked = {"trace": trace, "model": "smollm2-135m", "memory": "1GiB"} | options
    with pytest.raises(error, match=words):
        kvstead.replay_trace(**asked)


def test_the_example_of_the_page_runs(monkeypatch, capsys, tmp_path):
    """The page about replays shows a whole program, which prints what stands behind its lines."""
    (code,) = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "replay.md").read_text(), flags=re.DOTALL)
    sample = ROOT / "src" / "kvstead" / "replay" / "samples" / "chat.jsonl.gz"
    monkeypatch.chdir(tmp_path)
    (tmp_path / "chat.jsonl.gz").symlink_to(sample)
    exec(code, {})  # noqa: S102 - the page's own code
    assert capsys.readouterr().out.splitlines() == re.findall(r"print\(.*\) +# (.*)", code)
    assert (tmp_path / "plots" / "memory.png").exists()
