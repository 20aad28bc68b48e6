"""Host arrays on their way to a device, without waiting for it."""

from __future__ import annotations

import numpy as np
import torch

from kvstead.kernels.arrays import Integers, to_host

_INT32 = torch.iinfo(torch.int32)


class DeviceTransfer:
    """Copies host arrays to `device` as `dtype`, through pinned memory where the device has it.

    A copy is under way when `send` returns. Pinned blocks are torch's: it hands a block out again only when the copies
    from it are done, so nobody waits and nothing is overwritten, however far the device lags behind.
    """

    __slots__ = ("_pins", "device", "dtype")

    def __init__(self, device: str | torch.device, dtype: torch.dtype = torch.int64) -> None:
        self.device = torch.empty(0, device=device).device  # with its number
        self.dtype = dtype
        self._pins = self.device.type not in {"cpu", "meta"} and _can_pin()

    def send(self, array: np.ndarray) -> torch.Tensor:
        """A contiguous, writable integer array as a tensor of the same shape; on the CPU it may share memory."""
        tensor = torch.from_numpy(array)
        if tensor.dtype != self.dtype:
            tensor = self._fitted(tensor).to(self.dtype)
        if self.device.type == "cpu":
            return tensor
        return (tensor.pin_memory() if self._pins else tensor).to(self.device, non_blocking=True)

    def indices(self, values: Integers) -> torch.Tensor:
        """Any integers, flat: a tensor on the device is taken as it is, all else is sent. Raises as `to_host`."""
        if not isinstance(values, torch.Tensor):
            return self.send(to_host(values))
        if values.dtype == self.dtype and values.device == self.device and values.dim() == 1:
            return values
        if values.is_cpu and self.device.type != "cpu":
            return self.send(to_host(values))
        if values.numel() and (values.is_floating_point() or values.is_complex() or values.dtype == torch.bool):
            raise TypeError(f"expected integers, got {values.dtype}. Pass slots and pages as an integer type.")
        may_lag = self.device.type != "cpu"  # the host would read what has not arrived
        return self._fitted(values.reshape(-1)).to(self.device, self.dtype, non_blocking=may_lag)

    def _fitted(self, values: torch.Tensor) -> torch.Tensor:
        """What does not fit into int32 as the nearest that does: no pool's slot either, as a wrapped one could be."""
        narrows = values.dtype == torch.int64 and self.dtype == torch.int32
        return values.clamp(_INT32.min, _INT32.max) if narrows else values


def _can_pin() -> bool:
    """Whether there is an accelerator with memory that it reads by itself."""
    try:
        torch.empty(1, device="cpu", pin_memory=True)
    except (RuntimeError, NotImplementedError):
        return False
    return True
