import csv
import gzip
import io
import json
import sys
from contextlib import nullcontext
from importlib.resources import files
from pathlib import Path

import pytest

from kvstead.model import load_layout

MODEL = "llama-3.1-8b"
TOKEN_BYTES = 131_072

STATES = {"live", "cached", "parked", "free", "padding"}
QUANTILES = {"p50", "p90", "p99"}
SCHEMA = {
    "trace": list,
    "model": str,
    "layout": str,
    "page_size": int,
    "requests": {"total", "finished", "rejected", "retracted", "aborted"},
    "prefix": {
        "hit_tokens",
        "prompt_tokens",
        "hit_rate",
        "found_tokens",
        "lost_to_dead_windows",
        "evicted_tokens",
        "tombstoned_tokens",
        "tombstone_tokens",
        "lost_to_missing_states",
        "evicted_states",
        "evicted_states_alone",
    },
    "memory": {
        "total_bytes",
        "peak_live_bytes",
        "mean_live_bytes",
        "peak_bytes",
        "mean_bytes",
        "by_state",
        "free",
        "by_kind",
        "by_side",
        "split",
        "bytes_moved",
        "moves_per_step",
        "state_copies",
        "usable_at_first_refusal",
    },
    "latency_s": {"ttft", "tpot", "queue", "prefill", "e2e"},
    "throughput_tok_s": float,
    "steps": int,
    "memory_us_per_step": float,
    "wall_s": float,
}


@pytest.fixture
def replayed(kvstead):
    """The JSON of a replay that must succeed; 4 GiB unless `--slots` or `--memory` says otherwise."""

    def run(*arguments: object):
        sized = arguments if {"--slots", "--memory"} & set(arguments) else (*arguments, "--memory", "4GiB")
        ended = kvstead("replay", *sized, "--model", MODEL, "--json")
        assert ended.code == 0, ended.err
        return ended.json

    return run


def test_the_json_object_is_the_contract(replayed, chat):
    """Every key of the contract is there, with its type, its inner keys exactly, and its sums."""
    summary = replayed(chat)
    for key, expected in SCHEMA.items():
        found = summary[key]
        assert set(found) == expected if isinstance(expected, set) else type(found) is expected, key
    memory = summary["memory"]
    assert set(memory["by_state"]) == STATES
    assert sum(memory["by_state"].values()) == memory["total_bytes"] == 4 * 1024**3
    assert memory["mean_bytes"] == memory["by_state"]["live"] + memory["by_state"]["cached"]
    assert memory["mean_bytes"] <= memory["peak_bytes"] <= memory["total_bytes"]
    assert set(memory["by_kind"]) == {"full"}
    assert memory["by_side"] == {"full": {"total_bytes": memory["total_bytes"], **memory["by_state"]}}
    assert memory["split"] is None
    assert memory["free"] == memory["by_state"]["free"]
    assert (memory["bytes_moved"], memory["moves_per_step"], memory["state_copies"]) == (0, 0, 0)
    assert memory["usable_at_first_refusal"] is None  # 4 GiB were never short
    assert all(type(value) is int for value in (*memory["by_state"].values(), memory["peak_bytes"]))
    for latency in summary["latency_s"].values():
        assert set(latency) == QUANTILES
        assert 0 <= latency["p50"] <= latency["p90"] <= latency["p99"]


def test_the_figures_follow_from_the_trace(replayed, chat):
    """Eight prompts of 56 tokens that share two prefixes of two pages: the first of each misses, six hit 32 tokens."""
    summary = replayed(chat)
    assert summary["trace"] == [str(chat)]
    assert (summary["model"], summary["layout"], summary["page_size"]) == (MODEL, "static", 16)
    assert summary["requests"] == {"total": 8, "finished": 8, "rejected": 0, "retracted": 0, "aborted": 0}
    assert summary["prefix"] == {
        "hit_tokens": 6 * 32,
        "prompt_tokens": 8 * 56,
        "hit_rate": 6 * 32 / (8 * 56),
        "found_tokens": 6 * 32,
        "lost_to_dead_windows": 0,
        "evicted_tokens": {"full": 0, "window": 0},
        "tombstoned_tokens": 0,
        "tombstone_tokens": 0,
        "lost_to_missing_states": 0,
        "evicted_states": 0,
        "evicted_states_alone": 0,
    }
    assert summary["output_tokens"] == 8 * 5
    assert summary["throughput_tok_s"] == pytest.approx(8 * 5 / summary["clock_s"])


