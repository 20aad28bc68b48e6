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


DEFAULT = [
    Configuration("llama", "llama"),
    Configuration("llama pages of 16", "llama", page_size=16),
    Configuration("windows", "gemma3"),
    Configuration("states", "lfm2", overlap=False),
    Configuration("unified windows evicted", "gemma3", "stream", 16, overlap=False, unified=True),
    Configuration("unified windows retracted", "gemma3", "aborts", retract_every=9, unified=True),
    Configuration("unified states evicted", "lfm2", "stream", 16, overlap=False, unified=True),
]

# Not run, because SGLang 0.5.23 refuses them on a CPU: states with pages of more than one token or with overlapped
# scheduling (that needs snapshots of states, which are CUDA kernels), windows only with pages of more than one token,
# and HiSparse (the sparse attention that it is for, and its copies between host and device, are CUDA kernels).
SOAK = [
    Configuration("llama in order", "llama", overlap=False),
    Configuration("llama pages of 16, in order", "llama", page_size=16, overlap=False),
    Configuration("llama evicted and retracted", "llama", "stream", 16, retract_every=9, running=12),
    Configuration("llama pages of 16, evicted and retracted", "llama", "stream", 16, page_size=16, retract_every=9),
    Configuration("llama aborted", "llama", "aborts", page_size=16, retract_every=9),
    Configuration("llama, longest prefix first", "llama", "stream", 16, settings={"schedule_policy": "lpm"}),
    Configuration("windows in order", "gemma3", overlap=False),
    Configuration("windows, pages of 16, aborted", "gemma3", "aborts", page_size=16),
    Configuration("windows retracted", "gemma3", "stream", retract_every=9),
    Configuration("windows of gpt-oss", "gpt-oss", page_size=16),
    Configuration("windows of gpt-oss, evicted", "gpt-oss", "stream", retract_every=9),
    Configuration("windows only", "windows only"),
    Configuration("states evicted", "lfm2", "stream", 16, overlap=False),
    Configuration("states aborted", "lfm2", "aborts", overlap=False, retract_every=9),
    Configuration("states of qwen3-next", "qwen3-next", overlap=False),
    Configuration("unified windows", "gemma3", unified=True),
    Configuration("unified windows, pages of 16", "gemma3", page_size=16, unified=True),
    Configuration(
        "unified windows, pages of 16, aborted", "gemma3", "aborts", page_size=16, unified=True, retract_every=9
    ),
    Configuration("unified windows of gpt-oss", "gpt-oss", "stream", 16, unified=True),
    Configuration("unified states", "lfm2", overlap=False, unified=True),
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
    Configuration("unified windows evicted", "gemma3", "stream", 16, overlap=False, unified=True),
]
