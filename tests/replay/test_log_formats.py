"""A small sample of each format, written as the tool writes it, with what has to come out."""

import json

import numpy as np
import pytest

from kvstead.errors import TraceError
from kvstead.replay.logs.formats import FORMAT_NAMES
from kvstead.replay.logs.options import LogOptions
from kvstead.replay.readers import read_trace

CHAT = [
    {"role": "user", "content": "What is a page?" * 8},
    {"role": "assistant", "content": "Some tokens." * 5},
    {"role": "user", "content": "And a slot?"},
    {"role": "assistant", "content": "One of them."},
]
SHAREGPT = [
    {
        "id": f"chat-{number}",
        "conversations": [
            {"from": {"user": "human", "assistant": "gpt"}[message["role"]], "value": message["content"]}
            for message in CHAT
        ],
    }
    for number in range(3)
]
AIPERF = {
    "metadata": {
        "session_num": 0,
        "x_request_id": "r",
        "x_correlation_id": "s",
        "conversation_id": "c",
        "turn_index": 0,
        "request_start_ns": 1_759_522_419_158_355_424,
        "request_end_ns": 1_759_522_427_000_000_000,
        "benchmark_phase": "profiling",
    },
    "metrics": {
        "input_sequence_length": {"value": 550, "unit": "tokens"},
        "output_sequence_length": {"value": 193, "unit": "tokens"},
    },
    "error": None,
}
GUIDELLM = {
    "benchmarks": [
        {
            "requests": {
                "successful": [
                    {"request_start_time": 1_700_000_000.25 + i, "prompt_tokens": 256, "output_tokens": 128 + i}
                    for i in range(2)
                ],
                "errored": [{"request_start_time": 0.0, "prompt_tokens": 1, "output_tokens": 0}],
            }
        }
    ]
}
GENAI_PERF = {
    "service_kind": "openai",
    "experiments": [
        {
            "requests": [
                {
                    "timestamp": 1_700_000_000_000_000_000 + i * 500_000_000,
                    "request_inputs": {"payload": json.dumps({"messages": CHAT[:1], "stream": True})},
                    "response_outputs": [{"response": "data: {}"}] * 9,
                }
                for i in range(2)
            ]
        }
    ],
}
SGLANG_JSON = [
    {"timestamp": "2026-05-27T20:00:10.5", "event": "request.received", "rid": "a", "obj": {"text": "hi"}},
    {
        "timestamp": "2026-05-27T20:00:14.5",
        "event": "request.finished",
        "rid": "a",
        "out": {"meta_info": {"prompt_tokens": 320, "completion_tokens": 220, "e2e_latency": 4.0}},
    },
    {
        "timestamp": "2026-05-27T20:00:20.5",
        "event": "request.finished",
        "rid": "b",
        "out": {"meta_info": {"prompt_tokens": 100, "completion_tokens": 20, "e2e_latency": 2.5}},
    },
]
SGLANG_TEXT = """\
[2026-05-27 20:00:09] server_args=ServerArgs(model_path='m')
[2026-05-27 20:00:14 TP0] Finish: obj=GenerateReqInput(rid='a', text="'prompt_tokens': 7"), out={'text': 'x', \
'meta_info': {'id': 'a', 'prompt_tokens': 320, 'completion_tokens': 220, 'cached_tokens': 80, 'e2e_latency': 4.0}}
[2026-05-27 20:00:15] Decode batch, #running-req: 4
[2026-05-27 20:00:20 TP0] Finish: obj=GenerateReqInput(rid='b'), out={'text': 'y', \
'meta_info': {'id': 'b', 'prompt_tokens': 100, 'completion_tokens': 20, 'cached_tokens': 0, 'e2e_latency': 2.5}}
"""
VLLM_TEXT = """\
INFO 03-12 11:16:48 launcher.py:27] Route: /v1/rerank, Methods: POST
INFO 03-12 11:16:50 [logger.py:39] Received request chatcmpl-1: prompt: 'It\\'s a "page".\\n', params: \
SamplingParams(n=1, max_tokens=163, min_tokens=0), prompt_token_ids: None, lora_request: None.
INFO 03-12 11:16:52 [logger.py:39] Received request chatcmpl-2: prompt: None, params: \
SamplingParams(n=1, max_tokens=500), prompt_token_ids: [1, 2, 3, 4, 5], lora_request: None.
INFO 03-12 11:16:53 [logger.py:60] Generated response chatcmpl-2 (streaming complete): output: 'abc', \
output_token_ids: [7, 8, 9], finish_reason: stop
"""


