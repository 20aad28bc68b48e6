"""The short convolutions of hybrid models in plain torch; SGLang has them as Triton kernels only."""

from itertools import pairwise

import torch
from torch.nn.functional import conv1d, silu


def convolve_prompts(
    x,
    weight,
    bias=None,
    query_start_loc=None,
    cache_indices=None,
    has_initial_state=None,
    conv_states=None,
    activation="silu",
    **_,
):
    """Prompts (channel, token), one behind the other; each begins with the state of its request, if it has one."""
    past = weight.shape[1] - 1
    out = torch.empty_like(x)
    starts = query_start_loc.tolist()
    for index, (start, end) in enumerate(pairwise(starts)):
        state = conv_states[int(cache_indices[index])]
        before = state[:, -past:].to(x.dtype) if bool(has_initial_state[index]) else x.new_zeros((len(x), past))
        whole = torch.cat((before, x[:, start:end]), dim=1)
        out[:, start:end] = conv1d(whole[None], weight[:, None].to(x.dtype), bias, groups=len(x))[0]
        state[:, -past:] = whole[:, -past:].to(state.dtype)
    return silu(out) if activation else out


def convolve_tokens(x, conv_state, weight, bias=None, activation=None, _lengths=None, conv_state_indices=None, **_):
    """One token (request, channel) of each request; its state moves on by it."""
    past = weight.shape[1] - 1
    rows = conv_state_indices.long()
    whole = torch.cat((conv_state[rows][:, :, -past:].to(x.dtype), x[:, :, None]), dim=2)
    conv_state[rows, :, -past:] = whole[:, :, -past:].to(conv_state.dtype)
    out = (whole * weight.to(x.dtype)).sum(-1)
    out = out if bias is None else out + bias
    return silu(out) if activation else out