def test_several_traces_are_merged(replayed, chat, azure):
    """Two traces make one replay of all their requests, and both are named."""
    summary = replayed(chat, azure)
    assert summary["trace"] == [str(chat), str(azure)]
    assert summary["requests"]["finished"] == 8 + 3


@pytest.mark.parametrize("compress", [bytes, gzip.compress])
def test_a_dash_is_standard_input(replayed, chat, monkeypatch, compress):
    """A trace comes in by standard input, compressed or not, and gives the same figures as the file."""
    text = io.TextIOWrapper(io.BytesIO(compress(chat.read_bytes())))
    monkeypatch.setattr(sys, "stdin", text)
    summary = replayed("-")
    assert summary["trace"] == ["-"]
    assert summary["prefix"] == replayed(chat)["prefix"]


def test_slots_and_memory_size_the_same_pool(replayed, chat):
    """So many slots, and the bytes that hold them with the padding page, are one pool."""
    by_slots = replayed(chat, "--slots", 320)["memory"]
    assert by_slots["total_bytes"] == (320 + 16) * TOKEN_BYTES
    by_bytes = replayed(chat, "--memory", by_slots["total_bytes"])["memory"]
    assert by_bytes == by_slots


def test_the_page_size_decides_what_is_shared(replayed, chat):
    """Prefixes of 32 tokens are shared in whole pages: none of 64, one of 32, two of 16."""
    hits = [replayed(chat, "--page-size", size)["prefix"]["hit_tokens"] for size in (16, 32, 64)]
    assert hits == [192, 192, 0]


def test_a_step_takes_the_milliseconds_given(replayed, chat):
    """With steps of 2 ms a request that runs alone gets a token every 2 ms, and no GPU is named."""
    summary = replayed(chat, "--step-ms", 2)
    assert summary["latency_s"]["ttft"]["p50"] == pytest.approx(0.002)
    assert summary["latency_s"]["tpot"]["p99"] == pytest.approx(0.002)
    assert summary["gpu"] is None


def test_a_slower_gpu_takes_longer(replayed, chat):
    """The GPU's bandwidth sets the time of a token."""
    fast, slow = (replayed(chat, "--gpu", gpu) for gpu in ("h200", "l4"))
    assert slow["latency_s"]["tpot"]["p50"] > 3 * fast["latency_s"]["tpot"]["p50"]
    assert (fast["gpu"], slow["gpu"]) == ("h200", "l4")


def test_a_smaller_chunk_takes_more_steps(replayed, chat):
    """A prompt of which 56 or 24 tokens are to be computed takes a step for every 8 of them."""
    whole, chunked = (replayed(chat, "--step-ms", 1, "--chunk", chunk)["steps"] for chunk in (8192, 8))
    assert chunked - whole == 2 * (7 - 1) + 6 * (3 - 1)


def test_serial_serves_one_at_a_time(replayed, chat):
    """One request at a time never retracts and finds what the trace itself repeats."""
    summary = replayed(chat, "--serial", "--slots", 4096)
    assert summary["mode"] == "serial"
    assert summary["requests"]["finished"] == 8
    assert summary["prefix"]["hit_tokens"] == 192


def test_overlap_serves_the_same_requests(replayed, chat):
    """Planning ahead changes no outcome."""
    summary = replayed(chat, "--overlap")
    assert summary["mode"] == "overlapped"
    assert summary["requests"]["finished"] == 8


def test_max_running_limits_the_batch(kvstead, chat, tmp_path):
    """With one request at most, the timeline never shows two."""
    kvstead("replay", chat, "--model", MODEL, "--slots", 640, "--step-ms", 90, "--max-running", 1, "--out", tmp_path)
    with (tmp_path / "timeline.csv").open() as stream:
        samples = list(csv.DictReader(stream))
    assert {int(float(sample["running"])) for sample in samples} <= {0, 1}
    assert any(float(sample["waiting"]) > 0 for sample in samples)


