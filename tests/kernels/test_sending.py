import numpy as np
import pytest
import torch

from kvstead.kernels import sending
from kvstead.kernels.sending import Sender


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_arrays_arrive_in_their_shape(device, dtype):
    """An array of any integers becomes a tensor of the sender's type on its device, in the same shape."""
    sender = Sender(device, dtype)
    for array in (np.arange(6).reshape(2, 3), np.arange(4, dtype=np.int32), np.empty((2, 0), dtype=np.int64)):
        sent = sender.send(array)
        assert (sent.dtype, sent.device.type, tuple(sent.shape)) == (dtype, device, array.shape)
        if device == "cpu":
            assert sent.tolist() == array.tolist()


def test_indices_on_the_device_are_taken_as_they_are():
    """A flat tensor of the right type is not copied; any other integers come out flat and of that type."""
    slots = torch.arange(4)
    assert Sender("cpu").indices(slots) is slots
    for given in (slots.int(), slots.reshape(2, 2), slots.tolist(), slots.numpy(), slots.to(torch.uint8)):
        assert torch.equal(Sender("cpu").indices(given), slots)
        assert Sender("cpu", torch.int32).indices(given).dtype == torch.int32


def test_indices_on_the_host_are_sent():
    """A tensor of the host goes to the sender's device."""
    assert Sender("meta").indices(torch.arange(4)).device.type == "meta"
    assert Sender("meta").indices([1, 2]).shape == (2,)


@pytest.mark.parametrize("given", [[0.5], torch.ones(2), torch.ones(2, dtype=torch.bool), torch.ones(2, device="meta")])
def test_indices_are_integers(given):
    """Fractions and truth values are refused, wherever they are; none at all are none."""
    device = given.device.type if isinstance(given, torch.Tensor) else "cpu"
    with pytest.raises(TypeError, match="expected integers"):
        Sender(device).indices(given)
    assert Sender(device).indices(given[:0]).dtype == torch.int64


def test_copies_go_through_pinned_memory_where_there_is_some(monkeypatch):
    """Where the device reads host memory by itself an array is put there first."""
    pinned = []
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda tensor: (pinned.append(tensor.tolist()), tensor)[1])
    sender = Sender("meta")
    sender.send(np.arange(2))
    assert not pinned
    sender._pins = True
    assert sender.send(np.arange(2)).device.type == "meta"
    assert pinned == [[0, 1]]


def test_what_cannot_be_pinned_is_not(monkeypatch):
    """Memory is pinned where torch can pin it; being refused is an answer, no fault."""
    assert sending._can_pin() == torch.accelerator.is_available()

    def refuse(*_sizes, device, pin_memory):
        assert (device, pin_memory) == ("cpu", True)
        raise RuntimeError

    monkeypatch.setattr(torch, "empty", refuse)
    assert not sending._can_pin()
    monkeypatch.setattr(torch, "empty", lambda *_sizes, **settings: settings)
    assert sending._can_pin()
