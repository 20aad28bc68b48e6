import io

import pytest
from rich.console import Console

from kvstead.report.table import print_generation, print_summary

SHARED = ("requests", "retractions", "prefix hit rate", "memory in use", "with cached prefixes", "memory by kind")


@pytest.fixture
def generated(summary):
    """The summary of a generation: what it has in common with a replay's, and its own."""
    common = ("model", "layout", "page_size", "cache_dtype", "requests", "prefix", "output_tokens", "rejections")
    figures = {key: summary[key] for key in (*common, "throughput_tok_s", "steps", "wall_s", "interrupted")}
    memory_keys = ("total_bytes", "peak_live_bytes", "mean_live_bytes", "peak_bytes", "mean_bytes", "by_kind")
    memory = {key: summary["memory"][key] for key in memory_keys}
    return figures | {"model": "SmolLM2 [135M] :brain:", "memory": memory, "outside_model_share": 0.0325}


def _printed(summary, print_it=print_generation):
    stream = io.StringIO()
    print_it(summary, Console(file=stream, width=160))
    return stream.getvalue()


def _lines(text):
    pairs = (line.strip().split("  ", 1) for line in text.splitlines() if "  " in line.strip())
    return {name: words.strip() for name, words in pairs}


def test_the_table_shows_options_and_figures(generated):
    """Model and memory in the first line, its name as it is; throughput, reuse and time outside the model below."""
    text = _printed(generated)
    headline = "SmolLM2 [135M] :brain:: 976.6 KiB of bfloat16, static layout, page size 16"
    assert text.splitlines()[0] == headline
    lines = _lines(text)
    assert lines["throughput"] == "1,234.6 tokens/s: 4,900 generated in 2 s"
    assert lines["outside the model"] == "3.25 % of the time, 4,321 steps"
    assert lines["requests"] == "98 of 100 finished, 2 rejected, 0 aborted"


def test_shared_figures_are_printed_as_for_a_replay(generated, summary):
    """Requests, retractions, reuse and memory are told in the very words of a replay's summary."""
    kinds = {"by_kind": {"full": 300_000, "window": 200_000}}
    ours = _lines(_printed(generated | {"memory": generated["memory"] | kinds}))
    replayed = _lines(_printed(summary | {"memory": summary["memory"] | kinds}, print_summary))
    assert {name: ours[name] for name in SHARED} == {name: replayed[name] for name in SHARED}


def test_an_interrupt_is_reported_below_the_table(generated):
    """That it was interrupted stands below the table, only if so."""
    assert "Interrupted" not in _printed(generated)
    assert _printed(generated | {"interrupted": True}).endswith("Interrupted: texts and figures end there.\n")