def test_dtype_and_ranks_shrink_the_entries(replayed, chat):
    """One byte an element halves a token, two ranks halve it again; the summary names both."""
    summary = replayed(chat, "--slots", 320, "--dtype", "float8_e4m3fn", "--tp", 2)
    assert summary["memory"]["total_bytes"] == (320 + 16) * TOKEN_BYTES // 4
    assert (summary["cache_dtype"], summary["tensor_parallel"]) == ("float8_e4m3fn", 2)


@pytest.mark.parametrize("policy", ["lru", "lfu", "fifo", "mru", "filo", "slru", "priority"])
def test_every_policy_replays(replayed, chat, policy):
    """Each eviction policy serves the trace in a pool that must evict."""
    summary = replayed(chat, "--policy", policy, "--slots", 96)
    assert summary["requests"]["finished"] == 8
    assert summary["policy"] == policy


def test_a_config_file_is_a_model(kvstead, chat):
    """A configuration file gives the same pool as the bundled model made of it."""
    config = files("kvstead.model") / "presets" / f"{MODEL}.json"
    ended = kvstead("replay", chat, "--model", config, "--slots", 320, "--json")
    assert ended.json["model"] == str(config)
    assert ended.json["memory"]["total_bytes"] == load_layout(MODEL).bytes_for(320, 16)


def test_requests_that_can_never_fit_are_rejected_with_a_reason(kvstead, chat):
    """A pool of two pages takes none of the prompts; the summary and the table say why."""
    ended = kvstead("replay", chat, "--model", MODEL, "--slots", 32, "--json")
    assert ended.code == 1, "nothing was served"
    assert ended.json["requests"]["rejected"] == 8
    assert ended.json["prefix"]["prompt_tokens"] == 0
    assert ended.json["prefix"]["hit_rate"] is None
    assert "requests rejected: 8" in ended.err
    assert "need 4 pages of 16; the memory has 2" in ended.err
    assert "no prompt was computed" in ended.err


def test_a_trace_without_prefixes_has_no_hit_rate(kvstead, azure):
    """Where the trace says nothing about reuse the rate is null, and the table says so instead of 0 %."""
    ended = kvstead("replay", azure, "--model", MODEL, "--memory", "4GiB", "--json")
    assert ended.json["prefix"]["hit_rate"] is None
    assert ended.json["prefix"]["prompt_tokens"] == 48 + 20 + 33
    assert "no reuse information in this trace" in ended.err


def test_rows_left_out_are_counted_and_named(kvstead, chat):
    """A row with too few block ids is left out, counted, and named with its line."""
    with chat.open("a") as stream:
        stream.write(
            '{"timestamp": 9000, "input_length": 655, "output_length": 4, "hash_ids": [1], "block_size": 16}\n'
        )
    ended = kvstead("replay", chat, "--model", MODEL, "--memory", "4GiB", "--json")
    assert ended.json["excluded_rows"] == 1
    assert "line 9" in ended.json["excluded"][0]
    assert "rows of the trace left out: 1" in ended.err


def test_without_json_the_table_is_on_standard_output_alone(kvstead, chat):
    """With no terminal there is no progress bar: standard error stays empty."""
    ended = kvstead("replay", chat, "--model", MODEL, "--memory", "4GiB")
    assert ended.code == 0
    assert ended.err == ""
    assert "8 of 8 finished" in ended.out
    assert "42.86 % of prompt tokens (192 of 448)" in ended.out


def test_out_holds_the_summary_the_timeline_and_plots(kvstead, chat, tmp_path):
    """The folder is made, and `summary.json` equals what is printed."""
    folder = tmp_path / "deep" / "out"
    ended = kvstead("replay", chat, "--model", MODEL, "--memory", "4GiB", "--out", folder, "--json")
    assert sorted(path.name for path in folder.iterdir()) == [
        "hit_rate.png",
        "memory.png",
        "requests.csv",
        "requests.png",
        "summary.json",
        "timeline.csv",
    ]
    assert json.loads((folder / "summary.json").read_text()) == ended.json
    assert str(folder / "memory.png") in ended.err


