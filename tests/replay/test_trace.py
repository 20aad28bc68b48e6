import dataclasses
import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from trace_strategies import make_trace_of, rows, traces

from kvstead.errors import TraceError
from kvstead.replay.tokens import FIRST_OUTPUT_TOKEN, PromptTokens
from kvstead.replay.trace import Trace, merge


def identities(trace: Trace, request: int) -> list[tuple[object, int]]:
    """What each prompt token stands for, told slowly: (block, offset in it), a prompt without ids being one block."""
    size = int(trace.block_sizes[request])
    length = int(trace.prompt_lens[request])
    if size == 0:
        return [(("alone", request), position) for position in range(length)]
    blocks = trace.blocks(request).tolist()
    return [((size, blocks[position // size]), position % size) for position in range(length)]


def plain_rows(trace: Trace) -> list[tuple[float, int, int, list[int]]]:
    return [
        (float(trace.arrivals[i]), int(trace.prompt_lens[i]), int(trace.output_lens[i]), trace.blocks(i).tolist())
        for i in range(len(trace))
    ]


@settings(deadline=None)
@given(trace=traces())
def test_tokens_follow_from_the_blocks(trace):
    """Equal blocks have equal tokens, no two blocks share one, and within a block of ids every offset has its own."""
    token_of: dict[tuple[object, int], int] = {}
    for request in range(len(trace)):
        tokens = trace.prompt_tokens(request)
        assert tokens.dtype == np.int32
        assert len(tokens) == trace.prompt_lens[request]
        for identity, token in zip(identities(trace, request), tokens.tolist(), strict=True):
            assert token_of.setdefault(identity, token) == token
            assert 0 <= token < FIRST_OUTPUT_TOKEN
    tokens_by_block: dict[object, list[int]] = {}
    for (block, _), token in token_of.items():
        tokens_by_block.setdefault(block, []).append(token)
    owned = [set(tokens) for tokens in tokens_by_block.values()]
    assert sum(map(len, owned)) == len(set().union(*owned))
    for (owner, _), tokens in tokens_by_block.items():
        assert owner == "alone" or len(set(tokens)) == len(tokens)


@settings(deadline=None)
@given(trace=traces())
def test_tokens_of_a_prompt_belong_to_the_caller(trace):
    """Overwriting the tokens that came out changes no later answer."""
    before = trace.prompt_tokens(0)
    expected = before.copy()
    before[:] = 0
    assert np.array_equal(trace.prompt_tokens(0), expected)


@settings(deadline=None)
@given(
    block_size=st.integers(1, 48),
    room=st.integers(1, 48),
    blocks=st.lists(st.integers(0, 9), min_size=1, max_size=6, unique=True),
)
def test_blocks_stay_apart_when_ids_are_scarce(block_size, room, blocks):
    """With fewer ids than tokens, different blocks still differ at every offset and equal ones agree."""
    space = PromptTokens.for_blocks(FIRST_OUTPUT_TOKEN // room, block_size, 6 * block_size)
    assert space.span <= room
    assert block_size % space.span == 0
    length = len(blocks) * block_size
    tokens = space.of_blocks(np.array(blocks), block_size, length).reshape(len(blocks), block_size)
    again = space.of_blocks(np.array(blocks[::-1]), block_size, length).reshape(len(blocks), block_size)
    assert np.array_equal(again[::-1], tokens)
    owners = [set(row.tolist()) for row in tokens]
    assert sum(map(len, owners)) == len(set().union(*owners))


def test_more_blocks_than_token_ids_are_refused():
    """A trace whose blocks cannot all have a token id of their own is refused."""
    with pytest.raises(TraceError, match="1073741825 prompt blocks"):
        PromptTokens.for_blocks(FIRST_OUTPUT_TOKEN + 1, 16, 16)


@settings(deadline=None)
@given(trace=traces())
def test_generated_tokens_are_distinct(trace):
    """The ids a request generates lie above every prompt id, below 2^31, and in no other request's range."""
    ends = FIRST_OUTPUT_TOKEN
    for request in range(len(trace)):
        base = trace.output_token_base(request)
        assert base >= ends
        ends = base + int(trace.output_lens[request])
    assert ends <= 1 << 31


def test_generated_ids_start_over_inside_their_range():
    """Beyond 2^30 generated tokens ids start over, and none leaves [2^30, 2^31)."""
    trace = make_trace_of([(0, 1, 1 << 29, [0]), (1, 1, 1 << 29, [0]), (2, 1, 1 << 29, [0])], 16)
    bases = [trace.output_token_base(request) for request in range(3)]
    assert all(FIRST_OUTPUT_TOKEN <= base <= (1 << 31) - (1 << 29) for base in bases)
    assert bases[1] == bases[0] + (1 << 29)


def test_tokens_are_quick():
    """12,000 tokens cost microseconds, not the milliseconds of a loop (bound with room for a busy machine)."""
    trace = make_trace_of([(0, 12_000, 1, list(range(750)))], 16)
    best = min(_seconds(trace) for _ in range(50))
    assert best < 200e-6


def _seconds(trace: Trace) -> float:
    start = time.perf_counter()
    trace.prompt_tokens(0)
    return time.perf_counter() - start


@settings(deadline=None)
@given(data=st.data(), block_size=st.integers(1, 8))
def test_rows_are_sorted_stably(data, block_size):
    """Requests stand in order of arrival, those of equal time in the order given, each with its own ids."""
    given_rows = data.draw(rows(block_size))
    trace = make_trace_of(given_rows, block_size)
    expected = [(row[0], row[1], row[2], row[3] or []) for row in sorted(given_rows, key=lambda row: row[0])]
    assert plain_rows(trace) == expected
    assert len(trace) == len(given_rows)


@settings(deadline=None)
@given(parts=st.lists(traces(), min_size=1, max_size=3))
def test_merge_keeps_requests_and_their_reuse(parts):
    """A merge holds every request once, by arrival; two prompts share tokens where they did, and never across files."""
    merged = merge(parts)
    sources = sorted(
        ((float(part.arrivals[i]), which, i) for which, part in enumerate(parts) for i in range(len(part))),
        key=lambda source: source[0],
    )
    token_of: dict[tuple[int, object], int] = {}
    for request, (arrival, which, i) in enumerate(sources):
        part = parts[which]
        assert merged.arrivals[request] == arrival
        assert merged.prompt_lens[request] == part.prompt_lens[i]
        assert merged.output_lens[request] == part.output_lens[i]
        assert merged.block_sizes[request] == part.block_sizes[i]
        for identity, token in zip(identities(part, i), merged.prompt_tokens(request).tolist(), strict=True):
            assert token_of.setdefault((which, identity), token) == token
    apart = [{token for (which, _), token in token_of.items() if which == k} for k in range(len(parts))]
    assert sum(map(len, apart)) == len(set().union(*apart))


def test_merge_names_and_problems():
    """A merge carries the names, the problems and, where they agree, the format and block size of its parts."""
    first = make_trace_of([(0, 5, 1, [0])], 8, name="a", problems=("a, line 2: bad.",))
    second = make_trace_of([(0, 5, 1, [0])], 8, name="b", problems=("b, line 9: bad.",))
    third = make_trace_of([(0, 5, 1, None)], 8, name="c", format="azure")
    both = merge([first, second])
    assert (both.name, both.format, both.block_size) == ("a + b", "mooncake", 8)
    assert both.problems == ("a, line 2: bad.", "b, line 9: bad.")
    assert merge([first, third]).format == "mixed"
    assert merge([first, make_trace_of([(0, 5, 1, [0, 1])], 4)]).block_size is None
    assert merge([first]) is first
    with pytest.raises(TraceError, match="no trace to merge"):
        merge([])


def test_reuse_is_known_only_with_ids():
    """A trace of lengths alone has no block size and no reuse to speak of."""
    lengths = make_trace_of([(0, 5, 1, None), (1, 7, 1, None)], 8)
    assert not lengths.has_reuse
    assert lengths.block_size is None
    assert lengths.num_blocks == 0
    assert make_trace_of([(0, 5, 1, [0])], 8).has_reuse


def test_a_trace_cannot_be_changed():
    """Columns are read-only, and making a trace does not lock the arrays it was made of."""
    trace = make_trace_of([(0, 5, 1, [0])], 8)
    with pytest.raises(ValueError, match="read-only"):
        trace.prompt_lens[0] = 9
    with pytest.raises(dataclasses.FrozenInstanceError):
        trace.name = "other"
    assert repr(trace) == "Trace('made', mooncake, 1 requests, 0 rows left out)"
    arrivals = np.array([0.0])
    replaced = dataclasses.replace(trace, arrivals=arrivals)
    arrivals[0] = 0.0
    assert len(replaced) == 1


@pytest.mark.parametrize(
    ("column", "values", "message"),
    [
        ("arrivals", np.array([1.0, 0.5]), "not ascending"),
        ("arrivals", np.array([-1.0, 0.5]), "negative"),
        ("arrivals", np.array([0.0, np.nan]), "not finite"),
        ("arrivals", np.array([0, 1]), r"arrivals is int64\[2\]"),
        ("prompt_lens", np.array([0, 9]), "empty prompts"),
        ("prompt_lens", np.array([5, 9, 1]), r"prompt_lens is int64\[3\]"),
        ("prompt_lens", np.array([5, 17]), "ceil"),
        ("output_lens", np.array([1, 0]), "empty outputs"),
        ("block_sizes", np.array([-8, 8]), "negative block sizes"),
        ("block_ids", np.array([0, -1, 2]), "negative block sizes or ids"),
        ("block_ids", np.array([0, 1]), "number of block ids"),
        ("block_offsets", np.array([0, 2, 3]), "number of block ids"),
    ],
)
def test_inconsistent_columns_are_refused(column, values, message):
    """Each contradiction between columns is refused, with its name."""
    trace = make_trace_of([(0, 5, 1, [0]), (1, 9, 1, [1, 2])], 8)
    with pytest.raises(TraceError, match=message):
        dataclasses.replace(trace, **{column: values})


def test_an_empty_trace_is_refused():
    """A trace of no request is refused."""
    with pytest.raises(TraceError, match="has no request"):
        make_trace_of([], 8)
