import gzip

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
