"""Requests in the text log of a server of SGLang's (`--log-requests`) or vLLM's (`--enable-log-requests`)."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from typing import Any

_LOST_REQUESTS = 100_000  # that are kept until their answers come

_SGLANG = re.compile(r"Finish: obj=")
_VLLM_BEGIN = re.compile(r"Received request (\S+?):")
_VLLM_END = re.compile(r"Generated response (\S+?)[: ]")
_LOG_TIME = re.compile(r"((?:\d{4}-)?\d\d-\d\d[ T]\d\d:\d\d:\d\d(?:[.,]\d+)?)")
_QUOTED = r"""('(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*")"""
_PROMPT = re.compile(r"prompt: " + _QUOTED)
_ANSWER = re.compile(r"output: " + _QUOTED)


def is_server_log(line: str) -> bool:
    """Whether a line tells of a request."""
    return bool(_SGLANG.search(line) or _VLLM_BEGIN.search(line))


def requests_of(lines: Iterator[tuple[int, str]]) -> Iterator[tuple[int, dict[str, Any]]]:
    """The requests in the log of a server of SGLang's or vLLM's; its other lines are passed over."""
    begun: dict[str, tuple[int, dict[str, Any]]] = {}
    for number, line in lines:
        if _SGLANG.search(line):
            yield number, _sglang_request(line)
        elif match := _VLLM_BEGIN.search(line):
            begun[match[1]] = number, _vllm_request(line)
            if len(begun) > _LOST_REQUESTS:
                yield begun.pop(next(iter(begun)))
        elif (match := _VLLM_END.search(line)) and match[1] in begun:
            place, record = begun.pop(match[1])
            yield place, record | _vllm_answer(line)
    yield from begun.values()


def _sglang_request(line: str) -> dict[str, Any]:
    found = {
        "arrival": _time(line),
        "latency": _last(r"'?e2e_latency'?: ([\d.]+)", line),
        "prompt_tokens": _last(r"'?prompt_tokens'?: (\d+)", line),
        "output_tokens": _last(r"'?completion_tokens'?: (\d+)", line),
    }
    return {"kvstead_line": True} | {name: value for name, value in found.items() if value}


def _vllm_request(line: str) -> dict[str, Any]:
    prompt, ids = _PROMPT.search(line), re.search(r"prompt_token_ids: \[([\d, ]*)\]", line)
    found = {
        "arrival": _time(line),
        "prompt": _text(prompt),
        "max_tokens": _last(r"max_tokens=(\d+)", line),
        "prompt_tokens": None if ids is None else ids[1].count(",") + 1,
    }
    return {"kvstead_line": True} | {name: value for name, value in found.items() if value}


def _vllm_answer(line: str) -> dict[str, Any]:
    ids = re.search(r"output_token_ids: \[([\d, ]*)\]", line)
    if ids is not None:
        return {"output_tokens": ids[1].count(",") + 1}
    answer = _text(_ANSWER.search(line))
    return {} if answer is None else {"answer": answer}


def _text(match: re.Match[str] | None) -> str | None:
    try:
        return None if match is None else str(ast.literal_eval(match[1]))
    except (ValueError, SyntaxError, MemoryError):
        return None


def _last(pattern: str, line: str) -> str | None:
    """What the last of the places in a line says: a prompt that is shown comes before the figures."""
    found = re.findall(pattern, line)
    return str(found[-1]) if found else None


def _time(line: str) -> str | None:
    match = _LOG_TIME.search(line)
    if match is None:
        return None
    return match[1] if match[1][4] == "-" else f"2000-{match[1]}"  # vLLM leaves out the year
