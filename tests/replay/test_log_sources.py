"""Files of every container, folders and addresses; hostile ones end in one line."""

import gzip
import json
import sys
import zipfile

import fsspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from trace_strategies import make_trace_of, traces

from kvstead.errors import InvalidSize, TraceError
from kvstead.replay.logs.options import LogOptions
from kvstead.replay.readers import read_trace
from kvstead.replay.streams import ByteStream
from kvstead.replay.writers import write_trace

ROW = {"timestamp": 0, "input_length": 20, "output_length": 2, "hash_ids": [1, 2], "block_size": 16}


def same(first, second):
    """Whether two traces have equal columns, ids up to their numbers."""
    columns = ("prompt_lens", "output_lens", "block_sizes", "block_offsets", "follows")
    equal = all(np.array_equal(getattr(first, name), getattr(second, name)) for name in columns)
    close = np.allclose(first.arrivals, second.arrivals, atol=1e-6) and np.allclose(
        first.delays, second.delays, atol=1e-6
    )
    pairs = set(zip(first.block_ids.tolist(), second.block_ids.tolist(), strict=True))
    return equal and close and len(pairs) == len({a for a, _ in pairs}) == len({b for _, b in pairs})


@pytest.mark.parametrize("suffix", [".jsonl", ".jsonl.gz", ".jsonl.zst", ".parquet"])
def test_written_traces_are_read_back(tmp_path_factory, suffix):
    """Any trace, sessions and rows without ids included, is the same after it was written and read."""
    path = tmp_path_factory.mktemp("written") / f"trace{suffix}"

    @given(traces(), st.data())
    def check(trace, data):
        follows = np.full(len(trace), -1)
        for turn in range(1, len(trace) if trace.block_sizes.all() else 1):  # turns without ids are given some
            if data.draw(st.booleans()) and turn - 1 not in follows:
                follows[turn] = turn - 1
        delays = np.where(follows < 0, 0.0, 2.5)
        arrivals = trace.arrivals.copy()
        for turn in np.flatnonzero(follows >= 0):
            arrivals[turn] = arrivals[follows[turn]] + 2.5
        fields = {"follows": follows, "delays": delays}
        trace = make_trace_of(
            [
                (arrivals[i], int(trace.prompt_lens[i]), int(trace.output_lens[i]), trace.blocks(i).tolist() or None)
                for i in range(len(trace))
            ],
            trace.block_size or 1,
            **fields,
        )
        write_trace(trace, path)
        back = read_trace(path)
        first = trace.arrivals[trace.follows < 0].min()
        assert np.allclose(back.arrivals + first, trace.arrivals, atol=1e-6)
        assert same(back, trace) or first > 0

    check()


def test_parquet_tables_of_chats_are_read(tmp_path):
    """A table with a column of messages, as data sets of chats are published."""
    chat = [{"role": "user", "content": "hello"}, {"role": "assistant", "content": "good day"}]
    table = pa.Table.from_pylist([{"conversation_id": f"c{i}", "conversation": chat} for i in range(5)])
    pq.write_table(table, tmp_path / "chats.parquet")
    trace = read_trace(tmp_path / "chats.parquet")
    assert (trace.format, len(trace)) == ("lmsys", 5)


def test_parquet_without_its_package_names_the_extra(tmp_path, monkeypatch):
    """Without pyarrow the message says what to install."""
    pq.write_table(pa.Table.from_pylist([ROW]), tmp_path / "t.parquet")
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    with pytest.raises(TraceError, match=r"needs pyarrow. Install it with: pip install 'kvstead\[parquet\]'"):
        read_trace(tmp_path / "t.parquet")


def test_a_folder_is_all_its_files(tmp_path):
    """Files of a folder are one trace, those in folders inside too, hidden ones left out; ids of files stay apart."""
    (tmp_path / "logs" / "inner").mkdir(parents=True)
    for name in ("a.jsonl", "inner/b.jsonl"):
        (tmp_path / "logs" / name).write_text(json.dumps(ROW))
    (tmp_path / "logs" / ".hidden").write_text("no trace")
    trace = read_trace(tmp_path / "logs")
    assert (len(trace), trace.block_ids.tolist()) == (2, [0, 1, 2, 3])
    (tmp_path / "empty").mkdir()
    with pytest.raises(TraceError, match="is a folder without files"):
        read_trace(tmp_path / "empty")


