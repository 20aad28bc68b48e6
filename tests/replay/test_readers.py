import json
from pathlib import Path

import numpy as np
import pytest

from kvstead.errors import TraceError
from kvstead.replay.logs.formats import FORMAT_NAMES
from kvstead.replay.logs.options import LogOptions
from kvstead.replay.readers import read_trace

TRACES = Path(__file__).resolve().parents[2] / ".." / "shared" / "traces"
needs_traces = pytest.mark.skipif(not TRACES.is_dir(), reason="the production traces are not beside this checkout")

QWEN_ROW = {
    "chat_id": 159,
    "parent_chat_id": 55,
    "timestamp": 61.114,
    "input_length": 33,
    "output_length": 132,
    "type": "text",
    "turn": 2,
    "hash_ids": [1089, 1090, 6326],
}
MOONCAKE_ROW = {"timestamp": 27482, "input_length": 6955, "output_length": 52, "hash_ids": list(range(46, 60))}
AZURE = "TIMESTAMP,ContextTokens,GeneratedTokens"
BURSTGPT = "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type"


@pytest.fixture
def strict():
    """Read a file, and stop at the first row that cannot be read."""
    return lambda path, **options: read_trace(path, LogOptions(strict=True, **options))


@pytest.fixture
def write(tmp_path):
    """Write lines, JSON where they are no text, to a file and return its path."""

    def lines_to_file(*lines, name="trace"):
        path = tmp_path / name
        path.write_text("\n".join(line if isinstance(line, str) else json.dumps(line) for line in lines) + "\n")
        return path

    return lines_to_file


def test_mooncake_rows_are_read(write):
    """Mooncake: milliseconds since the first row, 512 tokens a block, ids numbered from 0 in order of appearance."""
    path = write(
        {"timestamp": 2000, "input_length": 1025, "output_length": 7, "hash_ids": [46, 47, 48]},
        {"timestamp": 2250, "input_length": 600, "output_length": 8, "hash_ids": [46, 49]},
        name="m.jsonl",
    )
    trace = read_trace(path)
    assert (trace.name, trace.format, trace.block_size, trace.has_reuse) == ("m.jsonl", "mooncake", 512, True)
    assert trace.arrivals.tolist() == [0.0, 0.25]
    assert trace.prompt_lens.tolist() == [1025, 600]
    assert trace.output_lens.tolist() == [7, 8]
    assert [trace.blocks(0).tolist(), trace.blocks(1).tolist()] == [[0, 1, 2], [0, 3]]
    assert trace.problems == ()


def test_mooncake_rows_have_one_block_size(strict, write):
    """A `block_size` in the rows replaces 512; one that changes, or is no size, is an error."""
    row = {"timestamp": 0, "input_length": 20, "output_length": 1, "hash_ids": [5, 6], "block_size": 16}
    assert strict(write(row, row)).block_size == 16
    with pytest.raises(TraceError, match=r"line 2: expected `block_size` 16 as in the first row, found 32"):
        strict(write(row, {**row, "block_size": 32}))
    assert len(strict(write(row, {key: row[key] for key in row if key != "block_size"}))) == 2
    for bad in (0, -16, "16", True, 1 << 40):
        with pytest.raises(TraceError, match="line 1: expected a `block_size` of 1 to"):
            strict(write({**row, "block_size": bad}))


def test_ids_of_any_size_are_numbered_from_0(write):
    """Ids are names: 64-bit hashes and larger ones are read, and equal ids stay equal."""
    rows = [
        {"timestamp": 0, "input_length": 1024, "output_length": 1, "hash_ids": [2**63 + 5, -7]},
        {"timestamp": 1, "input_length": 1024, "output_length": 1, "hash_ids": [2**63 + 5, 2**80]},
    ]
    assert read_trace(write(*rows)).block_ids.tolist() == [0, 1, 0, 2]


