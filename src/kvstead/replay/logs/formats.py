"""The formats of request logs: which records are of which, and which of their fields is what.

A format is found by the first record: the first of the list whose `keys` it has. Paths are dotted; of several the first
that a record has counts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from kvstead.replay.logs.fields import field_of
from kvstead.replay.logs.json_lines import Unreadable

Record: TypeAlias = Mapping[str, Any]
Paths: TypeAlias = tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Fields:
    """Where records have what; nothing is needed but the lengths, or the texts that they are counted from.

    arrival: when a request came in, or with `latency` (seconds) when it ended. blocks: names of prefix blocks, of
    `block_size` tokens. total: prompt and output together, to be checked. delay: since the end of the session's row
    before. messages: a prompt as text. answer: the output as text. chat: messages, of which each of the model's ends a
    request. most_output: a limit, for logs that do not say more.
    """

    arrival: Paths = ()
    latency: Paths = ()
    prompt: Paths = ()
    output: Paths = ()
    total: Paths = ()
    blocks: Paths = ()
    session: Paths = ()
    delay: Paths = ()
    messages: Paths = ()
    answer: Paths = ()
    chat: Paths = ()
    most_output: Paths = ()


@dataclass(frozen=True, slots=True)
class Format:
    """One format. unit: of timestamps that are numbers, None guesses. unpack: the requests in a record."""

    name: str
    keys: Paths
    fields: Fields
    unit: str | None = None
    delay_unit: str = "s"
    block_size: int = 0
    unpack: Callable[[Record], Iterable[Any]] = field(default=lambda record: (record,))

    def matches(self, record: Record) -> bool:
        """Whether a record has all that makes it one of this format; alternatives of a key stand behind "|"."""
        return all(field_of(record, key.split("|")) is not None for key in self.keys)


def items(path: str) -> Callable[[Record], Iterable[Any]]:
    """The elements of a list inside a record, lists on the way to it included."""

    def elements(record: Any, names: list[str]) -> Iterable[Any]:
        if isinstance(record, list):
            for each in record:
                yield from elements(each, names)
        elif not names:
            yield record
        elif isinstance(record, Mapping):
            yield from elements(record.get(names[0]), names[1:])

    return lambda record: elements(record, path.split("."))


def _of_arrays(record: Record) -> Iterable[Record]:
    """Requests of which a benchmark's result has an array a figure."""
    names = {"start": "start_times", "prompt": "input_lens", "output": "output_lens"}
    arrays = {name: record.get(array) for name, array in names.items() if record.get(array)}
    if len({len(array) if isinstance(array, list) else -1 for array in arrays.values()}) != 1:
        raise Unreadable("`input_lens` and `output_lens`, lists of one length", f"{record}")
    return (dict(zip(arrays, values, strict=True)) for values in zip(*arrays.values(), strict=True))


def _finished(record: Record) -> Iterable[Record]:
    return (record,) if record.get("event") == "request.finished" else ()


def _measured(record: Record) -> Iterable[Record]:
    """A request of AIPerf, unless it failed or only warmed up the server."""
    phase = field_of(record, ("metadata.benchmark_phase", "metadata.credit_phase"))
    return () if record.get("error") or phase == "warmup" else (record,)


def _payloads(record: Record) -> Iterable[Record]:
    """The requests of AIPerf's and GenAI-Perf's inputs, turns of a session in order."""
    for number, session in enumerate(items("data")(record)):
        name = field_of(session, ("session_id",)) if isinstance(session, Mapping) else None
        for payload in field_of(session, ("payloads", "payload")) or ():
            yield {"session_id": name or f"session {number}", "body": payload}


_LENGTHS = Fields(
    arrival=("timestamp", "created_time"),
    prompt=("input_length", "input_tokens"),
    output=("output_length", "output_tokens"),
    blocks=("hash_ids",),
    session=("session_id",),
    delay=("delay", "delay_ms"),
)
_USAGE = ("usage.completion_tokens", "response.body.usage.completion_tokens", "response.usage.completion_tokens")
_OPENAI = Fields(
    arrival=("timestamp", "created", "created_at", "response.body.created", "response.created", "ts", "time"),
    prompt=tuple(path.replace("completion", "prompt") for path in _USAGE),
    output=_USAGE,
    session=("session_id", "conversation_id", "body.user_session"),
    messages=("messages", "body.messages", "request.messages", "prompt", "body.prompt", "request.prompt"),
    most_output=tuple(
        f"{place}{name}" for place in ("", "body.", "request.") for name in ("max_completion_tokens", "max_tokens")
    ),
)