def test_an_interrupt_keeps_the_partial_summary(kvstead, monkeypatch):
    """Ctrl-C in the middle: exit code 130, one JSON object that covers what was done, and a line that says so."""
    calls = []

    def interrupt_once(progress):
        calls.append(progress)
        if len(calls) == 2:
            raise KeyboardInterrupt

    monkeypatch.setattr("kvstead.report.progress.replay_bar", lambda: nullcontext(interrupt_once))
    sample = files("kvstead.replay") / "samples" / "chat.jsonl.gz"
    ended = kvstead("replay", sample, "--model", MODEL, "--memory", "4GiB", "--json")
    assert ended.code == 130
    assert ended.json["interrupted"] is True
    assert 0 < ended.json["steps"] < 1000
    assert ended.json["requests"]["finished"] < ended.json["requests"]["total"]
    assert sum(ended.json["memory"]["by_state"].values()) == 4 * 1024**3
    assert "Interrupted: the figures cover" in ended.err


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--memory", "40Gigs"], "'40Gigs' is not a size. Write it as 40GiB"),
        (["--memory", "1MiB"], "bytes or more"),
        (["--memory", "4GiB", "--gpu", "h1000"], "GPU 'h1000' is unknown"),
        (["--memory", "4GiB", "--policy", "best"], "'best'"),
        (["--memory", "4GiB", "--dtype", "int3"], "'int3'"),
        (["--memory", "4GiB", "--tp", "3"], "3 tensor-parallel ranks"),
        (["--memory", "4GiB", "--step-ms", "inf"], "step_seconds is inf"),
        (["--memory", "4GiB", "--window-ratio", "inf"], "window_ratio is inf"),
        (["--memory", "4GiB", "--window-ratio", "0.5"], "nothing to divide"),
        (["--memory", "4GiB", "--expected-length", "64"], "nothing to divide"),
        (["--memory", "4GiB", "--model", "mistral-7b-v0.1", "--window-ratio", "0.5"], "nothing to divide"),
        (["--memory", "500KiB", "--model", "gemma-3-1b"], "hold no page of 16 tokens on both sides of gemma-3-1b"),
        (["--memory", "4GiB", "--state-slots", "5"], "nothing to divide"),
        (["--memory", "4GiB", "--model", "gemma-3-1b", "--state-slots", "5"], "has no states"),
        (["--memory", "4GiB", "--model", "bamba-9b", "--window-ratio", "0.5"], "has no window side"),
        (["--memory", "4GiB", "--model", "bamba-9b", "--state-dtype", "int3"], "'int3'"),
        (["--memory", "100MiB", "--model", "bamba-9b"], "beside 1 of its states and the padding"),
        (["--memory", "100MiB", "--model", "bamba-9b", "--layout", "unified"], "bytes"),
    ],
)
def test_an_error_is_one_line(kvstead, chat, arguments, says):
    """What a value is wrong about stands in one line on standard error, and the exit code is 2."""
    ended = kvstead("replay", chat, "--model", MODEL, *arguments)
    assert (ended.code, ended.out) == (2, "")
    assert ended.err.startswith("kvstead: ")
    assert ended.err.count("\n") == 1
    assert says in ended.err


def test_missing_files_and_models_are_one_line(kvstead, chat, tmp_path):
    """A trace, a model or a folder that cannot be had is named, without a traceback."""
    blocked = tmp_path / "file"
    blocked.write_text("")
    faults = {
        "nowhere.jsonl": kvstead("replay", "nowhere.jsonl", "--model", MODEL, "--memory", "4GiB"),
        "llama-9": kvstead("replay", chat, "--model", "llama-9", "--memory", "4GiB"),
        str(blocked): kvstead("replay", chat, "--model", MODEL, "--memory", "4GiB", "--out", blocked / "out"),
    }
    for name, ended in faults.items():
        assert ended.code == 2
        assert name in ended.err
        assert ended.err.count("\n") == 1


def test_page_tables_that_do_not_fit_the_host_are_one_line(kvstead, chat, monkeypatch):
    """Where the host has no memory for the page tables, one line says what to make smaller."""

    def exhausted(*_arguments, **_keywords):
        raise MemoryError("Unable to allocate 444. GiB")

    monkeypatch.setattr("kvstead.replay.run.KVCacheManager", exhausted)
    ended = kvstead("replay", chat, "--model", MODEL, "--memory", "4GiB")
    assert (ended.code, ended.out) == (2, "")
    assert ended.err.startswith("kvstead: Unable to allocate 444. GiB")
    assert "Use a smaller pool" in ended.err