def test_qwen_rows_are_read(write):
    """Qwen-Bailian: seconds, 16 tokens a block."""
    trace = read_trace(write(QWEN_ROW, {**QWEN_ROW, "timestamp": 62.5, "parent_chat_id": -1}))
    assert (trace.format, trace.block_size) == ("qwen", 16)
    assert trace.arrivals == pytest.approx([0.0, 1.386])
    assert trace.block_ids.tolist() == [0, 1, 2, 0, 1, 2]


@pytest.mark.parametrize(
    ("times", "expected"),
    [
        (["2023-11-16 18:17:03.9799600", "2023-11-16 18:17:04.0319601"], 0.0520001),
        (["2024-05-10 00:00:00.009930+00:00", "2024-05-10 00:00:01+00:00"], 0.99007),
        (["2024-05-10 00:00:00+00:00", "2024-05-10T02:00:01.5+02:00"], 1.5),
        (["2024-05-10 00:00:00", "2024-05-10 00:00:00.000001Z"], 1e-6),
        (["2023-12-31 23:59:59.5", "2024-01-01 00:00:00"], 0.5),
    ],
)
def test_azure_rows_are_read(write, times, expected):
    """Azure: times of 2023 and 2024 in every spelling, to the last decimal; no ids."""
    trace = read_trace(write(AZURE, f"{times[0]},4808,10", f"{times[1]},3180,8"))
    assert (trace.format, trace.block_size, trace.has_reuse) == ("azure", None, False)
    assert trace.arrivals.tolist() == pytest.approx([0.0, expected], abs=1e-12)
    assert trace.prompt_lens.tolist() == [4808, 3180]
    assert trace.output_lens.tolist() == [10, 8]


@pytest.mark.parametrize(
    "row",
    [
        "2023-11-16,10,10",
        "2023-13-16 18:17:03,10,10",
        "1969-11-16 18:17:03,10,10",
        "12.5,10,10",
        "2023-11-16 18:17:03,10",
        "2023-11-16 18:17:03,10,10,10",
        "2023-11-16 18:17:03,-10,10",
        "2023-11-16 18:17:03,1.5,10",
        "2023-11-16 18:17:03,,10",
        "2023-11-16 18:17:03,10,16777217",
        "2023-11-16 18:17:03,10," + "9" * 5000,
    ],
)
def test_malformed_azure_rows_are_refused(strict, write, row):
    """A bad row is an error with its line number, blank lines counted."""
    with pytest.raises(TraceError, match=r"trace, line 4: expected .*, found "):
        strict(write(AZURE, "2023-11-16 18:17:02,10,10", "", row))


def test_burstgpt_rows_are_read(write):
    """BurstGPT: seconds, columns found by name, failed requests left out and named."""
    old = write(
        BURSTGPT, "5,ChatGPT,472,18,490,Conversation log", "45,ChatGPT,1087,0,1087,API log", "118,GPT-4,3,4,7,x"
    )
    trace = read_trace(old)
    assert (trace.format, trace.has_reuse) == ("burstgpt", False)
    assert trace.arrivals.tolist() == [0.0, 113.0]
    assert trace.prompt_lens.tolist() == [472, 3]
    assert trace.output_lens.tolist() == [18, 4]
    assert trace.problems == (f"{old}, line 3: there is no token to generate.",)
    header = "Timestamp,Session ID,Elapsed time,Model,Request tokens,Response tokens,Total tokens,Log Type"
    newer = read_trace(write(header, '0.5,"a,b",2.5,ChatGPT,472,18,490,Conversation log'))
    assert newer.prompt_lens.tolist() == [472]


def test_burstgpt_totals_are_checked(write):
    """A total that is not the sum is reported and the row left out."""
    path = write(BURSTGPT, "5,ChatGPT,472,18,490,x", "6,ChatGPT,472,18,491,x")
    assert read_trace(path).problems == (f"{path}, line 3: 472 + 18 tokens do not add up to the total of 491.",)