FORMATS: tuple[Format, ...] = (
    Format("qwen", ("chat_id", "hash_ids"), Fields(
        arrival=("timestamp",), prompt=("input_length",), output=("output_length",), blocks=("hash_ids",)
    ), "s", block_size=16),
    Format("litellm", ("startTime|starttime", "prompt_tokens"), Fields(
        arrival=("startTime", "starttime"), session=("session_id",),
        prompt=("prompt_tokens",), output=("completion_tokens",), total=("total_tokens",),
        blocks=tuple(f"{place}hash_ids" for place in ("", "prefix_block_hashes.", "metadata.",
                                                      "metadata.prefix_block_hashes.")),
    ), block_size=16),
    Format("mooncake", ("input_length|input_tokens", "hash_ids|timestamp|created_time|delay|delay_ms"), _LENGTHS,
           "ms", "ms", block_size=512),
    Format("aiperf", ("metadata.request_start_ns|metadata.timestamp_ns", "metrics"), Fields(
        arrival=("metadata.request_start_ns", "metadata.timestamp_ns"),
        prompt=("metrics.input_sequence_length.value",),
        output=("metrics.output_sequence_length.value", "metrics.output_token_count.value"),
        session=("metadata.x_correlation_id", "metadata.conversation_id"),
    ), "ns", unpack=_measured),
    Format("aiperf-inputs", ("data",), Fields(
        session=("session_id",), messages=("body.messages", "body.prompt", "body.text_input"),
        most_output=("body.max_completion_tokens", "body.max_tokens", "body.min_tokens"),
    ), unpack=_payloads),
    Format("genai-perf", ("experiments",), Fields(
        arrival=("timestamp",), messages=("request_inputs.payload",), answer=("response_outputs",)
    ), "ns", unpack=items("experiments.requests")),
    Format("genai-bench", ("individual_request_metrics",), Fields(
        prompt=("num_input_tokens",), output=("num_output_tokens",)
    ), unpack=items("individual_request_metrics")),
    Format("guidellm", ("benchmarks",), Fields(
        arrival=("request_start_time", "info.timings.request_start", "start_time"),
        prompt=("prompt_tokens", "input_metrics.text_tokens"),
        output=("output_tokens", "output_metrics.text_tokens"),
    ), "s", unpack=items("benchmarks.requests.successful")),
    Format("bench-serving", ("input_lens", "output_lens"), Fields(
        arrival=("start",), prompt=("prompt",), output=("output",)
    ), "s", unpack=_of_arrays),
    Format("sglang-log", ("event", "rid"), Fields(
        arrival=("timestamp",), latency=("out.meta_info.e2e_latency",),
        prompt=("out.meta_info.prompt_tokens",), output=("out.meta_info.completion_tokens",),
    ), unpack=_finished),
    Format("server-log", ("kvstead_line",), Fields(
        arrival=("arrival",), latency=("latency",), prompt=("prompt_tokens",), output=("output_tokens",),
        messages=("prompt",), answer=("answer",), most_output=("max_tokens",),
    )),
    Format("sharegpt", ("conversations",), Fields(chat=("conversations",))),
    Format("lmsys", ("conversation",), Fields(
        arrival=("tstamp", "timestamp"), session=("conversation_id",), chat=("conversation",)
    )),
    Format("openai", ("messages|body.messages|request.messages|usage|response.body.usage|body.prompt",), _OPENAI),
    Format("azure", ("timestamp", "contexttokens", "generatedtokens"), Fields(
        arrival=("timestamp",), prompt=("contexttokens",), output=("generatedtokens",)
    )),
    Format("burstgpt", ("timestamp", "request tokens", "response tokens", "total tokens"), Fields(
        arrival=("timestamp",), prompt=("request tokens",), output=("response tokens",), total=("total tokens",),
        session=("session id",),
    ), "s"),
)  # fmt: skip

FORMAT_NAMES = tuple(each.name for each in FORMATS)
