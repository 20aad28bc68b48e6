import io

import numpy as np
from rich.console import Console

from kvstead.replay.stats import trace_stats
from kvstead.replay.trace import by_arrival
from kvstead.report.traces import traces_table


def _trace(name, arrivals, block_size):
    num = len(arrivals)
    return by_arrival(
        name=name,
        format="mooncake",
        arrivals=np.array(arrivals, dtype=np.float64),
        prompt_lens=np.full(num, 16),
        output_lens=np.full(num, 2),
        block_sizes=np.full(num, block_size),
        block_counts=np.full(num, 1 if block_size else 0),
        block_ids=np.zeros(num if block_size else 0, dtype=np.int64),
    )


def test_figures_of_each_trace_stand_in_its_column():
    """Reuse by tokens and blocks; no rate where all requests come at once; words where there are no ids."""
    traces = [_trace("a[1]", [0.0, 2.0], 16), _trace("b", [0.0], 0)]
    stream = io.StringIO()
    Console(file=stream, width=160).print(traces_table([trace_stats(trace) for trace in traces]))
    text = stream.getvalue()
    assert "a[1]" in text
    assert "0:00:02, 1 requests/s" in text
    assert "50.00 % of prompt tokens (16 of 32)" in text
    assert "50.00 % of blocks (1 of 2)" in text
    assert "no reuse information in this trace" in text
    assert text.count("requests/s") == 1
