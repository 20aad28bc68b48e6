import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from kvstead.kernels.device_transfer import DeviceTransfer


class Copies(TorchDispatchMode):
    """Whether each copy to somewhere else may be under way when its call returns."""

    def __init__(self):
        super().__init__()
        self.may_lag = []

    def __torch_dispatch__(self, func, _types, args=(), kwargs=None):
        if func.overloadpacket is torch.ops.aten._to_copy:
            self.may_lag.append(bool(kwargs.get("non_blocking")))
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("make", [np.array, torch.tensor])
def test_numbers_beyond_int32_stay_outside_every_pool(make):
    """A number past its ends becomes that end, never a small one that could be a slot."""
    far = make([2**32 + 5, 2**31, -1, 7, -(2**32) + 5])
    assert DeviceTransfer("cpu", torch.int32).indices(far).tolist() == [2**31 - 1, 2**31 - 1, -1, 7, -(2**31)]


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_only_a_device_may_lag_behind_its_indices(device):
    """Indices from elsewhere are there when the host goes on to read them; a device reads them in its own time."""
    sender = DeviceTransfer(device)
    with Copies() as copies:
        sender.indices(torch.tensor([3, 4], dtype=torch.int32, device=device))
    assert copies.may_lag == [device != "cpu"]
