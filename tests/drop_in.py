"""Adapts kvstead's calls to an allocator with SGLang's signatures, so that the same scripts run on both."""

from __future__ import annotations

import torch


class Storage:
    """Stands for the tensors that slots index, for one side or two; keeps the mapping, as the real ones do."""

    full_kv_pool = swa_kv_pool = swa_req_ring_size = None

    def register_mapping(self, mapping):
        """Where each slot's other side is."""
        assert not hasattr(self, "full_to_swa_index_mapping"), "the mapping is handed over once"
        self.full_to_swa_index_mapping = mapping

    def translate_loc_from_full_to_swa(self, kv_indices):
        """Window slots of slots."""
        return self.full_to_swa_index_mapping[kv_indices]


class DropIn:
    """`inner` behind the calls of a kvstead allocator; what it has under the same name and signature stays its own."""

    def __init__(self, inner):
        self.inner = inner

    def __getattr__(self, name):
        return getattr(self.inner, name)

    def alloc(self, num_tokens):
        """Whole pages."""
        return self.inner.alloc(num_tokens)

    def alloc_extend(self, prefix_lens, seq_lens, last_locs):
        """Lengths go twice, for the device and for the host, and their sum with them."""
        return self.inner.alloc_extend(*self._rows(prefix_lens, seq_lens, last_locs))

    def alloc_extend_swa_tail(self, prefix_lens, seq_lens, last_locs, tail_len):
        """The same for a row with windows at its end."""
        return self.inner.alloc_extend_swa_tail(*self._rows(prefix_lens, seq_lens, last_locs), tail_len)

    def alloc_decode(self, seq_lens, last_locs):
        """Lengths go twice."""
        seq = torch.tensor(seq_lens, dtype=torch.int64)
        return self.inner.alloc_decode(seq, seq, torch.tensor(last_locs, dtype=torch.int64))

    def window_slots(self, slots):
        """The window side of slots."""
        return self.inner.translate_loc_from_full_to_swa(torch.as_tensor(slots, dtype=torch.int64))

    def audit(self):
        """Audit the core, and check that the tensor that kernels read agrees with it."""
        if not hasattr(self.inner, "core"):  # SGLang's own class, which has no audit
            return
        self.inner.core.audit()
        mapping = getattr(self.inner, "full_to_swa_index_mapping", None)
        if mapping is not None:
            assert mapping is self.inner.get_kvcache().full_to_swa_index_mapping
            assert mapping[-1] == -1
            slots = mapping.nonzero().flatten()[:-1]
            assert (self.inner.core.window_slots(slots) == mapping[slots]).all()

    def _rows(self, prefix_lens, seq_lens, last_locs):
        prefix, seq = torch.tensor(prefix_lens, dtype=torch.int64), torch.tensor(seq_lens, dtype=torch.int64)
        return prefix, prefix, seq, seq, torch.tensor(last_locs, dtype=torch.int64), int((seq - prefix).sum())
