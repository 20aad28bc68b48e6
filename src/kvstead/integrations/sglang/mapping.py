"""Where the slots of one side lie on another, as the tensor that attention kernels read.

slot        0 .. page_size - 1    ...                      size + page_size
tensor      0 (padding)           the other side's slot,   -1: what index -1 finds, for a row without a prefix
                                  0 where there is none
"""

from __future__ import annotations

import torch

from kvstead.errors import InvalidSize


class TokenMapping:
    """One tensor for a whole life: int64[size + page_size + 1] on `device`, changed in place, without a read-back."""

    def __init__(self, size: int, page_size: int, device: str | torch.device) -> None:
        self.tensor = torch.zeros(size + page_size + 1, dtype=torch.int64, device=device)
        self.tensor[-1:].fill_(-1)
        self._page_size = page_size
        self._pages = self.tensor[: (size // page_size + 1) * page_size].view(-1, page_size)

    def write(self, slots: torch.Tensor, others: torch.Tensor) -> None:
        """Say where each of `slots` lies."""
        self.tensor.index_copy_(0, slots.to(torch.int64), others)

    def erase(self, slots: torch.Tensor) -> None:
        """No slot of the pages that `slots` lie in has another side any more."""
        self._pages.index_fill_(0, torch.div(slots, self._page_size, rounding_mode="floor").to(torch.int64), 0)

    def erase_all(self) -> None:
        """No slot has another side."""
        self.tensor[:-1].fill_(0)

    def require_room(self, size: int) -> None:
        """Raise `InvalidSize` when the tensor has no entry for each of `size` slots."""
        if size + self._page_size >= self.tensor.numel():
            raise InvalidSize(
                f"the mapping was made for {self.tensor.numel() - self._page_size - 1} slots, and the pool is to have "
                f"{size}. It stays where kernels read it, so make a new allocator for a larger pool."
            )


class IdentityMapping(TokenMapping):
    """The same where every slot is its own other side, for ever: nothing that happens to slots changes it."""

    def __init__(self, size: int, page_size: int, device: str | torch.device) -> None:
        super().__init__(size, page_size, device)
        self.tensor[:-1].copy_(torch.arange(size + page_size))

    def write(self, slots: torch.Tensor, others: torch.Tensor) -> None:
        """Nothing changes."""

    def erase(self, slots: torch.Tensor) -> None:
        """Nothing changes."""

    def erase_all(self) -> None:
        """Nothing changes."""