def test_a_bad_row_is_reported_with_file_and_line(kvstead, chat):
    """A malformed row is left out and named by file and line; with --strict it ends the command."""
    chat.write_text(chat.read_text() + "{oops\n")
    ended = kvstead("replay", chat, "--model", MODEL, "--memory", "4GiB")
    assert ended.code == 0
    assert f"{chat}, line 9: expected one JSON object" in ended.out
    ended = kvstead("replay", chat, "--model", MODEL, "--memory", "4GiB", "--strict")
    assert ended.code == 2
    assert f"{chat}, line 9: expected one JSON object" in ended.err


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ([], "neither is given"),
        (["--memory", "4GiB", "--slots", "64"], "both are given"),
        (["--memory", "4GiB", "--gpu", "l4", "--step-ms", "1"], "both are given"),
        (["--memory", "4GiB", "--serial", "--overlap"], "both are given"),
        (["--memory", "4GiB", "--step-ms", "0"], "not above 0"),
        (["--memory", "4GiB", "--step-ms", "nan"], "not above 0"),
        (["--memory", "4GiB", "--window-ratio", "0.5", "--expected-length", "9"], "both are given"),
        (["--memory", "4GiB", "--window-ratio", "0"], "not above 0"),
        (["--memory", "4GiB", "--window-ratio", "nan"], "not above 0"),
        (["--memory", "4GiB", "--expected-length", "0"], "expected-length"),
        (["--memory", "4GiB", "--layout", "elastic"], "'elastic' is not one of 'static'"),
        (["--slots", "64", "--layout", "unified"], "--slots: layout unified divides nothing"),
        (
            ["--memory", "4GiB", "--layout", "padded", "--window-ratio", "1"],
            "--window-ratio: layout padded divides nothing",
        ),
        (
            ["--memory", "4GiB", "--layout", "ideal", "--expected-length", "9"],
            "--expected-length: layout ideal divides nothing",
        ),
        (
            ["--memory", "4GiB", "--layout", "unified", "--state-slots", "9"],
            "--state-slots: layout unified divides nothing",
        ),
        (["--memory", "4GiB", "--state-slots", "0"], "state-slots"),
        (["--memory", "4GiB", "--state-interval", "-1"], "state-interval"),
        (["--memory", "4GiB", "--page-size", "0"], "page-size"),
        (["--slots", "0"], "slots"),
    ],
)
def test_contradicting_options_are_refused(kvstead, arguments, says):
    """Options that exclude each other or are out of range are refused before anything is read."""
    ended = kvstead("replay", "unread.jsonl", "--model", MODEL, *arguments)
    assert ended.code == 2
    assert says in ended.err


def test_the_bundled_sample_replays(kvstead):
    """The sample of the demo finishes all its requests, reuses prefixes, and fills its memory."""
    sample = Path(str(files("kvstead.replay") / "samples" / "chat.jsonl.gz"))
    summary = kvstead("replay", sample, "--model", MODEL, "--memory", "4GiB", "--json").json
    assert summary["requests"]["finished"] == summary["requests"]["total"] > 300
    assert summary["prefix"]["hit_rate"] > 0.2
    assert summary["memory"]["peak_bytes"] > 0.9 * summary["memory"]["total_bytes"]


@pytest.mark.parametrize(
    ("model", "sides"),
    [
        ("gemma-3-1b", {"full": "full", "window": "window"}),
        ("gpt-oss-20b", {"full": "full", "window": "window"}),
        ("llama-4-scout", {"full": "full", "window": "chunk"}),
        ("mistral-7b-v0.1", {"window": "window"}),
    ],
)
def test_models_with_windows_are_replayed(kvstead, chat, model, sides):
    """Their sides sum to the memory state by state, and in a memory for all of it they reuse what the trace repeats."""
    ended = kvstead("replay", chat, "--model", model, "--memory", "1GiB", "--json")
    assert ended.code == 0, ended.err
    summary = ended.json
    assert summary["requests"]["finished"] == 8
    assert (summary["prefix"]["hit_tokens"], summary["prefix"]["found_tokens"]) == (192, 192)
    memory = summary["memory"]
    assert set(memory["by_side"]) == set(sides)
    assert set(memory["by_kind"]) == set(sides.values())
    assert sum(side["total_bytes"] for side in memory["by_side"].values()) == memory["total_bytes"] == 1024**3
    for side in memory["by_side"].values():
        assert set(side) == {"total_bytes", *STATES}
        assert sum(side[state] for state in STATES) == side["total_bytes"]
    for state in STATES:
        assert memory["by_state"][state] == sum(side[state] for side in memory["by_side"].values())
    for name, kind in sides.items():
        assert memory["by_kind"][kind] == memory["by_side"][name]["live"] + memory["by_side"][name]["cached"] > 0
    assert (memory["split"] is None) == (len(sides) == 1)


