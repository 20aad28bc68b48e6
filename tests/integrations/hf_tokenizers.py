"""Tokenizers small enough for random models: a token for every byte, decoded in the two usual ways."""

from functools import cache

from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

PAD, START, STOP = range(3)
NUM_TOKENS = 320
_SPECIAL = ("<pad>", "<s>", "</s>")


@cache
def byte_tokenizer():
    """Bytes as GPT-2 writes them, and a few words of several bytes."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    merges = [("t", "h"), ("th", "e"), ("Ġ", "a"), ("Ġ", "the"), ("Ã", "©")]
    words = [*_SPECIAL, *letters, *("".join(pair) for pair in merges)]
    tokenizer = Tokenizer(models.BPE({word: at for at, word in enumerate(words)}, merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return _wrapped(tokenizer)


@cache
def spaced_tokenizer():
    """Words that include their spaces, and bytes for everything else, as in Llama 2."""
    letters = [chr(code) for code in range(ord("a"), ord("z") + 1)]
    words = [*_SPECIAL, *(f"<0x{byte:02X}>" for byte in range(256)), "▁", "▁▁", "▁a", "é", *letters]
    tokenizer = Tokenizer(models.BPE({word: at for at, word in enumerate(words)}, [], byte_fallback=True))
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    return _wrapped(tokenizer)


def _wrapped(tokenizer):
    pad, start, stop = _SPECIAL
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token=pad, bos_token=start, eos_token=stop)
