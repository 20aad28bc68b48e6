import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from kvstead.errors import InvalidSize
from kvstead.kernels import arrays
from kvstead.kernels.arrays import to_device, to_host, untouched

BYTES = st.lists(st.integers(0, 127), max_size=20)
INTEGER_DTYPES = ("int8", "uint8", "int16", "int32", "int64")


def assert_ready(array, values):
    """Check that an array is as every kernel takes it, with these values."""
    assert array.dtype == np.int64
    assert array.ndim == 1
    assert array.flags.carray
    assert array.tolist() == values


@pytest.mark.parametrize("dtype", INTEGER_DTYPES)
@given(values=BYTES)
def test_every_integer_type_arrives_as_int64(dtype, values):
    """Tensors, arrays and sequences of any integer type hold the same numbers afterwards."""
    for given_values in (
        torch.tensor(values, dtype=getattr(torch, dtype)),
        np.array(values, dtype=dtype),
        np.array(values, dtype=np.dtype(dtype).newbyteorder()),
        values,
        tuple(values),
    ):
        assert_ready(to_host(given_values), values)


@given(BYTES)
def test_every_shape_arrives_flat(values):
    """Strided, reversed, transposed and folded values are read in their own order."""
    pairs = [[value, -1] for value in values]
    array = np.array(pairs, dtype=np.int64).reshape(-1, 2)
    tensor = torch.from_numpy(array)
    for column in (array[:, 0], array[::-1, 0][::-1], tensor[:, 0], tensor[:, :1], tensor[None, :, 0]):
        assert_ready(to_host(column), values)
    assert_ready(to_host(tensor.T), [*values, *[-1] * len(values)])
    assert_ready(to_host(array.T), [*values, *[-1] * len(values)])


def test_read_only_and_unaligned_arrays_are_copied():
    """An array that compiled code cannot take arrives as a copy."""
    locked = np.arange(3)
    locked.flags.writeable = False
    shifted = np.frombuffer(b"\0" + np.arange(3).tobytes(), dtype=np.int64, offset=1)
    for values in (locked, shifted, np.broadcast_to(locked, (3,))):
        array = to_host(values)
        assert_ready(array, [0, 1, 2])
        assert not np.shares_memory(array, values)


def test_a_number_is_a_sequence_of_one():
    """A 0-dimensional tensor stands for its one value."""
    assert_ready(to_host(torch.tensor(7)), [7])
    assert_ready(to_host(np.array(7)), [7])


def test_int64_is_shared():
    """A plain int64 array or tensor is not copied."""
    array = np.arange(4)
    tensor = torch.arange(4)
    assert to_host(array) is array
    assert np.shares_memory(to_host(tensor), tensor.numpy())
    assert np.shares_memory(to_host(tensor.reshape(2, 2)), tensor.numpy())


@pytest.mark.parametrize("empty", [[], (), np.empty(0), np.empty((0, 3)), torch.empty(0), torch.empty(0, dtype=bool)])
def test_an_empty_sequence_arrives_as_int64(empty):
    """An empty sequence is int64[0], of whichever type it was."""
    assert_ready(to_host(empty), [])


@pytest.mark.parametrize(
    "values",
    [
        [1.0],
        [True],
        ["1"],
        [2**64],
        None,
        np.array([1.5]),
        np.array([True]),
        np.array([1 + 0j]),
        torch.tensor([1.0]),
        torch.tensor([True]),
        torch.tensor([1.0], dtype=torch.bfloat16),
    ],
)
def test_values_other_than_integers_are_refused(values):
    """Floats, masks, text and numbers beyond 64 bits are not slots."""
    with pytest.raises(TypeError):
        to_host(values)


class Elsewhere:
    """Stands in for a device: what `to_device` needs of one, without the hardware."""

    type = "elsewhere"


def test_a_result_for_another_device_is_sent_without_waiting(monkeypatch):
    """Off the CPU the tensor is copied to the device that was asked for, non-blocking; on the CPU it is shared."""
    calls = []

    def send(tensor, device, *, non_blocking=False):
        calls.append((tensor.tolist(), device, non_blocking))
        return "sent"

    array = np.arange(3)
    assert np.shares_memory(to_device(array, torch.device("cpu")).numpy(), array)
    device = Elsewhere()
    monkeypatch.setattr(torch.Tensor, "to", send)
    assert to_device(array, device) == "sent"
    assert calls == [([0, 1, 2], device, True)]


def test_a_result_keeps_its_shape_and_type_on_another_device():
    """The meta device holds no data, but says what would arrive."""
    sent = to_device(np.arange(3), torch.device("meta"))
    assert (sent.device.type, sent.dtype, sent.shape) == ("meta", torch.int64, (3,))


def test_tables_larger_than_the_memory_cost_what_is_written():
    """Rows of a table of 2^45 bytes can be written and read; one more than can be addressed is refused."""
    table = untouched((1 << 22, 1 << 20), np.int64)
    table[1 << 21, 5:8] = [1, 2, 3]
    assert table[1 << 21, 5:8].tolist() == [1, 2, 3]
    with pytest.raises(InvalidSize, match="Run fewer requests at once"):
        untouched((10**21, 64), np.int64)


def test_memory_that_no_system_gives_is_an_error(monkeypatch):
    """Where memory cannot be left uncounted, numpy's own error reaches the caller."""
    monkeypatch.setattr(arrays.sys, "platform", "other")
    with pytest.raises(MemoryError):
        untouched((1 << 22, 1 << 20), np.int64)