@pytest.mark.parametrize(
    ("arguments", "ratio", "says"),
    [
        (["--window-ratio", "0.5"], 0.5, "as given"),
        (["--expected-length", "1024"], (512 + 32) / 1024, "1,024 tokens"),
        ([], 1.0, "61 tokens"),  # the mean of eight prompts of 56 tokens with 5 to generate
    ],
)
def test_the_split_names_its_rule(kvstead, chat, arguments, ratio, says):
    """So many full slots, window slots by the ratio in whole pages, and the source in the object and in the table."""
    ended = kvstead("replay", chat, "--model", "gemma-3-1b", "--slots", 6400, *arguments, "--json")
    assert ended.code == 0, ended.err
    split = ended.json["memory"]["split"]
    num_pages = int(6400 / 16 * ratio)
    if "--expected-length" in arguments:  # as much again for a chunk under way, if the full side has so many
        num_pages = min(400, 2 * num_pages)
    num_window_slots = num_pages * 16
    assert (split["num_slots"], split["num_window_slots"]) == (6400, num_window_slots)
    assert split["ratio"] == ratio
    assert says in split["source"]
    assert f"6,400 full and {num_window_slots:,} window slots, ratio {ratio:.4g}: {split['source']}" in ended.err
    assert "each side, mean over the clock" in ended.err
    window = ended.json["memory"]["by_side"]["window"]
    assert window["total_bytes"] == (split["num_window_slots"] + 16) * 22_528


def test_slots_of_a_model_of_windows_are_window_slots(kvstead, chat):
    """Where every layer slides there is one side, of so many slots, and no split to show."""
    ended = kvstead("replay", chat, "--model", "mistral-7b-v0.1", "--slots", 640, "--json")
    memory = ended.json["memory"]
    assert memory["total_bytes"] == memory["by_side"]["window"]["total_bytes"] == (640 + 16) * TOKEN_BYTES
    assert "memory split" not in ended.err
    assert "lost to dead windows" in ended.err


def test_a_window_side_below_the_window_of_a_request_is_refused(kvstead, chat):
    """No request could ever run, so none is tried; the error says how many window slots would do."""
    ended = kvstead("replay", chat, "--model", "gemma-3-1b", "--slots", 640, "--window-ratio", 0.025, "--json")
    assert (ended.code, ended.out) == (2, "")
    assert "the window side of gemma-3-1b has 1 pages of 16" in ended.err
    assert "Give 544 window slots or more" in ended.err


def test_the_timeline_has_columns_of_the_window_side(kvstead, chat, tmp_path):
    """Its columns are in bytes of the window side; for a model without one they are 0."""
    for model, has_window in (("gemma-3-1b", True), (MODEL, False)):
        folder = tmp_path / model
        ended = kvstead("replay", chat, "--model", model, "--slots", 640, "--out", folder)
        assert ended.code == 0, ended.err
        with (folder / "timeline.csv").open() as stream:
            samples = list(csv.DictReader(stream))
        assert list(samples[0])[-10:-7] == ["window_live_bytes", "window_cached_bytes", "window_free_bytes"]
        assert all(float(sample[f"state_{state}_bytes"]) == 0 for sample in samples for state in ("live", "cached"))
        for sample in samples:
            held = {state: float(sample[f"window_{state}_bytes"]) for state in ("live", "cached", "free")}
            assert sum(held.values()) == has_window * 640 * 22_528
            assert all(part <= float(sample[f"{state}_bytes"]) for state, part in held.items())
        assert (folder / "memory.png").exists()


