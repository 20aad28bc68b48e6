"""Where the slots of one side lie on another, as the tensor that attention kernels read.

slot        0 .. page_size - 1    ...                      size + page_size
tensor      0 (padding)           the other side's slot,   -1: what index -1 finds, for a row without a prefix
                                  0 where there is none

With several tokens an entry, there is one element an entry.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from kvstead.errors import InvalidSize


class SlotMapping:
    """A tensor that is made once, int64[entries + page + 1] on `device`, and changed in place without a read-back.

    size, page_size: in entries. find: the other side's slots of slots, as the allocator's core says, 0 for none.
    tokens_per_entry: `write` and `erase` take slots of tokens.
    """

    def __init__(
        self,
        size: int,
        page_size: int,
        device: str | torch.device,
        find: Callable[[torch.Tensor], torch.Tensor],
        tokens_per_entry: int = 1,
    ) -> None:
        self.tensor = torch.zeros(size + page_size + 1, dtype=torch.int64, device=device)
        self.tensor[-1:].fill_(-1)
        self._find = find
        self._tokens_per_entry = tokens_per_entry
        self._page_tokens = page_size * tokens_per_entry
        self._pages = self.tensor[: (size // page_size + 1) * page_size].view(-1, page_size)

    def write(self, slots: torch.Tensor) -> None:
        """Note where each of `slots` lies on the other side."""
        others = self._find(slots)
        if self._tokens_per_entry > 1:  # one token of an entry stands for it, the others have no slot there
            found = others > 0
            slots, others = slots[found] // self._tokens_per_entry, others[found]
        self.tensor.index_copy_(0, slots.to(torch.int64), others)

    def erase(self, slots: torch.Tensor) -> None:
        """Note that the pages that `slots` lie in have no other side any more."""
        pages = torch.div(slots, self._page_tokens, rounding_mode="floor")
        self._pages.index_fill_(0, pages.to(torch.int64), 0)

    def foreign_writes(self) -> str:
        """Where the tensor says what the core does not, in words, because somebody else wrote to it; "" if nowhere.

        O(slots). Reads the tensor, so it is for the host.
        """
        slots = torch.arange(self.tensor.numel() - 1)
        wrong = torch.nonzero((self.tensor[:-1] != 0) & (self.tensor[:-1] != self._find(slots))).reshape(-1)
        if not wrong.numel() and int(self.tensor[-1]) == -1:
            return ""
        slot = int(wrong[0]) if wrong.numel() else self.tensor.numel() - 1
        return (
            f"the mapping has {int(self.tensor[slot])} for slot {slot}, which is not where its other side lies: "
            "somebody else wrote to it. Only read it, and call set_full_to_swa_mapping to change it."
        )

    def erase_all(self) -> None:
        """Note that no slot has another side."""
        self.tensor[:-1].fill_(0)


def identity_mapping(size: int, page_size: int, device: str | torch.device) -> torch.Tensor:
    """The tensor of slots that are their own other side; nothing changes it."""
    slots = torch.arange(size + page_size + 1, device=device)
    slots[-1:].fill_(-1)
    return slots


def require_capacity(tensor: torch.Tensor, size: int, page_size: int) -> None:
    """Raise `InvalidSize` when a mapping's tensor has no entry for each of `size` slots."""
    if size + page_size >= tensor.numel():
        raise InvalidSize(
            f"a pool of {size} slots does not fit the mapping, which was made for {tensor.numel() - page_size - 1}. "
            "Kernels keep its address, so it cannot grow: make a new allocator for a larger pool."
        )
