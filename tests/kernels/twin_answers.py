"""Holds a kernel and its torch twin to one answer, and draws what both are given."""

import numpy as np
import torch
import torch_twins
from hypothesis import currently_in_test_context, event
from hypothesis import strategies as st

from kvstead.kernels import growing_rows, host
from kvstead.kernels.host import FAULT_NONE, FREE, LIVE, PADDING, PARKED

EDGES = st.sampled_from([2**63 - 1, 2**63 - 2, -(2**63), -(2**63) + 1])
ANY_NUMBER = st.one_of(st.integers(-3, 60), st.integers(-3, 60), EDGES)


def ints(values):
    return np.array(values, dtype=np.int64)


def kernel(name):
    """The kernel of that name, in whichever module holds it."""
    return getattr(host if hasattr(host, name) else growing_rows, name)


def answer(name, *args):
    """The result of a kernel and the arrays as it left them, once its twin has returned and left the same.

    After a refusal only the first array is compared: it has to be as it was before.
    """
    arrays = [arg.copy() if isinstance(arg, np.ndarray) else arg for arg in args]
    tensors = [torch.from_numpy(arg.copy()) if isinstance(arg, np.ndarray) else arg for arg in args]
    with np.errstate(over="ignore"):  # compiled loops wrap around silently, so plain Python has to as well
        result = kernel(name)(*arrays)
    twin = getattr(torch_twins, name)(*tensors)
    if refused(name, result):
        assert stumbled(name, twin) == stumbled(name, result)
        assert arrays[0].tolist() == tensors[0].tolist() == args[0].tolist()
    else:
        assert twin == result
        for array, tensor in zip(arrays, tensors, strict=True):
            assert not isinstance(array, np.ndarray) or array.tolist() == tensor.tolist()
    if currently_in_test_context():
        event(f"{name}: {'refused' if refused(name, result) else 'done'}")
    return result, arrays


def refused(name, result):
    """Whether a result is a refusal."""
    return {
        "move": lambda: result >= 0,
        "move_slots": lambda: result[1] >= 0,
        "free_slots": lambda: result[1] >= 0,
        "move_segment": lambda: result[0] != FAULT_NONE,
        "extend_demand": lambda: result[0] != FAULT_NONE,
        "decode_slots": lambda: result[0] != FAULT_NONE,
    }.get(name, lambda: False)()


def stumbled(name, result):
    """The part of a refusal that says why and where."""
    return result[:2] if name in {"extend_demand", "decode_slots"} else result


@st.composite
def states(draw):
    """A page table; half of the pages or more are live."""
    kinds = draw(st.lists(st.sampled_from([LIVE, LIVE, LIVE, FREE, PARKED]), min_size=draw(st.sampled_from([6, 0]))))
    return np.array([PADDING, *kinds], dtype=np.uint8)