@pytest.mark.parametrize("layout", ["static", "padded", "unified", "ideal"])
@pytest.mark.parametrize(
    ("model", "sides"),
    [
        (MODEL, {"full": "full"}),
        ("gpt-oss-20b", {"full": "full", "window": "window"}),
        ("lfm2-1.2b", {"full": "full", "state": "state"}),
        ("kimi-linear-48b-a3b", {"full": "latent", "state": "state"}),
        ("mistral-7b-v0.1", {"window": "window"}),
    ],
)
def test_every_layout_replays_every_kind_of_model(kvstead, chat, model, sides, layout):
    """Bytes add up in the object and are shown in the tables; where all of it fits, reuse is the same in each layout.

    The first of each prefix misses, and with states the second, which has the state copied where it parts from the
    first. Pages of a padded layout may be too large for these prefixes.
    """
    ended = kvstead(
        "replay", chat, "--model", model, "--memory", "2GiB", "--layout", layout, "--state-interval", 16, "--json"
    )
    assert ended.code == 0, ended.err
    summary, memory = ended.json, ended.json["memory"]
    assert (summary["layout"], summary["requests"]["finished"]) == (layout, 8)
    assert f"{layout} layout, page size {summary['page_size']}" in ended.err
    if summary["page_size"] == 16:
        hits = 128 if "state" in sides else 192
        assert (summary["prefix"]["hit_tokens"], summary["prefix"]["found_tokens"]) == (hits, 192)
        assert summary["prefix"]["lost_to_missing_states"] == 192 - hits
    assert sum(memory["by_state"].values()) == memory["total_bytes"] == 2 * 1024**3
    is_shared = layout != "static" and "full" in sides
    rest = {"hole", "gap", "sink", "padding"} if is_shared and layout == "unified" else {"free", "padding"}
    assert set(memory["by_state"]) == {"live", "cached", "parked"} | rest
    assert memory["free"] == sum(memory["by_state"].get(state, 0) for state in ("free", "hole", "gap"))
    assert list(memory["by_side"]) == list(sides)
    for name, side in memory["by_side"].items():
        assert sum(side.values()) == 2 * side["total_bytes"]
        assert memory["by_kind"][sides[name]] == side["live"] + side["cached"] > 0
    for state in ("live", "cached", "parked"):
        assert memory["by_state"][state] == sum(side[state] for side in memory["by_side"].values())
    assert (memory["split"] is None) == (is_shared or len(sides) == 1 or layout != "static")
    assert ("state copies" in ended.err) == ("state" in sides)
    assert (memory["state_copies"] > 0) == ("state" in sides and summary["page_size"] < 56)
    assert ("bytes moved" in ended.err) == ("free: holes and gap" in ended.err) == ("gap" in rest)


def test_states_are_divided_by_the_options(kvstead, chat):
    """So many states as given, or two for each request of the length that is expected: by default the trace's mean."""
    for arguments, says in (
        (["--state-slots", 7], "7 states, as given"),
        (["--expected-length", 100], "100 tokens"),
        ([], "61 tokens"),
    ):
        ended = kvstead("replay", chat, "--model", "lfm2-1.2b", "--memory", "100MiB", *arguments, "--json")
        assert ended.code == 0, ended.err
        split = ended.json["memory"]["split"]
        assert says in split["source"]
        assert f"{split['num_slots']:,} full and {split['num_states']:,} states: {split['source']}" in ended.err
        state = ended.json["memory"]["by_side"]["state"]
        assert state["total_bytes"] == (split["num_states"] + 1) * 81_920
        if "--state-slots" in arguments:
            assert split["num_states"] == 7


def test_fewer_copies_of_states_are_made_at_longer_intervals(kvstead, chat):
    """With a copy every page more states are copied than with one every 512 tokens or none; the object says which."""
    copies = {}
    options = ("--model", "lfm2-1.2b", "--slots", 6400, "--chunk", 16, "--json")
    for interval in (0, 16, 512):
        ended = kvstead("replay", chat, *options, "--state-interval", interval)
        copies[interval] = ended.json["memory"]["state_copies"]
        assert ended.json["state_interval"] == interval
    assert copies[16] > copies[512] == copies[0] > 0