def test_addresses_are_opened_by_fsspec(monkeypatch):
    """An address such as s3://... is opened by fsspec, compressed or not; without it the message says so."""
    with fsspec.open("memory://trace.gz", "wb") as file:
        file.write(gzip.compress(json.dumps(ROW).encode()))
    assert len(read_trace("memory://trace.gz")) == 1
    with pytest.raises(TraceError, match="no address that fsspec opens"):
        read_trace("nowhere://trace")
    monkeypatch.setitem(sys.modules, "fsspec", None)
    with pytest.raises(TraceError, match="needs fsspec"):
        read_trace("memory://trace.gz")


def test_reading_tells_how_far_it_is(tmp_path):
    """The bytes told add up to the size of the file, before it is decompressed."""
    path = tmp_path / "t.jsonl.gz"
    path.write_bytes(gzip.compress("\n".join([json.dumps(ROW)] * 5000).encode()))
    told = []
    read_trace(path, advance=told.append)
    assert sum(told) == path.stat().st_size


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("[" * 100_000, "a trace or a log"),
        ('[{"a": ' * 50_000, "no whole JSON document|a trace or a log"),
        ('[{"conversations": [{"from": "human", "value": "x"}', "no whole JSON document"),
        ('{\n "input_lens": [1, 2]', "no whole JSON document"),
        ('{\n "benchmarks": []}', "holds no request: it has no rows"),
        ("[]", "it has no rows"),
        ("[1, 2]", "no whole JSON document|a trace or a log"),
        ('{"timestamp": NaN, "input_length": 1}', "expected one JSON object|no whole JSON"),
        ('{"input_lens": [1, 2], "output_lens": [1]}', "lists of one length"),
        ('{"input_lens": 5, "output_lens": [1]}', "lists of one length"),
        ('{"conversations": 5}', "a list of messages"),
        ('{"timestamp": 1e300, "input_length": 5, "output_length": 5}', "a time of 0 or more"),
        ("PAR1 is not all of it", "no whole Parquet file"),
        ("a,b\n1,2\n", "found the fields a, b"),
        ("\ufeff", "is empty"),
    ],
    ids=range(15),
)
def test_hostile_and_foreign_files_end_in_one_line(tmp_path, content, message):
    """Deep nesting, cut documents, wrong kinds and huge numbers: one error, short, with the file's name."""
    path = tmp_path / "foreign"
    path.write_text(content)
    with pytest.raises(TraceError, match=message) as caught:
        read_trace(path)
    assert str(path) in str(caught.value)
    assert len(str(caught.value)) < 900
    assert "\n" not in str(caught.value)


def test_bombs_are_bounded(tmp_path):
    """A compressed file that unfolds into one endless line or element ends before it fills the memory."""
    path = tmp_path / "bomb.gz"
    with gzip.open(path, "wb", compresslevel=1) as file:
        file.write(b'{"a": "')
        for _ in range(20):
            file.write(bytes(1 << 20).replace(b"\0", b"x"))
    with pytest.raises(TraceError, match=r"more than 16 MiB|no whole JSON document"):
        read_trace(path)
    with gzip.open(path, "wb", compresslevel=1) as file:
        file.write(b'[{"a": "')
        for _ in range(70):
            file.write(bytes(1 << 20).replace(b"\0", b"x"))
    with pytest.raises(TraceError, match="an element of more than 64 MiB"):
        read_trace(path)


def test_archives_are_no_traces(tmp_path):
    """A zip file is refused in one line."""
    with zipfile.ZipFile(tmp_path / "t.zip", "w") as archive:
        archive.writestr("t.jsonl", json.dumps(ROW))
    with pytest.raises(TraceError):
        read_trace(tmp_path / "t.zip")


def test_a_stream_is_read_in_any_pieces(tmp_path):
    """What `head` showed comes again, and reads of any sizes add up to the file."""
    data = bytes(range(256)) * 1000
    (tmp_path / "file").write_bytes(data)
    stream = ByteStream(tmp_path / "file")
    assert data.startswith(stream.head())
    parts = [stream.read(size) for size in (1, 10, 0, 70_000, 5)]
    assert b"".join([*parts, stream.read()]) == data
    assert stream.read(5) == b""


@pytest.mark.parametrize(
    "options", [{"columns": (("speed", "x"),)}, {"block_size": 0}, {"rate": 0}, {"think_seconds": -1}]
)
def test_options_out_of_range_are_refused(options):
    """An unknown column, a block without tokens, no rate and a negative time are refused."""
    with pytest.raises(InvalidSize, match="is"):
        LogOptions(**options)
