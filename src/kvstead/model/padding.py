"""The cost of one page size for all kinds, as in managers with one pool of equal blocks.

gemma-3-27b: 10 full layers and 52 with a window. The pages of ten layers are a block; every page takes whole blocks.

    full page     | full.0-9   |
    window page   | win.0-9    | win.10-19  | win.20-29  | win.30-39  | win.40-49  | win.50-51, 8 unused |

qwen3-next-80b-a3b: 12 full layers and 36 with a state, too large for a page of 16 tokens. The page grows to hold it.

    full page     | 1,056 tokens of full.0-11   |
    a state       | state.0-11                . | state.12-23               . | state.24-35               . |
"""

from __future__ import annotations

from dataclasses import dataclass

from kvstead.errors import InvalidSize, LayoutError
from kvstead.model.kinds import BOUNDED, WHOLE_SEQUENCE, CacheKind
from kvstead.model.layout import ModelLayout

_NEARLY_AS_MANY = 1.25  # a kind with so many times the fewest layers, or more, is divided into groups


@dataclass(frozen=True, slots=True)
class PaddedPages:
    """Pages of equal blocks. page_size: tokens of a page, perhaps more than asked for. block_bytes: bytes of a block.

    blocks: how many blocks a "full" page, a "window" page and a "state" take, for the kinds that the layout has.
    """

    page_size: int
    block_bytes: int
    blocks: dict[str, int]


def padded_pages(layout: ModelLayout, page_size: int) -> PaddedPages:
    """What a page of each kind takes where one pool of equal blocks serves all kinds.

    A layer's page has the bytes of `page_size` of the largest entries. Where a layer's state is larger, the page grows
    by whole multiples of `page_size` until the state fits; anything smaller is padded. Layers form groups as large as
    the kind with the fewest layers, or as the kind with the most where that has less than 1.25 times as many. A block
    is one page of each layer of a group; a kind's last group may be incomplete. A layer with entries and a state counts
    for both kinds, one that owns nothing or shares another's entries for none.

    This is vLLM's hybrid KV cache manager, https://docs.vllm.ai/en/latest/design/hybrid_kv_cache_manager/, in bytes.
    Not modelled: vLLM gives layers with smaller entries longer pages instead of padding where sizes divide (padding
    costs more for gemma-4-31b and mimo-v2-flash), refuses attention layers whose sizes do not divide, treats layers of
    one kind and different sizes as separate kinds, and knows page sizes of attention kernels and pipeline ranks.

    Raises `InvalidSize` for a page size below 1, `LayoutError` for a layout that keeps nothing.
    """
    if page_size < 1:
        raise InvalidSize(f"the page size is {page_size}. It must be at least 1.")
    layers = _num_layers(layout)
    if not layers:
        raise LayoutError(f"{layout.name} has no entries and no states, and so no pages. Choose another model.")
    entry = max(layer.token_bytes for layer in layout.layers)
    state = max(layer.state_bytes for layer in layout.layers)
    grown = page_size * max(1, -(-state // (entry * page_size))) if entry else page_size
    fewest, most = min(layers.values()), max(layers.values())
    group = most if most < _NEARLY_AS_MANY * fewest else fewest
    blocks = {kind: -(-number // group) for kind, number in layers.items()}
    return PaddedPages(grown, group * max(grown * entry, state), blocks)


def _num_layers(layout: ModelLayout) -> dict[str, int]:
    """How many layers own something of each kind, for the kinds that some layer owns."""
    kinds = [kind for layer in layout.layers for kind in layer.kinds]
    numbers = {
        "full": sum(kind in WHOLE_SEQUENCE for kind in kinds),
        "window": sum(kind in BOUNDED for kind in kinds),
        "state": sum(kind is CacheKind.STATE for kind in kinds),
    }
    return {kind: number for kind, number in numbers.items() if number}


@dataclass(frozen=True, slots=True)
class EqualPage:
    """One page size for token entries and states: `num_tokens` entries of a layer in `num_bytes`.

    A state leaves `padding_bytes` of such a page unused.
    """

    num_tokens: int
    num_bytes: int
    padding_bytes: int


def equal_page(layout: ModelLayout) -> EqualPage:
    """The smallest page of token entries of one layer that a layer's state fits into.

    This is the cost of equal pages: a prompt of a few tokens still takes `num_tokens` entries in each such layer.
    Raises `LayoutError` for a layout without both, or whose layers differ in size.
    """
    entries = {layer.token_bytes for layer in layout.layers if layer.tokens is not None}
    states = {layer.state_bytes for layer in layout.layers if layer.state}
    if len(entries) != 1 or len(states) != 1:
        raise LayoutError(
            f"{layout.name} has token entries of {sorted(entries)} and states of {sorted(states)} bytes per layer. "
            "Equal pages need one size of each."
        )
    (entry,), (state,) = entries, states
    num_tokens = -(-state // entry)
    return EqualPage(num_tokens, num_tokens * entry, num_tokens * entry - state)