def test_states_of_half_the_width_take_half_the_bytes(kvstead, chat):
    """The dtype of states is that of their recurrent part; the object names it."""
    padding = {}
    for dtype in ("float32", "bfloat16"):
        ended = kvstead(
            "replay",
            chat,
            "--model",
            "bamba-9b",
            "--memory",
            "4GiB",
            "--layout",
            "unified",
            "--state-dtype",
            dtype,
            "--json",
        )
        padding[dtype] = ended.json["memory"]["by_state"]["sink"]
        assert ended.json["state_dtype"] == dtype
        assert padding[dtype] == load_layout("bamba-9b", state_dtype=dtype).state_bytes
    assert 0.5 < padding["bfloat16"] / padding["float32"] < 0.51


def test_the_timeline_has_columns_of_states(kvstead, chat, tmp_path):
    """Their columns stand last, in whole states; those that are live or cached are part of the memory's."""
    options = ("--layout", "unified", "--state-interval", 16, "--step-ms", 90, "--out", tmp_path)
    ended = kvstead("replay", chat, "--model", "lfm2-1.2b", "--memory", "64MiB", *options)
    assert ended.code == 0, ended.err
    with (tmp_path / "timeline.csv").open() as stream:
        samples = list(csv.DictReader(stream))
    assert list(samples[0])[-7:-5] == ["state_live_bytes", "state_cached_bytes"]
    for state in ("live", "cached"):
        held = [float(sample[f"state_{state}_bytes"]) for sample in samples]
        assert max(held) > 0
        assert all(part % 81_920 == 0 for part in held)
        assert all(part <= float(sample[f"{state}_bytes"]) for part, sample in zip(held, samples, strict=True))
    assert (tmp_path / "memory.png").exists()


def test_what_does_not_fit_the_gpu_is_refused_unless_forced(kvstead, chat):
    """With a GPU named, weights and cache have to fit it; --force, a precision or more GPUs let it be replayed."""
    big = ["replay", chat, "--model", "llama-3.1-70b", "--memory", "4GiB", "--gpu", "l4"]
    ended = kvstead(*big)
    assert ended.code == 2
    assert (
        "131.4 GiB of weights, 4.0 GiB of cache and 2.0 GiB for the engine do not fit the 22.4 GiB of one l4"
        in ended.err
    )
    forced = kvstead(*big, "--force", "--json")
    assert forced.code == 0
    assert forced.json["card"]["fits"] is False
    assert "they do not fit" in forced.err
    small = kvstead(*big, "--tp", 8, "--weight-dtype", "int4", "--engine-memory", "1G", "--json")
    assert small.json["card"]["fits"] is True
    assert small.json["card"]["weight_dtype"] == "int4"


def test_weights_of_fewer_bytes_take_less_time(replayed, chat):
    """Half the bytes a weight make decoding faster; so does a higher share of the bandwidth."""
    times = [
        replayed(chat, *options)["latency_s"]["tpot"]["p50"]
        for options in ([], ["--weight-dtype", "fp8"], ["--mbu", "0.9"], ["--step-overhead-ms", "5"])
    ]
    assert times[1] < 0.7 * times[0]
    assert times[2] < times[0] < times[3]


def test_a_goal_is_counted(kvstead, chat):
    """Goodput stands in the summary and the table; a goal that is none is refused."""
    arguments = ["replay", chat, "--model", MODEL, "--memory", "4GiB"]
    ended = kvstead(*arguments, "--slo", "ttft=2s,tpot=50ms", "--json")
    assert ended.json["goodput"]["requests"] == 8
    assert "first token within 2 s, each further one within 50 ms" in ended.err
    for wrong in ("ttft", "e2e=2s", "ttft=2"):
        assert kvstead(*arguments, "--slo", wrong).code == 2


def test_overload_is_named(kvstead, tmp_path):
    """Requests that come faster than they are served: since when, by how much, and what would carry them."""
    path = tmp_path / "rush.jsonl"
    rows = ({"timestamp": 50 * i, "input_length": 100, "output_length": 200} for i in range(200))
    path.write_text("\n".join(map(json.dumps, rows)))
    ended = kvstead("replay", path, "--model", MODEL, "--slots", 2048, "--json")
    assert ended.json["overload"]["wants"] == "memory"
    assert "requests have always waited" in ended.err
    assert "memory was full: more memory, or more GPUs, would carry more" in " ".join(ended.err.split())
