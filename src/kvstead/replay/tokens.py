"""Makes token ids for prompts of which only block ids are known.

    id  0            span          2 span                    2^30                        2^31
        +-------------+-------------+--- ... ---+- unused -----+----------------------------+
        |  block 0    |  block 1    |           |              |  generated tokens          |
        +-------------+-------------+--- ... ---+--------------+----------------------------+

Position p of a prompt, in block b, holds token `b * span + p % span`, where `span` divides the block size. The ranges
of two blocks are disjoint, so different blocks differ at every offset, and equal blocks are equal at every offset: a
prefix tree over these tokens sees exactly the reuse that the block ids state, with any page size. `span` is the
whole block where all ranges fit below 2^30 (then one token names block and offset), else the largest divisor that fits.
A prompt without block ids is one block of its own length.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kvstead.errors import TraceError

FIRST_OUTPUT_TOKEN = 1 << 30  # prompt ids are below, ids of generated tokens from here to 2^31 - 1


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class PromptTokens:
    """Makes int32 token ids, all in [0, 2^30).

    span: token ids that one block owns. offsets: int32[longest prompt], `arange % span`.
    """

    span: int
    offsets: NDArray[np.int32]

    @classmethod
    def for_blocks(cls, num_blocks: int, block_size: int, longest_prompt: int) -> PromptTokens:
        """Token ids for blocks 0 .. `num_blocks` - 1.

        block_size: a number that divides the size of every block. Raises `TraceError` beyond 2^30 blocks.
        """
        widest = FIRST_OUTPUT_TOKEN // max(num_blocks, 1)
        span = next((span for span in range(min(block_size, widest), 0, -1) if block_size % span == 0), None)
        if span is None:
            raise TraceError(
                f"{num_blocks} prompt blocks need more than {FIRST_OUTPUT_TOKEN} token ids. "
                "Number the blocks from 0 without gaps, or replay a part of the trace."
            )
        return cls(span, (np.arange(longest_prompt, dtype=np.int64) % span).astype(np.int32))

    def of_blocks(self, blocks: NDArray[np.int64], block_size: int, num_tokens: int) -> NDArray[np.int32]:
        """The first `num_tokens` tokens of `blocks` in a row: int32[num_tokens], the caller's own."""
        # Repeating and adding is faster than an outer sum, whose inner loop is one block short.
        tokens = np.repeat((blocks * self.span).astype(np.int32), block_size)[:num_tokens]
        tokens += self.offsets[:num_tokens]
        return tokens

    def of_block(self, block: int, num_tokens: int) -> NDArray[np.int32]:
        """The tokens of a prompt that is one block by itself: int32[num_tokens], the caller's own."""
        return self.offsets[:num_tokens] + np.int32(block * self.span)
