"""Attention in plain torch that finds keys and values as SGLang's GPU kernels do, which its own on a CPU does not.

Layers with windows read a pool of their own, in a unified pool slots are virtual, and gpt-oss has sinks. SGLang's
`torch_native` writes window layers to window slots but reads them by full ones.
"""

import torch
from sglang.srt.layers.attention.torch_native_backend import TorchNativeAttnBackend
from sglang.srt.mem_cache.base_swa_memory_pool import BaseSWAKVPool
from sglang.srt.mem_cache.kv_loc_plan import IdSpaceKind
from sglang.srt.mem_cache.memory_pool import KVWriteLoc


class TranslatingAttention(TorchNativeAttnBackend):
    """All requests of a batch at once, padded to the longest; nothing is captured, and nothing overlaps."""

    def __init__(self, model_runner):
        super().__init__(model_runner)
        self.kv_index_translator = model_runner.kv_index_translator
        windows = isinstance(self.token_to_kv_pool, BaseSWAKVPool)
        self._window = model_runner.sliding_window_size
        self._window_layers = set(model_runner.model_config.swa_attention_layer_ids or ()) if windows else set()

    def init_forward_metadata(self, forward_batch):
        """Where the batch's window layers write."""
        self.swa_out_cache_loc = None
        if self._window_layers and forward_batch.out_cache_loc is not None:
            translated = self.kv_index_translator.write_ids(forward_batch, IdSpaceKind.SLIDING_WINDOW)
            self.swa_out_cache_loc = translated

    def forward_extend(self, q, k, v, layer, forward_batch, save_kv_cache=True, sinks=None, **_):
        """Prompts, or the next parts of them."""
        self._save(k, v, layer, forward_batch, save_kv_cache)
        first, number = forward_batch.extend_prefix_lens.long(), forward_batch.extend_seq_lens.long()
        return self._answer(q, layer, forward_batch, sinks, first, number)

    def forward_decode(self, q, k, v, layer, forward_batch, save_kv_cache=True, sinks=None, **_):
        """One token of each request."""
        self._save(k, v, layer, forward_batch, save_kv_cache)
        first = forward_batch.seq_lens.long() - 1
        return self._answer(q, layer, forward_batch, sinks, first, torch.ones_like(first))

    def _save(self, k, v, layer, batch, wanted):
        if wanted and k is not None:
            k = k.reshape(-1, layer.tp_k_head_num, layer.qk_head_dim)
            v = v.reshape(-1, layer.tp_v_head_num, layer.v_head_dim)
            where = KVWriteLoc.for_batch(batch, swa_loc=self.swa_out_cache_loc)
            self.token_to_kv_pool.set_kv_buffer(layer, where, k, v)

    def _answer(self, q, layer, batch, sinks, first, number):
        """Attention of `number` queries of each request, the first of them at position `first`."""
        q = q.reshape(-1, layer.tp_q_head_num, layer.qk_head_dim)
        pool = self.token_to_kv_pool
        longest = int(number.max())
        slots = self._slots(layer, batch)
        keys = pool.get_key_buffer(layer.layer_id)[slots].to(q.dtype)
        values = pool.get_value_buffer(layer.layer_id)[slots].to(q.dtype)
        asked = torch.arange(longest)[None] < number[:, None]  # (request, query)
        padded = q.new_zeros((len(number), longest, *q.shape[1:]))
        padded[asked] = q
        seen = self._seen(first, number, slots.shape[1], self._window_of(layer))
        values = values.masked_fill(~seen.any(1)[:, :, None, None], 0)  # what nobody sees may even be NaN
        return _attend(padded, keys, values, seen, layer.scaling, sinks)[asked].reshape(q.shape[0], -1)

    def _slots(self, layer, batch):
        """Slots of this layer's pool, (request, position); positions behind a request's end are slot 0."""
        longest = int(batch.seq_lens.max())
        slots = self.req_to_token_pool.req_to_token[batch.req_pool_indices, :longest].long()
        slots = slots.masked_fill(torch.arange(longest)[None] >= batch.seq_lens[:, None], 0)
        in_window = layer.layer_id in self._window_layers
        space = self.kv_index_translator.space(IdSpaceKind.SLIDING_WINDOW if in_window else IdSpaceKind.FULL)
        if space is not None and space.read_v2p is not None:
            size = self.kv_index_translator.page_size
            return space.read_v2p[slots // size].long().clamp_min(0) * size + slots % size
        if in_window:
            translated = self.token_to_kv_pool.translate_loc_from_full_to_swa(slots.reshape(-1))
            return translated.reshape(slots.shape).long().clamp_min(0)
        return slots

    def _window_of(self, layer):
        """Tokens before its own that a query sees, None where it sees all; a layer may not know that it has windows."""
        if layer.layer_id in self._window_layers:
            return self._window if layer.sliding_window_size in {None, -1} else layer.sliding_window_size
        return None

    def _seen(self, first, number, length, window):
        """Which query sees which position, (request, query, position)."""
        query = first[:, None] + torch.arange(int(number.max()))[None]
        position = torch.arange(length)
        seen = position <= query[:, :, None]
        if window is not None:
            seen &= position >= query[:, :, None] - window
        return seen & (query < (first + number)[:, None])[:, :, None]


def _attend(query, keys, values, seen, scaling, sinks):
    """Softmax over what is seen; several query heads share one head of keys. A sink takes weight and gives nothing."""
    requests, queries, heads, size = query.shape
    groups = keys.shape[2]
    query = query.view(requests, queries, groups, heads // groups, size)
    scores = torch.einsum("rqghd,rpgd->rghqp", query, keys) * scaling
    scores = scores.masked_fill(~seen[:, None, None], float("-inf"))
    if sinks is not None:
        sink = sinks.to(scores.dtype).view(1, groups, heads // groups, 1, 1)
        scores = torch.cat((scores, sink.expand(requests, -1, -1, queries, 1)), dim=-1)
    weights = scores.softmax(-1).nan_to_num(0.0)  # padding sees nothing
    out = torch.einsum("rghqp,rpgd->rqghd", weights[..., : keys.shape[1]], values)
    return out.reshape(requests, queries, heads, -1)
