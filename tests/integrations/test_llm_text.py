"""Text in pieces joins to the text of all tokens."""

from itertools import chain

import pytest
from hf_tokenizers import PAD, STOP, byte_tokenizer, spaced_tokenizer
from hypothesis import given
from hypothesis import strategies as st

from kvstead.integrations.transformers.answers import TextStream

_BYTES, _SPACED = byte_tokenizer(), spaced_tokenizer()


def _letters():
    """How GPT-2 writes each byte: printable ones as they are, the others from 256 on."""
    prints = {*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)}
    others = iter(range(256, 512))
    return [chr(byte if byte in prints else next(others)) for byte in range(256)]


_LETTERS = _letters()


def _byte_ids(text):
    return [_BYTES.convert_tokens_to_ids(_LETTERS[byte]) for byte in text.encode()]


def _fallback_ids(text):
    return [_SPACED.convert_tokens_to_ids(f"<0x{byte:02X}>") for byte in text.encode()]


def _words(tokenizer, spelled):
    """Ids of texts: whole characters spelled byte by byte, words, and special tokens, in any order."""
    words = st.integers(259, len(tokenizer) - 1).map(lambda token: [token])
    special = st.sampled_from([[PAD], [STOP]])
    characters = st.characters(exclude_categories=["Cs"], exclude_characters="�").map(spelled)
    return st.lists(st.one_of(words, special, characters)).map(lambda parts: [*chain.from_iterable(parts)])


def _streamed(tokenizer, tokens):
    stream = TextStream(tokenizer)
    pieces = [stream.take(token) for token in tokens]
    return pieces, stream.rest()


def _whole(tokenizer, tokens):
    return tokenizer.decode(tokens, skip_special_tokens=True, clean_up_tokenization_spaces=False)


@given(st.lists(st.integers(0, len(_BYTES) - 1)))
def test_pieces_of_any_bytes_join_to_the_whole_text(tokens):
    """For any token ids, also of bytes that are not characters, the pieces and the rest join to the whole text."""
    pieces, rest = _streamed(_BYTES, tokens)
    assert "".join(pieces) + rest == _whole(_BYTES, tokens)


@pytest.mark.parametrize(("tokenizer", "spelled"), [(_BYTES, _byte_ids), (_SPACED, _fallback_ids)])
def test_no_piece_splits_a_character(tokenizer, spelled):
    """For any text, with special tokens and spaces that depend on their place, no piece has half a character."""

    @given(_words(tokenizer, spelled))
    def holds(tokens):
        pieces, rest = _streamed(tokenizer, tokens)
        assert not any("�" in piece for piece in (*pieces, rest))
        assert "".join(pieces) + rest == _whole(tokenizer, tokens)

    holds()


def test_a_piece_comes_as_soon_as_it_is_whole():
    """A character of three bytes comes with its third; an incomplete one comes only with the rest."""
    tokens = _byte_ids("a€b")
    assert _streamed(_BYTES, tokens) == (["a", "", "", "€", "b"], "")
    assert _streamed(_BYTES, tokens[:3]) == (["a", "", ""], "�")
