import gzip
import json

import pytest

from kvstead.cli.trace import make
from kvstead.replay.readers import read_trace


def test_the_same_seed_makes_the_same_file(kvstead, tmp_path):
    """Seed and options decide the bytes; another seed gives others."""
    paths = [tmp_path / name for name in ("a.jsonl", "b.jsonl", "c.jsonl")]
    for path, seed in zip(paths, (7, 7, 8), strict=True):
        assert kvstead("trace", "make", path, "--seed", seed, "--sessions", 5).code == 0
    first, second, third = (path.read_bytes() for path in paths)
    assert first == second != third


def test_made_traces_can_be_compressed_and_read(kvstead, tmp_path):
    """A name that ends in .gz is compressed, and the trace has the block size asked for."""
    path = tmp_path / "made.jsonl.gz"
    ended = kvstead("trace", "make", path, "--seed", 1, "--sessions", 5, "--block-size", 32)
    trace = read_trace(path)
    assert trace.block_size == 32
    assert f"{len(trace)} requests" in ended.err
    assert gzip.decompress(path.read_bytes()).count(b"\n") == len(trace)


def test_a_dash_writes_to_standard_output(kvstead, tmp_path):
    """`-` prints the rows that a file would hold, and nothing else."""
    path = tmp_path / "made.jsonl"
    kvstead("trace", "make", path, "--seed", 3, "--sessions", 4)
    ended = kvstead("trace", "make", "-", "--seed", 3, "--sessions", 4)
    assert ended.out == path.read_text()
    assert ended.err == ""


@pytest.mark.parametrize(
    ("option", "value", "figure"),
    [
        ("--user-tokens", 900, "prompt_tokens"),
        ("--system-tokens", 9000, "prompt_tokens"),
        ("--output-tokens", 2000, "output_tokens"),
        ("--turns", 12, "requests"),
        ("--think-seconds", 500, "duration_s"),
    ],
)
def test_each_option_of_make_changes_its_figure(kvstead, tmp_path, option, value, figure):
    """More of what an option sets gives more of it in the trace."""
    path = tmp_path / "made.jsonl"
    found = []
    for arguments in ([], [option, value]):
        kvstead("trace", "make", path, "--seed", 5, "--sessions", 30, *arguments)
        found.append(kvstead("trace", "stats", path, "--json").json["traces"][0][figure])
    assert found[1] > found[0]


def test_the_other_options_of_make_are_passed_on(kvstead, tmp_path):
    """Half the limit of 860 goes to the one system prompt, a second turn no longer fits, and a low rate takes long."""
    path = tmp_path / "made.jsonl"
    common = ["--seed", 5, "--sessions", 20, "--spread", 0, "--system-prompts", 1, "--max-prompt-tokens", 860]
    kvstead("trace", "make", path, *common, "--rate", 0.01, "--burstiness", 1)
    slow = kvstead("trace", "stats", path, "--json").json["traces"][0]
    assert slow["prompt_lens"]["max"] == slow["prompt_lens"]["p50"] == 430 + 120
    assert slow["duration_s"] > 500


def test_a_figure_out_of_range_is_one_line(kvstead, tmp_path):
    """A rate of zero is refused by name."""
    ended = kvstead("trace", "make", tmp_path / "made.jsonl", "--seed", 1, "--rate", 0)
    assert ended.code == 2
    assert "sessions_per_second" in ended.err
    assert not list(tmp_path.glob("made*"))


def test_stats_of_traces_stand_side_by_side(kvstead, chat, azure):
    """A column a trace: reuse by tokens and blocks where there is any, and words where there is none."""
    ended = kvstead("trace", "stats", chat, azure)
    assert ended.code == 0
    assert "42.86 % of prompt tokens (192 of 448)" in ended.out
    assert "37.50 % of blocks (12 of 32)" in ended.out
    assert "no reuse information in this trace" in ended.out


def test_stats_as_json(kvstead, chat, azure):
    """One object with a list, in the order of the arguments; reuse is null where nothing is known."""
    first, second = kvstead("trace", "stats", chat, azure, "--json").json["traces"]
    assert (first["name"], first["requests"], first["format"]) == ("chat.jsonl", 8, "mooncake")
    assert first["reuse"]["hit_tokens"] == 192
    assert (second["format"], second["reuse"]) == ("azure", None)


def test_stats_of_a_missing_file_is_one_line(kvstead):
    """The file is named, without a traceback."""
    ended = kvstead("trace", "stats", "nowhere.jsonl")
    assert ended.code == 2
    assert ended.err.startswith("kvstead: nowhere.jsonl")
    assert ended.err.count("\n") == 1


def test_many_sessions_are_made_as_they_are_read(monkeypatch):
    """The first lines go out before the last sessions are made."""
    lines = []

    class Enough(Exception):
        pass

    def take(line, **_):
        lines.append(line)
        if len(lines) == 100:
            raise Enough

    monkeypatch.setattr("typer.echo", take)
    with pytest.raises(Enough):
        make(path="-", seed=1, num_sessions=10**12)
    assert len(lines) == 100


def test_convert_writes_any_log_as_a_trace(kvstead, tmp_path):
    """A table with columns of its own becomes Mooncake lines and Parquet, which replay and give the same figures."""
    log = tmp_path / "log.csv"
    log.write_text("ts,in,out,conv\n" + "".join(f"{i},{40 + i},4,{i % 3}\n" for i in range(9)) + "x,1,1,1\n")
    columns = ["--columns", "arrival=ts,prompt=in,output=out,session=conv", "--time-unit", "s"]
    figures = []
    for name in ("trace.jsonl.zst", "trace.parquet"):
        ended = kvstead("trace", "convert", log, tmp_path / name, *columns)
        assert ended.code == 0
        assert "9 requests, 1 rows left out" in ended.err
        assert "line 11: expected a time in `ts`" in ended.err
        figures.append(kvstead("trace", "stats", tmp_path / name, "--json").json["traces"][0])
    first, second = ({**each, "name": ""} for each in figures)
    assert first == second
    assert first["requests"] == 9
    assert first["reuse"]["hit_tokens"] == 0
    ended = kvstead("trace", "convert", log, tmp_path / "t.jsonl", *columns, "--strict")
    assert ended.code == 2
    assert "line 11" in ended.err


def test_convert_needs_two_names(kvstead, tmp_path):
    """With one name there is nothing to write to."""
    ended = kvstead("trace", "convert", tmp_path / "log.csv")
    assert ended.code == 2
    assert "last the file to write" in ended.err


def test_stats_say_what_was_assumed(kvstead, tmp_path):
    """Guesses and rows left out stand under the table; chats are counted as sessions."""
    log = tmp_path / "chats.json"
    chat = [{"from": "human", "value": "hello " * 30}, {"from": "gpt", "value": "good day"}] * 2
    log.write_text(json.dumps([{"conversations": chat}, {"conversations": 5}]))
    ended = kvstead("trace", "stats", log)
    assert ended.code == 0
    assert "texts have a token for every 4 bytes" in ended.out
    assert "row 2: expected a list of messages" in ended.out
    assert kvstead("trace", "stats", log, "--json").json["traces"][0]["sessions"] == 1


@pytest.mark.parametrize("columns", ["arrival", "speed=x", "=x", "arrival="])
def test_columns_that_are_none_are_refused(kvstead, azure, columns):
    """A column without a field, or of an unknown name, is one line."""
    ended = kvstead("trace", "stats", azure, "--columns", columns)
    assert ended.code == 2
    assert "NAME=FIELD" in ended.err or "is no column of a log" in ended.err
