"""The gated delta rule of qwen3-next in plain torch, token by token; SGLang has it as compiled kernels only.

A state is (value head, key size, value size). Each token decays it, replaces what it holds under the token's key by a
mixture with the token's value, and reads it by the token's query.
"""

from itertools import pairwise

import torch
from torch.nn.functional import normalize, rms_norm, silu, softplus


def gates(log_decay, a, b, bias):
    """Logarithms of decay and shares of the new value, (1, token, head), from projections (token, head)."""
    return (-log_decay.float().exp() * softplus(a.float() + bias.float()))[None], b.float().sigmoid()[None]


def prefill(*, q, k, v, g, beta, initial_state, initial_state_indices, cu_seqlens, head_first, use_qk_l2norm_in_kernel):
    """Prompts one behind the other; their states are read and written in place."""
    assert use_qk_l2norm_in_kernel, "the rule of qwen3-next normalizes queries and keys"
    assert not head_first, "tokens come before heads"
    out = torch.empty_like(v)
    starts = cu_seqlens.tolist()
    for index, (start, end) in enumerate(pairwise(starts)):
        row = initial_state_indices[index, None].long()
        state = initial_state[row].float()
        for token in range(start, end):
            here = slice(token, token + 1)
            out[0, here], state = _step(state, *(side[0, here] for side in (q, k, v, g, beta)))
        initial_state[row] = state.to(initial_state.dtype)
    return out, None, None


def decode(*, A_log, dt_bias, q, k, v, a, b, initial_state_source, initial_state_indices, **_):  # noqa: N803
    """One token of each request."""
    rows = initial_state_indices.long()
    decay, share = gates(A_log, a, b, dt_bias)
    out, state = _step(initial_state_source[rows].float(), q[0], k[0], v[0], decay[0], share[0])
    initial_state_source[rows] = state.to(initial_state_source.dtype)
    return out[None]


def gated_norm(norm, x, gate, **_):
    """What follows the rule: the norm of what was read, times a gate; `norm` is SGLang's module with the weights."""
    return rms_norm(x, (x.shape[-1],), norm.weight, norm.eps) * silu(gate)


def _step(state, query, key, value, decay, share):
    """One token of each request (request, head, size): what it reads, and the states after it."""
    repeat = value.shape[1] // key.shape[1]
    scale = query.shape[-1] ** -0.5
    query, key = (normalize(side.float(), dim=-1).repeat_interleave(repeat, dim=1) for side in (query, key))
    state = state * decay.exp()[..., None, None]
    held = torch.einsum("rhkv,rhk->rhv", state, key)
    change = (value.float() - held) * share[..., None]
    state = state + key[..., None] * change[..., None, :]
    return (torch.einsum("rhkv,rhk->rhv", state, query) * scale).to(value.dtype), state
