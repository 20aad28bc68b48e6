"""Text from tokens, in pieces that never split a character.

How a token decodes depends on the tokens before it: several tokens may make one character, and a space may depend on
the place. So each piece is cut from the text of a few tokens:

    tokens    The | cap | ital | of | Ⓕ 1 | Ⓕ 2 |
                          start  read                  text[:given] was returned; the rest follows once it is whole
"""

from __future__ import annotations

from transformers import PreTrainedTokenizerBase

_INCOMPLETE = "�"  # what bytes decode to that are not a character, or not yet


class TextStream:
    """The text of one answer as its tokens come; special tokens have no text.

    All pieces and the `rest` joined are what the tokenizer decodes from all tokens at once.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        self._tokenizer = tokenizer
        self._tokens: list[int] = []
        self._start = self._read = self._given = 0

    def take(self, token: int) -> str:
        """Add the next token; returns the text that is complete now, perhaps none."""
        self._tokens.append(token)
        text = self._text()
        if len(text) <= self._given or text.endswith(_INCOMPLETE):
            return ""
        piece = text[self._given :]
        self._start, self._read = self._read, len(self._tokens)
        self._given = len(self._text())
        return piece

    def rest(self) -> str:
        """The text that was held back; call it after the last token."""
        return self._text()[self._given :]

    def _text(self) -> str:
        """The text of the tokens from `start` on."""
        text = self._tokenizer.decode(
            self._tokens[self._start :], skip_special_tokens=True, clean_up_tokenization_spaces=False
        )
        assert isinstance(text, str), "one answer is decoded to one text"
        return text
