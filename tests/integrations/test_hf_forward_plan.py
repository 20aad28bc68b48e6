"""Groups of requests that attend together, against what each token sees by itself."""

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st
from packed_jobs import CPU, jobs_of, seen_from

from kvstead.integrations.transformers.forward_plan import concatenated_ranges, first_read, group
from kvstead.model import Window

_WINDOWS = st.one_of(st.none(), st.builds(Window, st.integers(1, 20), st.booleans()))
_JOBS = st.lists(st.tuples(st.integers(0, 300), st.one_of(st.just(1), st.integers(1, 40))), min_size=1, max_size=24)


@given(_JOBS, _WINDOWS)
def test_every_token_sees_what_the_window_allows(pairs, window):
    """For any jobs, each packed token sees the entries of its own row that the window allows, each once."""
    jobs = jobs_of(pairs)
    groups, rows, positions = group(jobs, window, CPU)
    token_rows, token_positions = jobs.rows.repeat(jobs.num_new), jobs.positions()
    for some in groups:
        tokens = np.arange(some.queries.start, some.queries.stop).reshape(some.num_rows, -1)
        entries = np.arange(some.keys.start, some.keys.stop).reshape(some.num_rows, -1)
        shape = some.num_rows, 1, tokens.shape[1], entries.shape[1]
        mask = torch.ones(shape, dtype=torch.bool) if some.mask is None else some.mask.expand(shape)
        mask = mask.tril() if some.is_causal else mask
        for row in range(some.num_rows):
            assert (rows[entries[row]] == token_rows[tokens[row, 0]]).all(), "entries are the row's own"
            for at, token in enumerate(tokens[row].tolist()):
                seen = positions[entries[row]][mask[row, 0, at].numpy()]
                assert seen.tolist() == seen_from(int(token_positions[token]), window)


@given(_JOBS, _WINDOWS)
def test_groups_follow_each_other(pairs, window):
    """Groups cover packed tokens and gathered entries without a gap, and read only computed entries."""
    jobs = jobs_of(pairs)
    groups, rows, positions = group(jobs, window, CPU)
    assert [some.queries.start for some in groups] == [0, *(some.queries.stop for some in groups[:-1])]
    assert [some.keys.start for some in groups] == [0, *(some.keys.stop for some in groups[:-1])]
    assert groups[-1].queries.stop == jobs.num_new.sum()
    assert groups[-1].keys.stop == rows.size == positions.size
    ends = dict(zip(jobs.rows.tolist(), jobs.ends.tolist(), strict=True))
    firsts = dict(zip(jobs.rows.tolist(), first_read(jobs.starts, window).tolist(), strict=True))
    for row, position in zip(rows.tolist(), positions.tolist(), strict=True):
        assert firsts[row] <= position < ends[row]


@given(_JOBS, _WINDOWS)
def test_groups_have_little_padding(pairs, window):
    """The padding of a group is at most a quarter of what it reads, or 256 entries."""
    jobs = jobs_of(pairs)
    groups, _, _ = group(jobs, window, CPU)
    reads = jobs.ends - first_read(jobs.starts, window)
    done = 0
    for some in groups:
        own = int(reads[done : done + some.num_rows].sum())
        done += some.num_rows
        assert some.keys.stop - some.keys.start - own <= max(own // 4, 256)


def test_equal_lengths_need_no_mask():
    """Decoding rows of one length are one group without a mask, and so are prompts from their start."""
    groups, _, _ = group(jobs_of([(50, 1)] * 8), None, CPU)
    assert [(some.num_rows, some.mask, some.is_causal) for some in groups] == [(8, None, False)]
    groups, _, _ = group(jobs_of([(0, 30)] * 3), None, CPU)
    assert [(some.num_rows, some.mask, some.is_causal) for some in groups] == [(3, None, True)]


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(0, 9)), min_size=1, max_size=12))
def test_ranges_come_one_after_the_other(pairs):
    """Concatenated ranges equal those of a loop."""
    starts = np.array([start for start, _ in pairs], dtype=np.int64)
    ends = starts + np.array([length for _, length in pairs])
    expected = [at for start, length in pairs for at in range(start, start + length)]
    assert concatenated_ranges(starts, ends).tolist() == expected
