import io
from contextlib import suppress

from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from kvstead.cli.generate_run import AnswerWriter

TEXTS = st.lists(st.lists(st.text(alphabet="ab\t[]:\n", max_size=6), min_size=1, max_size=4), min_size=1, max_size=4)


def _written(titles):
    stream = io.StringIO()
    return AnswerWriter(titles, Console(file=stream, width=40)), stream


def _complete(parts):
    """What is to be read in the end, of all answers."""
    if len(parts) == 1:
        return "".join(parts[0]) + "\n\n"
    return "".join(f"[{at + 1}] prompt {at}\n{''.join(part)}\n\n" for at, part in enumerate(parts))


@given(st.data(), TEXTS)
def test_answers_read_the_same_in_any_order_of_arrival(data, parts):
    """Written as it comes, in any interleaving, the text only ever grows, and ends as one written at the end."""
    answers, stream = _written([f"prompt {at}" for at in range(len(parts))])
    left = [list(part) for part in parts]
    while open_ones := [at for at, part in enumerate(left) if part]:
        at = data.draw(st.sampled_from(open_ones))
        text = left[at].pop(0)
        answers.add(at, text, is_last=not left[at])
        before = stream.getvalue()
        answers.write()
        assert stream.getvalue().startswith(before)
        came = "".join(parts[0][: len(parts[0]) - len(left[0])])
        assert came in stream.getvalue()  # the first answer never waits
    answers.write_rest()
    assert stream.getvalue() == _complete(parts)


@given(TEXTS)
def test_the_rest_is_written_of_answers_that_did_not_end(parts):
    """What came before everything was stopped is written, each under its prompt."""
    answers, stream = _written([f"prompt {at}" for at in range(len(parts))])
    for at, part in enumerate(parts):
        for text in part:
            answers.add(at, text, is_last=False)
    answers.write()
    answers.write_rest()
    assert stream.getvalue() == _complete(parts)


class Stopping(io.StringIO):
    """A stream at which Ctrl-C comes once, just behind a part of an answer."""

    def __init__(self, at):
        super().__init__()
        self.at = at

    def write(self, text):
        """Write, then perhaps be interrupted."""
        super().write(text)
        self.at -= not text.startswith("[")
        if self.at == 0:
            self.at = -1
            raise KeyboardInterrupt


@given(TEXTS, st.integers(1, 30))
def test_an_interrupt_while_writing_loses_nothing(parts, at):
    """Wherever Ctrl-C comes, what follows is written behind it, and nothing twice."""
    stream = Stopping(at)
    answers = AnswerWriter([f"prompt {at}" for at in range(len(parts))], Console(file=stream, width=40))
    for index, part in enumerate(parts):
        answers.add(index, "".join(part), is_last=True)
    with suppress(KeyboardInterrupt):
        answers.write()
    answers.write_rest()
    assert stream.getvalue() == _complete(parts)


def test_long_prompts_are_shortened_to_a_line():
    """A title is one line of 72 characters at most, whatever the prompt has in it."""
    answers, stream = _written(["first\n\n[b]line[/b]", "x" * 100])
    answers.write_rest()
    assert stream.getvalue() == f"[1] first [b]line[/b]\n\n\n[2] {'x' * 69}...\n\n\n"
