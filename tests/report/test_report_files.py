import csv
import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvstead.report.files import hit_rates, timeline_of, to_json, write_plots, write_report

PNG = b"\x89PNG\r\n\x1a\n"


@pytest.fixture
def requests():
    """Two requests, of which the second never started."""
    times = {"arrival_s": np.array([0.0, 1.5]), "first_token_s": np.array([0.25, np.nan])}
    return times | {"output_tokens": np.array([3, 0])}


def test_the_summary_and_the_timeline_are_written_as_they_are(tmp_path, summary, columns, samples, requests):
    """`summary.json` reads back as the summary; `timeline.csv` has the columns' names and a row a sample."""
    folder = tmp_path / "new" / "folder"
    written = write_report(folder, summary, columns, samples, requests)
    assert sorted(written) == sorted(folder.iterdir())
    assert json.loads((folder / "summary.json").read_text()) == summary
    with (folder / "timeline.csv").open(newline="") as stream:
        header, *rows = csv.reader(stream)
    assert tuple(header) == columns
    assert [tuple(map(float, row)) for row in rows] == samples


def test_a_folder_holds_one_run(tmp_path, summary, columns, samples, requests):
    """A second report leaves nothing of the first: no longer file, and no plot that it does not draw; others stay."""
    (tmp_path / "notes.txt").write_text("mine")
    write_report(tmp_path, summary | {"model": "a" * 1000}, columns, samples, requests)
    assert (tmp_path / "hit_rate.png").exists()
    summary["prefix"]["hit_rate"] = None
    write_report(tmp_path, summary, columns, samples[:3], requests)
    names = ["memory.png", "notes.txt", "requests.csv", "requests.png", "summary.json", "timeline.csv"]
    assert sorted(path.name for path in tmp_path.iterdir()) == names
    assert json.loads((tmp_path / "summary.json").read_text()) == summary
    assert len((tmp_path / "timeline.csv").read_text().splitlines()) == 4


def test_a_report_that_fails_leaves_the_folder_as_it_was(tmp_path, summary, columns, samples, requests):
    """A fault while files are written changes none of those that are there."""
    write_report(tmp_path, summary, columns, samples, requests)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    with pytest.raises(ValueError, match="JSON"):
        write_report(tmp_path, summary | {"wall_s": float("nan")}, columns, samples[:3], requests)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_requests_are_written_a_row_each(tmp_path, summary, columns, samples, requests):
    """`requests.csv` has a column a figure; what did not happen is empty."""
    write_report(tmp_path, summary, columns, samples, requests)
    lines = (tmp_path / "requests.csv").read_text().splitlines()
    assert lines == ["arrival_s,first_token_s,output_tokens", "0.0,0.25,3", "1.5,,0"]


def test_json_never_holds_nan():
    """NaN is no JSON, so it is refused rather than written."""
    with pytest.raises(ValueError, match="JSON"):
        to_json({"value": float("nan")})


def test_plots_are_png_files_that_depend_on_the_data(tmp_path, summary, columns, samples):
    """Three pictures; one that changes when its column does."""
    first, second = tmp_path / "first", tmp_path / "second"
    for folder in (first, second):
        folder.mkdir()
    plots = write_plots(first, summary, timeline_of(columns, samples))
    assert [path.name for path in plots] == ["memory.png", "requests.png", "hit_rate.png"]
    assert all(path.read_bytes().startswith(PNG) for path in plots)
    changed = timeline_of(columns, [(*sample[:1], sample[1] + 5, *sample[2:]) for sample in samples])
    write_plots(second, summary, changed)
    same = {path.name: path.read_bytes() == (second / path.name).read_bytes() for path in plots}
    assert same == {"memory.png": True, "requests.png": False, "hit_rate.png": True}


def test_no_hit_rate_is_drawn_without_reuse(tmp_path, summary, columns, samples):
    """A trace that carries no reuse has no picture of it."""
    summary["prefix"]["hit_rate"] = None
    names = [path.name for path in write_plots(tmp_path, summary, timeline_of(columns, samples))]
    assert names == ["memory.png", "requests.png"]


@pytest.mark.parametrize("num_samples", [0, 1])
def test_a_single_sample_is_not_drawn(tmp_path, summary, columns, samples, requests, num_samples):
    """A replay that ended at once has no line to draw; the other files are written all the same."""
    written = write_report(tmp_path, summary, columns, samples[:num_samples], requests)
    assert [path.name for path in written] == ["requests.csv", "summary.json", "timeline.csv"]


def test_a_timeline_without_prompts_is_drawn(tmp_path, summary, columns, samples):
    """Samples taken before the first prompt was computed have no rate, and that is no fault."""
    early = [(*sample[:7], 0, 0, *sample[9:]) for sample in samples]
    assert len(write_plots(tmp_path, summary, timeline_of(columns, early))) == 3


@pytest.mark.parametrize("hours", [0.01, 0.5, 30])
def test_clocks_of_any_span_are_drawn(tmp_path, summary, columns, samples, hours):
    """Seconds, minutes and hours on the axis all work."""
    stretched = [(sample[0] / 39 * hours * 3600, *sample[1:]) for sample in samples]
    assert write_plots(tmp_path, summary, timeline_of(columns, stretched))


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 9), st.integers(0, 9)), min_size=2, max_size=30))
def test_hit_rates_equal_a_count_by_hand(growth):
    """Since the start and over the last twentieth of the clock, sample by sample, against sums written out."""
    clock = np.cumsum([second for second, _, _ in growth]).astype(float)
    hits = np.cumsum([min(hit, prompt) for _, hit, prompt in growth]).astype(float)
    prompts = np.cumsum([prompt for _, _, prompt in growth]).astype(float)
    timeline = {"clock_s": clock, "hit_tokens": hits, "prompt_tokens": prompts}
    overall, recent = hit_rates(timeline)
    for index in range(len(growth)):
        first = next(start for start in range(len(growth)) if clock[start] >= clock[index] - 0.05 * clock[-1])
        for rates, base in ((overall, (0, 0)), (recent, (hits[first], prompts[first]))):
            part, whole = hits[index] - base[0], prompts[index] - base[1]
            assert np.isnan(rates[index]) if whole == 0 else rates[index] == pytest.approx(100 * part / whole)
