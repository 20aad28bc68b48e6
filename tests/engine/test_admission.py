"""Admission against a count in plain Python."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from scenario import PAGE

from kvstead.engine import Request
from kvstead.engine.admission import Admission
from kvstead.engine.running import RunningRequests
from tiny_model import tiny_manager

ROWS = st.lists(st.tuples(st.integers(1, 12), st.integers(1, 8), st.integers(0, 12), st.booleans()), max_size=4)


@given(
    st.sampled_from([1, 2, 3, 4]), st.integers(0, 6), ROWS, st.integers(1, 12), st.integers(1, 9), st.integers(0, 40)
)
def test_request_fits_beside_what_is_promised(page_size, headroom, rows, length, new, spare):
    """The whole prompt must fit, and with others on the memory everybody's next growth, as far as they will grow."""
    manager = tiny_manager(40 * page_size, page_size, max_requests=8)
    admission = Admission(manager, headroom)
    promised, running = 0, RunningRequests(8)

    def pages(num_tokens):
        return -(-num_tokens // page_size)

    for i, (prompt, more, done, is_decoding) in enumerate(rows):
        request = Request(i, np.full(prompt, 10 + i), more, tokens=np.full(prompt, 10 + i))
        running.begin(request, manager.match(request.prompt).row)
        held = prompt if is_decoding else min(done, prompt - 1)
        manager.extend([request.row], [held])
        if is_decoding:
            running.start_decoding(request)
        promised += pages(min(prompt + headroom, prompt + more)) - pages(held)
    asking = Request(9, np.full(length, 1), new, tokens=np.full(length, 1))
    needed = pages(min(length + headroom, length + new)) + promised if rows else pages(length)
    used = manager.match([2]).row
    manager.extend([used], [max(0, manager.capacity.most(PAGE) - spare) * page_size])
    fits = admission.fits(asking, running)
    assert fits == (needed <= manager.capacity.most(PAGE))


@given(st.sampled_from([1, 2, 4]), st.integers(1, 30), st.integers(1, 30), st.integers(0, 30))
def test_cached_pages_are_counted_once(page_size, length, new, cached):
    """A page that is found is neither needed nor had: the rest must fit into what is left beside it."""
    manager = tiny_manager(8 * page_size, page_size)
    tokens = np.arange(length)
    cached = min(cached, length, manager.num_slots)
    if cached:
        row = manager.match(tokens[:cached]).row
        manager.extend([row], [cached])
        manager.commit([row], [cached], [0])
        manager.finish(row)
    asking = Request(0, tokens, new, tokens=tokens)
    fits = Admission(manager, 3).fits(asking, RunningRequests(1))
    assert fits == (-(-length // page_size) <= 8)


@given(st.sampled_from([1, 2, 4]), st.integers(1, 20), st.integers(1, 20), st.integers(1, 24))
def test_never_is_said_for_what_exceeds_memory_or_row(page_size, length, new, width):
    """All tokens but the last must fit the memory, and all of them a row."""
    manager = tiny_manager(4 * page_size, page_size, max_length=width)
    reason = Admission(manager, 0).why_never(Request(0, np.zeros(length, dtype=np.int64), new))
    assert bool(reason) == (length + new - 1 > 4 * page_size or length + new > width)
