"""Texts that end answers."""

import pytest
from hf_tokenizers import byte_tokenizer
from hypothesis import given
from hypothesis import strategies as st
from llm_serving import prompt_of, serving

from kvstead.errors import RequestError
from kvstead.integrations.transformers import FinishReason, SamplingParams
from kvstead.integrations.transformers.stop_texts import StopTexts

_TEXTS = st.text("ab.", max_size=12)


@given(st.lists(_TEXTS, max_size=8), st.lists(st.text("ab.", min_size=1, max_size=4), min_size=1, max_size=3))
def test_pieces_join_to_the_text_before_the_first_stop(pieces, stops):
    """However a text is cut into pieces, what is shown is the text before the stop that is whole first, or all."""
    stream = StopTexts(stops)
    shown = ""
    for end, piece in enumerate(pieces, start=1):
        shown += stream.take(piece)
        so_far = "".join(pieces[:end])
        assert not any(stop in shown for stop in stops)
        assert stream.has_ended == any(stop in so_far for stop in stops)
        assert len(so_far) - len(shown) < max(map(len, stops)) or stream.has_ended
    text = "".join(pieces)
    shown += stream.rest()
    ends = [(text.find(stop) + len(stop), text.find(stop)) for stop in stops if stop in text]
    assert text.startswith(shown)
    if not ends:
        assert shown == text
    else:
        first = min(end for end, _ in ends)
        assert len(shown) in {
            end - len(stop) for stop in stops for end in range(first, len(text) + 1) if text[:end].endswith(stop)
        }


def test_a_text_ends_an_answer():
    """The answer stops before the text, its memory comes back, and other requests go on."""
    prompts = [prompt_of(1, 12), prompt_of(2, 9)]
    with serving(tokenizer=byte_tokenizer()) as llm:
        whole, other = llm.generate(prompts, SamplingParams(max_new_tokens=24))
        stop = whole.text[len(whole.text) // 2 :][:2]
        params = [SamplingParams(max_new_tokens=24, stop=[stop]), SamplingParams(max_new_tokens=24)]
        stopped, same = llm.generate(prompts, params)
    assert stopped.text == whole.text[: whole.text.find(stop)]
    assert stopped.finish_reason is FinishReason.STOP
    assert len(stopped.tokens) < len(whole.tokens)
    assert same.tokens == other.tokens


@pytest.mark.parametrize("stop", ["END", [""], [5]])
def test_stops_that_are_no_texts_are_refused(stop):
    """One text alone, an empty one and a number are no list of texts."""
    with pytest.raises(RequestError, match="stop is"):
        SamplingParams(stop=stop)