@pytest.mark.parametrize("time", ["soon", "nan", "inf", "-1", ""])
def test_malformed_burstgpt_times_are_refused(strict, write, time):
    """A time that is no number of seconds is a bad row."""
    with pytest.raises(TraceError, match="line 2: expected a time"):
        strict(write(BURSTGPT, f"{time},ChatGPT,472,18,490,x"))


@pytest.mark.parametrize(
    ("prompt_len", "num_ids", "expected"), [(655, 3, 2), (20, 2, 1), (6755, 13, 14), (1024, 3, 2), (5, 0, 1)]
)
def test_inconsistent_rows_are_left_out(write, prompt_len, num_ids, expected):
    """A number of ids other than ceil(length / block) is reported with file and line, never guessed."""
    bad = {"timestamp": 5, "input_length": prompt_len, "output_length": 3, "hash_ids": list(range(num_ids))}
    path = write(MOONCAKE_ROW, bad, {**MOONCAKE_ROW, "timestamp": 27483})
    trace = read_trace(path)
    assert len(trace) == 2
    assert len(trace.problems) == 1
    assert trace.problems[0] == (
        f"{path}, line 2: {prompt_len} prompt tokens take {expected} blocks of 512 tokens, "
        f"but there are {num_ids} block ids."
    )
    assert trace.arrivals == pytest.approx([27.477, 27.478]), "time counts from the first row, left out or not"


def test_rows_without_prompt_or_output_are_left_out(write):
    """A prompt of no token and a request that generates none are left out and named."""
    path = write(
        {**MOONCAKE_ROW, "input_length": 0, "hash_ids": []}, MOONCAKE_ROW, {**MOONCAKE_ROW, "output_length": 0}
    )
    assert read_trace(path).problems == (
        f"{path}, line 1: the prompt is empty.",
        f"{path}, line 3: there is no token to generate.",
    )


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"timestamp": -1}, "a time of 0 or more in `timestamp`"),
        ({"timestamp": 10**30}, "a time of 0 or more in `timestamp`"),
        ({"timestamp": True}, "a time in `timestamp`, a number or text"),
        ({"timestamp": "noon"}, "a time in `timestamp`, a number or text"),
        ({"timestamp": []}, "a time in `timestamp`, a number or text"),
        ({"input_length": 5.5}, "a number of tokens in `input_length`"),
        ({"input_length": -5}, "a number of tokens in `input_length`"),
        ({"input_length": 1 << 30}, "a number of tokens in `input_length`"),
        ({"output_length": None}, "a number of tokens in `output_length`"),
        ({"output_length": False}, "a number of tokens in `output_length`"),
        ({"hash_ids": {}}, "`hash_ids`, a list of integers or texts"),
        ({"hash_ids": [1.0] * 14}, "`hash_ids`, a list of integers or texts"),
        ({"hash_ids": [True] * 14}, "`hash_ids`, a list of integers or texts"),
    ],
)
def test_malformed_json_rows_are_refused(strict, write, change, expected):
    """A field that is missing or of another kind is an error naming file, line, field and what stood there."""
    with pytest.raises(TraceError, match=f"trace, line 2: expected {expected}.*, found .*Correct it or remove it"):
        strict(write(MOONCAKE_ROW, {**MOONCAKE_ROW, **change}))


@pytest.mark.parametrize(
    "line", ["{", '{"timestamp": 1}}', "[1]", "null", "[" * 100_000, '{"timestamp": ' + "9" * 5000]
)
def test_lines_that_are_not_an_object_are_refused(strict, write, line):
    """A line that is no JSON object is an error, however odd it is; a long one is shown shortened."""
    with pytest.raises(TraceError, match="line 2: expected one JSON object") as caught:
        strict(write(MOONCAKE_ROW, line))
    assert len(str(caught.value)) < 400


