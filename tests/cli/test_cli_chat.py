"""`kvstead chat`: turns, commands, interrupts."""

import io
from types import SimpleNamespace

import pytest

from kvstead.cli import chat_run
from kvstead.integrations.transformers import Completion, FinishReason, Piece, SamplingParams


class FakeLLM:
    """Answers each chat with the number of its messages, in two pieces."""

    name = "fake"

    def __init__(self, model, *, report, **keywords):
        self.model, self.keywords, self.chats = model, keywords, []
        report("loading", 1, 1)
        stats = SimpleNamespace(live=0, cached=2048, total_bytes=4096)
        self.manager = SimpleNamespace(stats=lambda: stats, total_bytes=4096)

    def stream(self, prompts, params):
        """The answer to the one chat."""
        self.chats.append(prompts[0])
        self.params = params
        text = prompts[0][-1]["content"]
        if text == "too long":
            yield Piece(
                0, 0, completion=Completion((), (), "", FinishReason.REJECTED, reason="the prompt is too long.")
            )
            return
        yield Piece(0, 0, f"answer {len(prompts[0])}", (1,))
        if text == "interrupt":
            raise KeyboardInterrupt
        whole = Completion((1,) * 20, (1, 2), f"answer {len(prompts[0])}.", FinishReason.STOP, 16)
        yield Piece(0, 0, ".", (2,), whole)


@pytest.fixture
def chat(kvstead, monkeypatch):
    """Chat with these lines on standard input; what is printed, and the model."""

    def run(*lines, arguments=()):
        made = []
        monkeypatch.setattr(
            chat_run, "LLM", lambda *args, **keywords: made.append(FakeLLM(*args, **keywords)) or made[0]
        )
        monkeypatch.setattr("sys.stdin", io.StringIO("".join(f"{line}\n" for line in lines)))
        ended = kvstead("chat", *arguments)
        assert ended.code == 0, ended.err
        return ended.out, made[0]

    return run


def test_each_turn_has_the_turns_before_it(chat):
    """Question and answer go into the next turn; after each stands what was cached and what the memory holds."""
    out, llm = chat("Hello?", "", "And?")
    assert [message["content"] for message in llm.chats[-1]] == ["Hello?", "answer 1.", "And?"]
    assert [message["role"] for message in llm.chats[-1]] == ["user", "assistant", "user"]
    assert "answer 1.\n16 of 20 tokens cached, 2 generated; 2 KiB of 4 KiB in the cache" in out
    assert "answer 3." in out


def test_reset_begins_anew_with_the_system_message(chat):
    """After /reset only the system message is left; another command is told and not sent."""
    _, llm = chat("Hello?", "/reset", "/quit now", "Again?", arguments=["--system", "Be brief."])
    assert [message["content"] for message in llm.chats[-1]] == ["Be brief.", "Again?"]
    assert len(llm.chats) == 2


def test_an_interrupt_stops_the_answer_alone(chat):
    """What had come of the answer is kept, and the chat goes on."""
    out, llm = chat("interrupt", "Go on")
    assert "answer 1 ...\nstopped; 2 KiB of 4 KiB in the cache" in out
    assert [message["content"] for message in llm.chats[-1]] == ["interrupt", "answer 1", "Go on"]


def test_a_message_that_cannot_be_answered_is_not_remembered(chat):
    """The reason is shown, and the next turn goes without it."""
    out, llm = chat("too long", "Short")
    assert "Not answered: the prompt is too long. /reset begins anew." in out
    assert [message["content"] for message in llm.chats[-1]] == ["Short"]


def test_options_reach_the_model(chat):
    """Sampling, memory, device and dtype; one request at a time."""
    options = "some/model --top-k 5 --stop END --memory 2MiB --device cpu --dtype float32 --temperature 1"
    _, llm = chat("Hello?", arguments=options.split())
    assert llm.model == "some/model"
    assert llm.params == SamplingParams(top_k=5, stop=("END",), temperature=1.0)
    assert llm.keywords["num_bytes"] == 2 << 20
    assert (llm.keywords["device"], llm.keywords["dtype"], llm.keywords["max_requests"]) == ("cpu", "float32", 1)


def test_an_interrupt_at_the_prompt_goes_on(chat, monkeypatch):
    """Ctrl-C between turns asks again; the end of input ends the chat."""
    lines = iter(["Hello?", KeyboardInterrupt, EOFError])

    def ask(_console):
        line = next(lines)
        if isinstance(line, str):
            return line
        raise line

    monkeypatch.setattr(chat_run, "_ask", ask)
    out, llm = chat()
    assert len(llm.chats) == 1
    assert out.endswith("\n\n\n")


def test_faulty_options_are_refused_before_a_model_is_loaded(kvstead, monkeypatch):
    """A sampling parameter out of range, and a text that is none."""
    monkeypatch.setattr(chat_run, "LLM", lambda *_args, **_keywords: pytest.fail("a model was loaded"))
    for arguments, message in (
        (["--top-k", 0], "top_k is 0"),
        (["--stop", ""], "stop is"),
        (["--system", "\udc80"], "UTF-8"),
    ):
        ended = kvstead("chat", *arguments)
        assert ended.code == 2
        assert message in ended.err