@pytest.fixture
def read(tmp_path):
    """Write a file of text, of one JSON value, or of a list of lines, and read it."""

    def read_content(content, *, lines=False, name="log", **options):
        path = tmp_path / name
        rows = [json.dumps(each) if not isinstance(each, str) else each for each in content] if lines else []
        text = "\n".join(rows) if lines else content if isinstance(content, str) else json.dumps(content)
        path.write_text(text)
        return read_trace(path, LogOptions(**options))

    return read_content


def lengths(trace):
    return list(zip(trace.prompt_lens.tolist(), trace.output_lens.tolist(), strict=True))


def test_every_format_is_tested_here_or_with_the_readers():
    """Each format has a sample: in this module, or in that of the four traces."""
    here = {"litellm", "aiperf", "aiperf-inputs", "genai-perf", "genai-bench", "guidellm", "bench-serving"}
    here |= {"sglang-log", "server-log", "sharegpt", "lmsys", "openai"}
    assert set(FORMAT_NAMES) == here | {"qwen", "mooncake", "azure", "burstgpt"}


@pytest.mark.parametrize("as_lines", [False, True], ids=["list", "lines"])
@pytest.mark.parametrize("format_name", ["sharegpt", "lmsys"])
def test_chats_are_read_turn_by_turn(read, as_lines, format_name):
    """A chat gives a request for each answer; a turn waits for the one before, and begins with it."""
    chats = SHAREGPT
    if format_name == "lmsys":
        chats = [{"conversation_id": f"c{i}", "model": "m", "conversation": CHAT, "turn": 2} for i in range(3)]
    trace = read(chats, lines=as_lines, block_size=4, think_seconds=7.0)
    assert trace.format == format_name
    assert len(trace) == 6
    firsts = np.flatnonzero(trace.follows < 0)
    assert len(firsts) == 3
    for turn in np.flatnonzero(trace.follows >= 0).tolist():
        first = int(trace.follows[turn])
        assert trace.delays[turn] == 7.0
        whole = int(trace.prompt_lens[first]) // 4
        assert np.array_equal(trace.blocks(first)[:whole], trace.blocks(turn)[:whole])
        assert trace.prompt_lens[turn] >= trace.prompt_lens[first] + trace.output_lens[first]
    answer = -(-len(CHAT[1]["content"]) // 4)
    assert trace.output_lens[firsts].tolist() == [answer] * 3
    assert any("4 bytes" in guess for guess in trace.guesses)
    assert any("1 a second" in guess for guess in trace.guesses)


def test_chats_with_times_start_at_them(read):
    """`tstamp` says when a chat began."""
    rows = [{"conversation_id": f"c{i}", "tstamp": 1_680_000_000.5 + 60 * i, "conversation": CHAT} for i in range(2)]
    trace = read(rows, lines=True)
    assert trace.arrivals[trace.follows < 0].tolist() == [0.0, 60.0]


def test_openai_batches_are_read(read):
    """Requests of a batch have messages and a limit; their results have the usage."""
    rows = [
        {
            "custom_id": f"r{i}",
            "method": "POST",
            "url": "/v1/chat/completions",
            "body": {"messages": CHAT[:1], "max_tokens": 64},
        }
        for i in range(2)
    ]
    trace = read(rows, lines=True)
    assert (trace.format, trace.output_lens.tolist()) == ("openai", [64, 64])
    assert np.array_equal(trace.blocks(0), trace.blocks(1)), "equal prompts"
    assert any("limit" in guess for guess in trace.guesses)
    usage = {"prompt_tokens": 74, "completion_tokens": 15, "total_tokens": 89}
    results = [
        {
            "id": "b",
            "custom_id": f"r{i}",
            "response": {"status_code": 200, "body": {"created": 1_741_749_149 + i, "usage": usage}},
        }
        for i in range(2)
    ]
    trace = read(results, lines=True)
    assert (lengths(trace), trace.arrivals.tolist()) == ([(74, 15)] * 2, [0.0, 1.0])


def test_openai_request_logs_are_read(read):
    """A log of requests with their usage: answers as long as it says, prompts by their texts; the ratio is told."""
    rows = [
        {
            "timestamp": f"2026-01-0{day}T00:00:00Z",
            "messages": CHAT[:1],
            "usage": {"prompt_tokens": 30, "completion_tokens": 5},
        }
        for day in (1, 2)
    ]
    trace = read(rows, lines=True)
    assert trace.arrivals.tolist() == [0.0, 86_400.0]
    assert trace.output_lens.tolist() == [5, 5]
    assert any("times as long as the log says" in guess for guess in trace.guesses)


def test_litellm_spend_logs_are_read(read):
    """Spend logs with hexadecimal names of prefix blocks: equal names stay equal."""
    rows = [
        {
            "request_id": "a",
            "startTime": "2026-11-16T10:00:00.250Z",
            "prompt_tokens": 20,
            "completion_tokens": 3,
            "total_tokens": 23,
            "metadata": {"prefix_block_hashes": {"hash_ids": ["00ff00ff00ff00ff", "0123456789abcdef"]}},
        },
        {
            "request_id": "b",
            "startTime": "2026-11-16T10:00:01.250Z",
            "prompt_tokens": 17,
            "completion_tokens": 4,
            "total_tokens": 21,
            "metadata": {"prefix_block_hashes": {"hash_ids": ["00ff00ff00ff00ff", "fedcba9876543210"]}},
        },
    ]
    trace = read(rows, lines=True)
    assert (trace.format, trace.block_size) == ("litellm", 16)
    assert trace.block_ids.tolist() == [0, 1, 0, 2]
    assert trace.arrivals.tolist() == [0.0, 1.0]


def test_aiperf_exports_are_read(read):
    """One record a request; those that failed or only warmed up the server are passed over."""
    later = {
        **AIPERF,
        "metadata": {**AIPERF["metadata"], "request_start_ns": 1_759_522_420_158_355_424, "x_correlation_id": "t"},
    }
    warmup = {**AIPERF, "metadata": {**AIPERF["metadata"], "benchmark_phase": "warmup"}}
    failed = {"metadata": AIPERF["metadata"], "metrics": {}, "error": {"code": 503}}
    trace = read([warmup, AIPERF, failed, later], lines=True)
    assert (trace.format, trace.problems) == ("aiperf", ())
    assert (lengths(trace), trace.arrivals.tolist()) == ([(550, 193)] * 2, [0.0, 1.0])


def test_aiperf_inputs_are_read(read):
    """The payloads of a session are its turns, which wait for one another; GenAI-Perf's inputs are alike."""
    turns = [{"messages": CHAT[:1], "max_completion_tokens": 9}, {"messages": CHAT[:3], "max_completion_tokens": 8}]
    trace = read({"data": [{"session_id": "s", "payloads": turns}]})
    assert (trace.format, trace.follows.tolist(), trace.output_lens.tolist()) == ("aiperf-inputs", [-1, 0], [9, 8])
    genai = read({"data": [{"payload": [{"messages": CHAT[:1], "max_tokens": 9}]} for _ in range(2)]})
    assert (genai.follows.tolist(), genai.output_lens.tolist()) == ([-1, -1], [9, 9])


def test_genai_perf_exports_are_read(read):
    """Prompts from the payloads, times in nanoseconds, and a token for each part of a streamed answer."""
    trace = read(GENAI_PERF)
    assert (trace.format, trace.arrivals.tolist(), trace.output_lens.tolist()) == ("genai-perf", [0.0, 0.5], [9, 9])
    assert trace.has_reuse


def test_genai_bench_results_are_read(read):
    """Lengths of each request; no times, so that arrivals are random and the trace says so."""
    metrics = [{"num_input_tokens": 100, "num_output_tokens": 10 + i, "ttft": 0.1} for i in range(50)]
    trace = read({"aggregated_metrics": {}, "individual_request_metrics": metrics}, rate=5.0)
    assert trace.format == "genai-bench"
    assert sorted(trace.output_lens.tolist()) == list(range(10, 60))
    assert 5 < trace.arrivals[-1] < 20, "50 requests at 5 a second"
    assert any("5 a second (50 requests)" in guess for guess in trace.guesses)


def test_guidellm_results_are_read(read):
    """The requests that succeeded, of every benchmark in the file."""
    trace = read(GUIDELLM)
    assert (trace.format, lengths(trace), trace.arrivals.tolist()) == ("guidellm", [(256, 128), (256, 129)], [0.0, 1.0])


@pytest.mark.parametrize("as_lines", [False, True], ids=["vLLM", "SGLang"])
def test_results_of_serving_benchmarks_are_read(read, as_lines):
    """Arrays of lengths, with start times where the benchmark notes them; pretty or one run a line."""
    result = {"input_lens": [5, 6], "output_lens": [1, 2], "ttfts": [0.1, 0.2], "generated_texts": ["a", "b"]}
    trace = (
        read([result], lines=True) if as_lines else read(json.dumps({**result, "start_times": [10.5, 12.0]}, indent=1))
    )
    assert (trace.format, sorted(lengths(trace))) == ("bench-serving", [(5, 1), (6, 2)])
    assert as_lines or trace.arrivals.tolist() == [0.0, 1.5]


@pytest.mark.parametrize("log", [SGLANG_JSON, SGLANG_TEXT], ids=["json", "text"])
def test_request_logs_of_sglang_are_read(read, log):
    """Each finished request arrived when it ended less its latency; all other lines are passed over."""
    trace = read(log, lines=isinstance(log, list))
    assert (lengths(trace), trace.problems) == ([(320, 220), (100, 20)], ())
    assert trace.arrivals == pytest.approx([0.0, 7.5])


def test_request_logs_of_vllm_are_read(read):
    """Prompts by text or token ids; answers where they are logged, else the limit; a time without a year."""
    trace = read(VLLM_TEXT)
    assert trace.format == "server-log"
    assert trace.arrivals.tolist() == [0.0, 2.0]
    assert trace.output_lens.tolist() == [163, 3]
    assert trace.prompt_lens[1] == 5


def test_sessions_of_dynamo_are_closed_loops(read):
    """A turn without a time follows the turn before it, `delay` milliseconds after its end."""
    rows = [
        {"session_id": "a", "timestamp": 1000, "input_length": 20, "output_length": 5, "hash_ids": [1, 2]},
        {"session_id": "b", "timestamp": 1500, "input_tokens": 16, "output_tokens": 5, "hash_ids": [1]},
        {"session_id": "a", "delay": 250, "input_length": 40, "output_length": 5, "hash_ids": [1, 2, 3]},
    ]
    trace = read(rows, lines=True, block_size=16)
    assert trace.format == "mooncake"
    order = trace.prompt_lens.tolist()
    assert trace.follows[order.index(40)] == order.index(20)
    assert trace.delays[order.index(40)] == 0.25
    assert trace.arrivals[order.index(16)] == 0.5


def test_deltas_are_added_up(read):
    """With deltas a turn's prompt is what it lists, behind the turn before and its answer, whose blocks it shares."""
    rows = [
        {"session_id": "a", "timestamp": 0, "input_length": 32, "output_length": 10, "hash_ids": [1, 2]},
        {"session_id": "a", "delay": 5, "input_length": 6, "output_length": 4, "hash_ids": [9]},
        {"session_id": "a", "delay": 5, "input_length": 2, "output_length": 1},
    ]
    trace = read(rows, lines=True, block_size=16, deltas=True)
    assert trace.prompt_lens.tolist() == [32, 32 + 10 + 6, 48 + 4 + 2]
    first, second, third = (trace.blocks(turn).tolist() for turn in range(3))
    assert second[:2] == first
    assert third[:3] == second
    assert trace.follows.tolist() == [-1, 0, 1]


def test_sessions_without_ids_share_their_context(read):
    """BurstGPT 2: a turn that is as long as its context begins with it; a shorter one begins anew."""
    header = "Timestamp,Session ID,Elapsed time,Model,Request tokens,Response tokens,Total tokens,Log Type"
    rows = ["1,7,1,m,40,8,48,c", "2,8,1,m,40,8,48,c", "9,7,1,m,60,5,65,c", "20,7,1,m,30,5,35,c"]
    trace = read("\n".join([header, *rows]))
    assert trace.block_size == 16
    blocks = [set(trace.blocks(request).tolist()) for request in range(4)]
    assert blocks[0] <= blocks[2]
    assert not blocks[0] & blocks[1]
    assert not blocks[3] & (blocks[0] | blocks[1] | blocks[2])
    assert trace.follows.tolist() == [-1] * 4, "the log has the times"


@pytest.mark.parametrize("kind", ["csv", "json"])
def test_named_columns_are_read(read, kind):
    """Any table with columns for times, lengths and sessions, by their names."""
    columns = (("arrival", "When"), ("prompt", "in.tok"), ("output", "out_tok"), ("session", "conv"))
    if kind == "csv":
        trace = read(
            "conv,When,in.tok,out_tok\nx,2026-01-01 00:00:00,17,3\nx,2026-01-01 00:01:00,33,4\n", columns=columns
        )
    else:
        rows = [
            {"conv": "x", "When": "2026-01-01 00:00:00", "in": {"tok": 17}, "out_tok": 3},
            {"conv": "x", "When": "2026-01-01 00:01:00", "in": {"tok": "33"}, "out_tok": 4.0},
        ]
        trace = read(rows, lines=True, columns=columns)
    assert (trace.format, lengths(trace), trace.arrivals.tolist()) == ("columns", [(17, 3), (33, 4)], [0.0, 60.0])
    assert trace.blocks(0).tolist() == trace.blocks(1).tolist()[:2]


@pytest.mark.parametrize(
    ("first", "second", "unit"),
    [
        (1_700_000_000, 1_700_000_002, "s"),
        (1_700_000_000_000, 1_700_000_002_000, "ms"),
        (17 * 10**17, 17 * 10**17 + 2 * 10**9, "ns"),
    ],
)
def test_the_unit_of_times_since_1970_is_seen_by_their_size(read, first, second, unit):
    """Seconds, milliseconds and nanoseconds since 1970 give the same trace, and the guess is told."""
    trace = read(f"t,i,o\n{first},5,1\n{second},5,1\n", columns=(("arrival", "t"), ("prompt", "i"), ("output", "o")))
    assert trace.arrivals.tolist() == [0.0, 2.0]
    assert any(f"timestamps are in {unit}" in guess for guess in trace.guesses)


def test_a_clock_that_looks_wrong_is_told(read):
    """Seconds read as milliseconds make a rush of requests: the trace says so, and --time-unit mends it."""
    rows = [{"timestamp": i, "input_length": 5, "output_length": 1} for i in range(121)]
    rushed, right = read(rows, lines=True), read(rows, lines=True, time_unit="s")
    assert rushed.arrivals[-1] == 0.12
    assert any("121 requests arrive within 0.12 s" in guess for guess in rushed.guesses)
    assert right.arrivals[-1] == 120.0
    assert not any("arrive within" in guess for guess in right.guesses)


def test_the_first_ten_bad_rows_are_named_and_all_counted(read):
    """Rows that cannot be read are left out; ten are named, the rest counted; `strict` stops at the first."""
    rows = [{"timestamp": 0, "input_length": 5, "output_length": 1}, *({"timestamp": 1} for _ in range(25))]
    trace = read(rows, lines=True)
    assert (len(trace), len(trace.problems), trace.num_left_out) == (1, 10, 25)
    assert "line 2: expected a number of tokens in `input_length`" in trace.problems[0]
    with pytest.raises(TraceError, match=r"line 2: expected a number of tokens .* Correct it or remove it"):
        read(rows, lines=True, strict=True)