def test_the_first_line_tells_the_format(write):
    """The name of a file says nothing; a first line of no known format is an error that lists the formats."""
    assert read_trace(write(QWEN_ROW, name="mooncake.csv")).format == "qwen"
    assert read_trace(write("", MOONCAKE_ROW, name="azure.csv")).format == "mooncake"
    for line in ("prompt,answer", '{"prompt": "hello"}', "hello", "[1, 2]", "{"):
        with pytest.raises(TraceError, match=r"a trace or a log|is no whole JSON document"):
            read_trace(write(line))


def test_a_named_format_is_used(strict, write):
    """A named format is used as it is, and must fit: rows with chat ids can be read as Mooncake, a CSV cannot."""
    row = {**QWEN_ROW, "block_size": 16}
    assert strict(write(row, {**row, "timestamp": 1061.114}), format="mooncake").arrivals == pytest.approx([0, 1])
    with pytest.raises(TraceError, match="line 2: expected a time in `timestamp`"):
        strict(write(BURSTGPT, "noon,ChatGPT,472,18,490,x"), format="azure")
    with pytest.raises(TraceError, match=r"'excel' is not a format of traces. Use one of qwen, .*burstgpt"):
        strict(write(AZURE), format="excel")
    assert len(set(FORMAT_NAMES)) == len(FORMAT_NAMES)


def test_traces_without_requests_are_refused(write):
    """An empty file, a header alone and rows that are all left out are errors that say which it is."""
    with pytest.raises(TraceError, match="is empty"):
        read_trace(write("", "  "))
    with pytest.raises(TraceError, match="holds no request: it has no rows"):
        read_trace(write(AZURE))
    with pytest.raises(TraceError, match=r"all 1 rows are left out. The first: .*line 1"):
        read_trace(write({**MOONCAKE_ROW, "hash_ids": [1]}))


def test_rows_are_sorted_by_arrival(write):
    """Rows are sorted by arrival and time counts from the earliest."""
    rows = [{**MOONCAKE_ROW, "timestamp": time, "output_length": time + 1} for time in (500, 100, 500, 300)]
    trace = read_trace(write(*rows))
    assert trace.arrivals.tolist() == [0.0, 0.2, 0.4, 0.4]
    assert trace.output_lens.tolist() == [101, 301, 501, 501]


@needs_traces
@pytest.mark.parametrize(
    ("name", "format_name", "num_rows", "prompt_tokens"),
    [
        ("mooncake_conversation.jsonl", "mooncake", 12_031, 144_793_823),
        ("mooncake_synthetic.jsonl", "mooncake", 3_993, 61_194_628),
        ("azure_2023_conv.csv", "azure", 19_366, 22_361_870),
        ("azure_2023_code.csv", "azure", 8_819, 18_059_974),
    ],
)
def test_production_traces(name, format_name, num_rows, prompt_tokens):
    """Every row of the production traces is read and none is left out."""
    trace = read_trace(TRACES / name)
    assert (trace.format, len(trace), trace.problems) == (format_name, num_rows, ())
    assert trace.prompt_lens.sum() == prompt_tokens


@needs_traces
def test_production_trace_equals_its_rows():
    """Columns and ragged ids of the conversation trace are those that a plain loop over its rows finds."""
    trace = read_trace(TRACES / "mooncake_conversation.jsonl")
    rows = [json.loads(line) for line in (TRACES / "mooncake_conversation.jsonl").read_text().splitlines()]
    assert np.array_equal(trace.arrivals, [row["timestamp"] / 1000 for row in rows])
    assert trace.output_lens.tolist() == [row["output_length"] for row in rows]
    assert [trace.blocks(i).tolist() for i in range(len(trace))] == [row["hash_ids"] for row in rows]


@pytest.mark.parametrize("line", ['a,"' + "x" * 200_000 + '"', "a,b\rc,d\re,f"], ids=["large cell", "carriage returns"])
def test_lines_that_are_no_csv_are_refused_with_their_number(write, line):
    """A cell that no CSV reader takes, and lines that end with carriage returns alone: an error that names the line."""
    with pytest.raises(TraceError, match="line 1"):
        read_trace(write(line + "\n"))
