"""Everything that can be called on SGLang's class can be called on ours, with the same arguments."""

import inspect
from functools import partial

import peer
import pytest
import torch
from sglang.srt.mem_cache import memory_pool as their_memory_pool
from sglang.srt.mem_cache.allocator import hisparse as their_hisparse
from sglang.srt.mem_cache.allocator import mamba as their_mamba

from drop_in import Storage
from kvstead.integrations.sglang import memory_pool
from kvstead.integrations.sglang.allocator import base, hisparse, mamba, npu, paged, swa, token

pytestmark = pytest.mark.sglang

PAIRS = [
    (peer.BaseTokenToKVPoolAllocator, base.BaseTokenToKVPoolAllocator),
    (peer.TokenToKVPoolAllocator, token.TokenToKVPoolAllocator),
    (peer.PagedTokenToKVPoolAllocator, paged.PagedTokenToKVPoolAllocator),
    (peer.NPUPagedTokenToKVPoolAllocator, npu.NPUPagedTokenToKVPoolAllocator),
    (peer.SWATokenToKVPoolAllocator, swa.SWATokenToKVPoolAllocator),
    (peer.PureSWATokenToKVPoolAllocator, swa.PureSWATokenToKVPoolAllocator),
]


OTHERS = [
    (their_hisparse.HiSparseTokenToKVPoolAllocator, hisparse.HiSparseTokenToKVPoolAllocator),
    (their_hisparse.DeepSeekV4HiSparseTokenToKVPoolAllocator, hisparse.DeepSeekV4HiSparseTokenToKVPoolAllocator),
    (their_mamba.MambaSlotAllocator, mamba.MambaSlotAllocator),
    (their_memory_pool.ReqToTokenPool, memory_pool.ReqToTokenPool),
]
EXTRA_LISTS = {"staged_pages", "num_staged_pages", "free_page_ids_group", "swa_page_ids_group"}
SWITCHES = {"use_triton_kernels", "roundup"}
SIZES = {"Token": (8,), "Paged": (8, 4), "NPUPaged": (8, 4), "SWA": (8, 8, 4), "PureSWA": (8, 1)}


def make(cls):
    """An instance."""
    sizes = SIZES[cls.__name__.removesuffix("ToKVPoolAllocator").removesuffix("Token") or "Token"]
    return cls(*sizes, torch.bfloat16, "cpu", Storage(), need_sort=False)


def public_names(cls):
    """What callers may use of a class: no private names, and the one private name that the leak check reads."""
    return [name for name in dir(cls) if not name.startswith("_") or name.startswith("_conserve_")]


def missing_parameters(theirs, ours):
    """Parameters of one callable that another does not take, or takes in another way or place."""
    wanted, given = inspect.signature(theirs).parameters, inspect.signature(ours).parameters
    if any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in given.values()):
        return []
    places = list(given)
    return [
        name
        for place, (name, parameter) in enumerate(wanted.items())
        if parameter.kind not in {inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD}
        and (
            name not in given
            or given[name].kind is not parameter.kind
            or (parameter.default is not inspect.Parameter.empty and given[name].default is inspect.Parameter.empty)
            or (parameter.kind is inspect.Parameter.POSITIONAL_OR_KEYWORD and places[place] != name)
        )
    ]


@pytest.mark.parametrize(
    ("theirs", "ours"), PAIRS + OTHERS, ids=lambda cls: f"{cls.__module__.split('.')[0]}-{cls.__name__}"
)
def test_public_methods_take_the_same_arguments(theirs, ours):
    """By name, by place and by default, constructors too."""
    assert ours.__name__ == theirs.__name__
    assert missing_parameters(theirs.__init__, ours.__init__) == []
    for name in public_names(theirs):
        if callable(method := getattr(theirs, name)):
            assert missing_parameters(method, getattr(ours, name)) == [], name


@pytest.mark.parametrize(
    ("theirs", "ours"), PAIRS[1:], ids=lambda cls: f"{cls.__module__.split('.')[0]}-{cls.__name__}"
)
def test_attributes_that_callers_read_exist(theirs, ours):
    """Every public attribute of SGLang's exists in ours with the same type, except its extra lists and switches."""
    theirs, ours = make(theirs), make(ours)
    for name in set(filter(partial(hasattr, theirs), public_names(theirs))) - EXTRA_LISTS - SWITCHES:
        value, own = getattr(theirs, name), getattr(ours, name)
        assert callable(own) == callable(value), name
        if value is not None and not callable(value) and not name.endswith("_attn_allocator"):
            assert type(own) is type(value), name
