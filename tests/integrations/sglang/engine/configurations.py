"""What is run beside SGLang: a model, its requests and the settings of an engine, as data."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field


@dataclass(frozen=True)
class Configuration:
    """One comparison: the same requests on SGLang's classes and on ours."""

    name: str
    model: str
    workload: str = "waves"
    requests: int = 12
    rounds: int = 2  # the requests come again, the second time after `flush_cache`
    page_size: int = 1
    overlap: bool = True
    tokens: int = 512
    running: int = 8  # requests at a time
    chunk: int = 64  # tokens of a prefill step: longer prompts are prefilled in chunks
    retract_every: int = 0  # force a retraction every so many forward passes
    unified: bool = False
    states: int = 24  # recurrent states, where the model has them
    checked: bool = True  # SGLang's checks of every step
    may_evict: float = 1.0  # times as many tokens as SGLang
    settings: Mapping = field(default_factory=dict)  # further arguments of SGLang's server

    def as_json(self):
        """The same, to be sent to another process."""
        return asdict(self)


NO_CACHE = {"disable_radix_cache": True}  # requests have nothing in common, and each end frees a row

DEFAULT = [
    Configuration("llama", "llama"),
    Configuration("llama pages of 16", "llama", page_size=16),
    Configuration("windows", "gemma3"),
    Configuration("states", "lfm2", overlap=False),
    Configuration("unified windows evicted", "gemma3", "stream", 16, overlap=False, unified=True),
    Configuration("unified windows retracted", "gemma3", "aborts", retract_every=9, unified=True),
    Configuration("unified states evicted", "lfm2", "stream", 16, overlap=False, unified=True),
]

# Not run, because SGLang 0.5.23 refuses them on a CPU or turns them off: states with pages of more than one token or
# with overlapped scheduling (both need snapshots of states, on a GPU), windows only with pages of more than one token,
# and HiSparse (it is for sparse attention, which is FlashMLA's, and swaps by CUDA kernels). Windows in unified memory
# with nothing cached are left out: fewer retractions lead to another order of requests, with more or fewer steps.
SOAK = [
    Configuration("llama in order", "llama", overlap=False),
    Configuration("llama pages of 16, in order", "llama", page_size=16, overlap=False),
    Configuration("llama evicted and retracted", "llama", "stream", 16, retract_every=9, running=12),
    Configuration("llama pages of 16, evicted and retracted", "llama", "stream", 16, page_size=16, retract_every=9),
    Configuration("llama aborted", "llama", "aborts", page_size=16, retract_every=9),
    Configuration("llama, longest prefix first", "llama", "stream", 16, settings={"schedule_policy": "lpm"}),
    Configuration("llama, nothing cached", "llama", "stream", 16, retract_every=9, settings=NO_CACHE),
    Configuration("llama, pages of 16, nothing cached", "llama", "aborts", page_size=16, settings=NO_CACHE),
    Configuration("llama, prefill beside decode", "llama", "stream", 16, settings={"enable_mixed_chunk": True}),
    Configuration("llama, one at a time", "llama", "stream", 16, tokens=256),
    Configuration("windows in order", "gemma3", overlap=False),
    Configuration("windows, pages of 16, aborted", "gemma3", "aborts", page_size=16),
    Configuration("windows retracted", "gemma3", "stream", retract_every=9),
    Configuration("windows, few of them", "gemma3", "stream", settings={"swa_full_tokens_ratio": 0.3}),
    Configuration("windows, nothing cached", "gemma3", "stream", settings=NO_CACHE),
    Configuration("windows of gpt-oss", "gpt-oss", page_size=16),
    Configuration("windows of gpt-oss, evicted", "gpt-oss", "stream", retract_every=9),
    Configuration("windows only", "windows only"),
    Configuration("states evicted", "lfm2", "stream", 16, overlap=False),
    Configuration("states aborted", "lfm2", "aborts", overlap=False, retract_every=9),
    Configuration("states, nothing cached", "lfm2", "stream", overlap=False, settings=NO_CACHE),
    Configuration("states of qwen3-next", "qwen3-next", overlap=False),
    Configuration("unified windows", "gemma3", unified=True),
    Configuration("unified windows, pages of 16", "gemma3", page_size=16, unified=True),
    Configuration(
        "unified windows, pages of 16, aborted", "gemma3", "aborts", page_size=16, unified=True, retract_every=9
    ),
    Configuration("unified windows, one at a time", "gemma3", "stream", 16, tokens=256, unified=True),
    Configuration("unified windows of gpt-oss", "gpt-oss", "stream", 16, unified=True),
    Configuration("unified states", "lfm2", overlap=False, unified=True),
    Configuration("unified states, nothing cached", "lfm2", "stream", overlap=False, unified=True, settings=NO_CACHE),
    Configuration("unified states aborted", "lfm2", "aborts", overlap=False, unified=True, retract_every=9),
    # Ours admits more requests at a time, and needs a seventh fewer steps; what they hold is not cached.
    Configuration("unified windows and states", "lfm2 with windows", overlap=False, unified=True, may_evict=1.03),
    Configuration(
        "unified windows and states, evicted",
        "lfm2 with windows",
        "stream",
        overlap=False,
        unified=True,
        may_evict=1.03,
    ),
    Configuration("unified states of qwen3-next", "qwen3-next", "stream", overlap=False, unified=True),
    Configuration("in long chunks", "llama", "stream", 16, chunk=256, tokens=2048, running=16),
]

# Run with SGLang's tree and with ours, both over our allocators.
ON_OUR_TREE = [
    Configuration("llama", "llama"),
    Configuration("llama pages of 16, evicted and retracted", "llama", "stream", 16, page_size=16, retract_every=9),
    Configuration("windows", "gemma3"),
    Configuration("windows, pages of 16", "gemma3", page_size=16),
    Configuration("windows evicted and retracted", "gemma3", "stream", retract_every=9),
]
