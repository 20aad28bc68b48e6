"""Text out of tokens, in pieces that never break a character.

A tokenizer decodes a token by what is before it: bytes of one character may be spread over several, a space may be a
matter of place. So pieces are cut from the text of a few tokens at a time:

    tokens    The | cap | ital | of | Ⓕ 1 | Ⓕ 2 |
                          start  read                  text[:given] was handed out, the rest comes once it is whole
"""

from __future__ import annotations

from transformers import PreTrainedTokenizerBase

_INCOMPLETE = "�"  # what bytes decode to that are no character, or none yet


class TextStream:
    """The text of one answer as its tokens come; special tokens have none.

    All pieces and the `rest` together are what the tokenizer decodes from all tokens at once.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        self._tokenizer = tokenizer
        self._tokens: list[int] = []
        self._start = self._read = self._given = 0

    def take(self, token: int) -> str:
        """Note the next token; what can be handed out now, perhaps nothing."""
        self._tokens.append(token)
        text = self._text()
        if len(text) <= self._given or text.endswith(_INCOMPLETE):
            return ""
        piece = text[self._given :]
        self._start, self._read = self._read, len(self._tokens)
        self._given = len(self._text())
        return piece

    def rest(self) -> str:
        """What was held back, once no more tokens come."""
        return self._text()[self._given :]

    def _text(self) -> str:
        """That of the tokens from `start` on."""
        text = self._tokenizer.decode(
            self._tokens[self._start :], skip_special_tokens=True, clean_up_tokenization_spaces=False
        )
        assert isinstance(text, str), "one answer is decoded to one text"
        return text
