import io
import json
import sys

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from kvstead.cli import generate_run
from kvstead.integrations.transformers import Completion, FinishReason, Piece, SamplingParams
from kvstead.prefix import TokenKey
from tiny_llm import save_tiny_llm

USER, SYSTEM = {"role": "user", "content": "Hello?"}, {"role": "system", "content": "Be brief."}
SUMMARY = {
    "model": "fake",
    "layout": "static",
    "page_size": 16,
    "cache_dtype": "float32",
    "requests": {"total": 2, "finished": 2, "rejected": 0, "retracted": 0, "aborted": 0},
    "prefix": {"hit_tokens": 0, "prompt_tokens": 10, "hit_rate": 0.0},
    "memory": {
        "total_bytes": 4096,
        "peak_live_bytes": 1024,
        "mean_live_bytes": 512,
        "peak_bytes": 2048,
        "mean_bytes": 1024,
        "by_kind": {"full": 1024},
    },
    "output_tokens": 8,
    "throughput_tok_s": 16.0,
    "steps": 4,
    "wall_s": 0.5,
    "outside_model_share": 0.05,
    "rejections": [],
}


class FakeLLM:
    """Answers every prompt with its number, in two pieces, the last prompt first; notes what it was asked."""

    def __init__(self, model, *, report, **memory):
        self.model, self.memory = model, memory
        self.is_closed = False
        report("loading", 1, 1)

    def stream(self, prompts, params):
        """The first pieces of all prompts, then the second ones."""
        self.prompts, self.params = prompts, params
        try:
            yield from self.pieces()
        finally:
            self.is_closed = True

    def pieces(self):
        """As they come."""
        order = range(len(self.prompts) - 1, -1, -1)
        yield from (Piece(at, at, f"answer\t{at}", (at,)) for at in order)
        for at in order:
            whole = Completion((1, 2), (at, 7), f"answer\t{at}.", FinishReason.STOP)
            yield Piece(at, at, ".", (7,), whole)

    def summary(self):
        """Made up."""
        assert self.is_closed, "what is still under way would not be counted as it ends"
        return SUMMARY


class Interrupted(FakeLLM):
    """Is interrupted after the first pieces."""

    def pieces(self):
        """As they come."""
        for at in reversed(range(len(self.prompts))):
            yield Piece(at, at, f"answer {at}", (at,))
        raise KeyboardInterrupt


@pytest.fixture
def fake(monkeypatch):
    """The one `LLM` that the command makes, as a list once it is made."""
    made = []

    def use(kind):
        monkeypatch.setattr(generate_run, "LLM", lambda *args, **memory: made.append(kind(*args, **memory)) or made[0])
        return made

    return use


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    """A folder with a model of 64 words."""
    return save_tiny_llm(tmp_path_factory.mktemp("tiny"))


@pytest.fixture
def generated(kvstead, tiny):
    """The JSON of a generation by the tiny model that must succeed; 1 MiB unless `--memory` says otherwise."""

    def run(*arguments: object):
        sized = arguments if "--memory" in arguments else (*arguments, "--memory", "1MiB")
        ended = kvstead("generate", tiny, *sized, "--json")
        assert ended.code == 0, ended.err
        return ended.json

    return run


def test_options_reach_the_memory_and_the_sampling(kvstead, fake):
    """Every option is handed on, in bytes and tokens, and a single prompt is a chat of its user."""
    made = fake(FakeLLM)
    options = "--memory 3MiB --page-size 8 --layout unified --max-running 5 --max-new-tokens 9 --temperature 0.5"
    ended = kvstead(
        "generate",
        "some/model",
        "--prompt",
        "Hello?",
        *options.split(),
        "--top-p",
        0.9,
        "--seed",
        3,
        "--top-k",
        40,
        "--stop",
        "END",
        "--stop",
        "\n\n",
        "--device",
        "cpu",
        "--dtype",
        "bfloat16",
    )
    assert ended.code == 0, ended.err
    (llm,) = made
    assert llm.model == "some/model"
    memory = {"num_bytes": 3 << 20, "page_size": 8, "layout": "unified", "max_requests": 5}
    assert llm.memory == memory | {"device": "cpu", "dtype": "bfloat16"}
    assert llm.params == [
        SamplingParams(max_new_tokens=9, temperature=0.5, top_p=0.9, top_k=40, seed=3, stop=("END", "\n\n"))
    ]
    assert llm.prompts == [[USER]]


def test_without_options_the_defaults_are_those_of_the_library(kvstead, fake):
    """No model, greedy, and as many tokens as `SamplingParams` gives."""
    made = fake(FakeLLM)
    assert kvstead("generate", "--prompt", "Hello?").code == 0
    assert made[0].model is None
    assert made[0].params == [SamplingParams()]


def test_a_line_of_a_file_overrides_the_options(kvstead, fake, tmp_path):
    """What a line says of sampling is its own, the rest is of the options; chats stay what they are."""
    made = fake(FakeLLM)
    path = tmp_path / "prompts.jsonl"
    key = {"start": 0, "end": None, "value": "tenant"}
    lines = [
        {"prompt": "Hello?", "seed": 7, "top_p": 1, "keys": [key]},
        {"messages": [SYSTEM, USER], "max_new_tokens": 3},
    ]
    path.write_text("\n".join(map(json.dumps, lines)))
    ended = kvstead("generate", "--prompts", path, "--temperature", 0.5, "--max-new-tokens", 9)
    assert ended.code == 0, ended.err
    assert made[0].prompts == [[USER], [SYSTEM, USER]]
    assert made[0].params == [
        SamplingParams(max_new_tokens=9, temperature=0.5, seed=7, keys=(TokenKey(**key),)),
        SamplingParams(max_new_tokens=3, temperature=0.5),
    ]


@pytest.mark.parametrize(
    ("option", "prompt"), [([], [USER]), (["--system", "Be brief."], [SYSTEM, USER]), (["--raw"], "Hello?")]
)
def test_a_text_is_a_chat_unless_it_is_raw(kvstead, fake, option, prompt):
    """A system prompt begins the chat; raw text goes in as it is."""
    made = fake(FakeLLM)
    assert kvstead("generate", "--prompt", "Hello?", *option).code == 0
    assert made[0].prompts == [prompt]


@pytest.mark.parametrize("option", [[], ["--stream"]])
def test_texts_stand_under_their_prompts_in_order(kvstead, fake, option):
    """Streamed or not, answers read the same, in any order of their ends; the summary is below them, and no bar."""
    fake(FakeLLM)
    ended = kvstead("generate", "--prompt", "One\nline", "--prompt", "Two", *option)
    assert (ended.code, ended.err) == (0, "")
    assert ended.out.startswith("[1] One line\nanswer\t0.\n\n[2] Two\nanswer\t1.\n\nfake: 4 KiB of float32, static")
    assert "2 of 2 finished" in ended.out


def test_one_answer_has_no_heading(kvstead, fake):
    """A single prompt need not be told what it was."""
    fake(FakeLLM)
    assert kvstead("generate", "--prompt", "Hello?").out.startswith("answer\t0.\n\nfake:")


def test_characters_that_the_encoding_lacks_are_escaped(kvstead, fake, monkeypatch):
    """Where standard output takes ASCII only, letters beyond are escapes, and nothing fails."""
    fake(FakeLLM)
    written = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(written, encoding="ascii"))
    assert kvstead("generate", "--prompt", "é", "--prompt", "Two").code == 0
    sys.stdout.flush()
    assert written.getvalue().decode().startswith("[1] \\xe9\nanswer\t0.\n\n[2] Two\n")


def test_json_is_alone_on_standard_output(kvstead, fake):
    """Completions in order and the summary are one object; what is for the eye goes to standard error."""
    fake(FakeLLM)
    ended = kvstead("generate", "--prompt", "One", "--prompt", "Two", "--json", "--stream")
    assert ended.json["completions"][1] == {
        "prompt_tokens": [1, 2],
        "tokens": [1, 7],
        "text": "answer\t1.",
        "finish_reason": "stop",
        "num_cached": 0,
        "num_retractions": 0,
        "reason": "",
    }
    assert [completion["tokens"][0] for completion in ended.json["completions"]] == [0, 1]
    assert ended.json["summary"] == SUMMARY | {"interrupted": False}
    assert ended.err.startswith("[1] One\nanswer\t0.\n\n[2] Two\n")
    assert "prefix hit rate" in ended.err


@pytest.mark.parametrize("option", [[], ["--stream"]])
def test_an_interrupt_keeps_the_text_so_far(kvstead, fake, option):
    """Ctrl-C: the requests end, texts and tokens so far are given, and the exit code is 130."""
    fake(Interrupted)
    ended = kvstead("generate", "--prompt", "One", "--prompt", "Two", "--json", *option)
    assert ended.code == 130
    found = [(one["text"], one["tokens"], one["finish_reason"]) for one in ended.json["completions"]]
    assert found == [("answer 0", [0], "aborted"), ("answer 1", [1], "aborted")]
    assert ended.json["summary"]["interrupted"] is True
    assert "[1] One\nanswer 0\n\n[2] Two\nanswer 1\n\n" in ended.err
    assert "Interrupted: texts and figures end there." in ended.err


def _never(*_arguments, **_keywords):
    pytest.fail("a model was loaded")


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ('{"prompt": "Hello?", "seed": "x"}', "expected as `seed` an integer, found 'x'"),
        ('{"prompt": "Hello?", "max_new_tokens": 0}', "max_new_tokens is 0"),
        ('{"prompt": "Hello?", "temperature": -0.5}', "temperature is -0.5"),
        ('{"prompt": "Hello?", "temperature": NaN}', "temperature is nan"),
        ('{"prompt": "Hello?", "temperature": 1e999}', "temperature is inf"),
        (f'{{"prompt": "Hello?", "temperature": 1{"0" * 400}}}', "too large"),
        ('{"prompt": "Hello?", "top_p": 0}', "top_p is 0"),
        ('{"prompt": "Hello?", "top_p": 1.5}', "top_p is 1.5"),
        ('{"prompt": "Hello?", "seed": -1}', "seed is -1"),
        (f'{{"prompt": "Hello?", "seed": {2**64}}}', f"seed is {2**64}"),
        ('{"prompt": "Hello?", "keys": [{"start": 5, "end": 5, "value": "a"}]}', "covers no tokens"),
    ],
)
def test_a_bad_line_is_refused_before_anything_is_loaded(kvstead, monkeypatch, tmp_path, line, says):
    """One line on standard error with file and line number, exit code 2, and no model is touched."""
    monkeypatch.setattr(generate_run, "LLM", _never)
    path = tmp_path / "prompts.jsonl"
    path.write_text('{"prompt": "Hello?"}\n' + line)
    ended = kvstead("generate", "--prompts", path)
    assert (ended.code, ended.out) == (2, "")
    assert ended.err.startswith(f"kvstead: {path}, line 2: ")
    assert says in ended.err
    assert ended.err.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ([], "neither is given"),
        (["--prompt", "a", "--prompts", "b.jsonl"], "both are given"),
        (["--prompt", "a", "--raw", "--system", "b"], "both are given"),
        (["--prompt", "a\udcff"], "not UTF-8"),
        (["--prompt", "a", "--system", "\udcff"], "not UTF-8"),
        (["--prompt", "a", "--memory", "1Gigs"], "'1Gigs' is not a size"),
        (["--prompt", "a", "--layout", "padded"], "padded"),
        (["--prompt", "a", "--page-size", "0"], "page-size"),
        (["--prompt", "a", "--max-running", "0"], "max-running"),
        (["--prompt", "a", "--max-new-tokens", "0"], "max_new_tokens is 0"),
        (["--prompt", "a", "--temperature", "nan"], "temperature is nan"),
        (["--prompt", "a", "--top-p", "2"], "top_p is 2"),
        (["--prompt", "a", "--seed", "-1"], "seed is -1"),
        (["--prompts", "missing.jsonl"], "missing.jsonl cannot be read"),
    ],
)
def test_a_bad_option_is_refused_before_anything_is_loaded(kvstead, monkeypatch, arguments, says):
    """What is wrong is said on standard error, with exit code 2, and no model is touched."""
    monkeypatch.setattr(generate_run, "LLM", _never)
    ended = kvstead("generate", *arguments)
    assert (ended.code, ended.out) == (2, "")
    assert says in ended.err


def test_a_missing_extra_is_reported_with_the_command_to_install_it(kvstead, monkeypatch):
    """Where transformers is missing, the error is one line with the command that installs it."""
    monkeypatch.setattr("kvstead.cli.model_arguments.find_spec", {"transformers": None}.__getitem__)
    ended = kvstead("generate", "--prompt", "Hello?")
    assert (ended.code, ended.out) == (2, "")
    assert ended.err.startswith("kvstead: ")
    assert ended.err.endswith("Run: pip install 'kvstead[hf]'\n")


def _prompts(*texts):
    return [part for text in texts for part in ("--prompt", text)]


def _words(count, start=0):
    return " ".join(f"w{(start + at) % 50}" for at in range(count))


def test_tokens_are_those_that_the_model_generates(generated, tiny):
    """Chats and raw texts of several lengths are answered as by the model's own `generate`; the text is the words."""
    tokenizer = AutoTokenizer.from_pretrained(tiny)
    model = AutoModelForCausalLM.from_pretrained(tiny)
    texts = [_words(count) for count in (1, 20, 33)]
    for option, encode in (
        ([], lambda text: tokenizer.apply_chat_template([USER | {"content": text}], add_generation_prompt=True)),
        (["--raw"], tokenizer),
    ):
        found = generated(*_prompts(*texts), "--max-new-tokens", 12, *option)["completions"]
        for text, completion in zip(texts, found, strict=True):
            ids = torch.tensor([encode(text)["input_ids"]])
            expected = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=12, do_sample=False)
            assert completion["prompt_tokens"] == ids[0].tolist()
            assert completion["tokens"] == expected[0, ids.shape[1] :].tolist()
            assert completion["text"] == tokenizer.decode(completion["tokens"], skip_special_tokens=True)


def test_the_json_summary_is_the_contract(generated):
    """Counts, reuse and bytes are those of a replay's summary, and add up."""
    found = generated(*_prompts(*["w1 w2"] * 3), "--max-new-tokens", 5)
    summary, completions = found["summary"], found["completions"]
    assert summary["requests"] == {"total": 3, "finished": 3, "rejected": 0, "retracted": 0, "aborted": 0}
    assert summary["prefix"].keys() == {"hit_tokens", "prompt_tokens", "hit_rate"}
    assert summary["prefix"]["prompt_tokens"] == sum(len(one["prompt_tokens"]) for one in completions)
    assert summary["output_tokens"] == sum(len(one["tokens"]) for one in completions)
    assert summary["throughput_tok_s"] == pytest.approx(summary["output_tokens"] / summary["wall_s"])
    assert 0 < summary["outside_model_share"] < 1
    memory = summary["memory"]
    assert memory["total_bytes"] <= 1 << 20
    assert 0 < memory["mean_bytes"] <= memory["peak_bytes"] <= memory["total_bytes"]
    assert memory["by_kind"] == {"full": memory["mean_bytes"]}
    assert (summary["page_size"], summary["layout"], summary["cache_dtype"]) == (16, "static", "float32")


def test_a_system_prompt_is_computed_once(generated):
    """One request at a time, all but the first find the whole pages that they share, and say the same as alone."""
    questions = _prompts(*(f"w{number}" for number in range(4)))
    options = "--system", _words(40), "--max-new-tokens", 6
    found = generated(*questions, *options, "--max-running", 1)
    shared = 32  # <system>, 40 words and <user>: two whole pages
    assert [one["num_cached"] for one in found["completions"]] == [0, shared, shared, shared]
    assert found["summary"]["prefix"]["hit_tokens"] == 3 * shared
    alone = generated(*questions[:2], *options)
    assert found["completions"][0]["tokens"] == alone["completions"][0]["tokens"]


def test_short_memory_does_not_change_the_text(generated):
    """In so few pages that a request steps back and resumes, all say what they say in plenty."""
    asked = *_prompts(_words(10), _words(20)), "--max-new-tokens", 170
    plenty, few = generated(*asked), generated(*asked, "--memory", "80KiB", "--layout", "unified")
    assert [one["tokens"] for one in few["completions"]] == [one["tokens"] for one in plenty["completions"]]
    assert (plenty["summary"]["layout"], few["summary"]["layout"]) == ("static", "unified")
    assert few["summary"]["requests"]["retracted"] == sum(one["num_retractions"] for one in few["completions"]) > 0
    assert plenty["summary"]["requests"]["retracted"] == 0


def test_a_seed_repeats_its_samples(generated):
    """With a seed the same words are drawn again, streamed or not, and other ones with another seed."""
    asked = *_prompts(_words(3)), "--temperature", 5, "--max-new-tokens", 20
    texts = [
        generated(*asked, "--seed", seed, *rest)["completions"][0]["text"]
        for seed, rest in ((1, []), (1, ["--stream"]), (2, []))
    ]
    assert texts[0] == texts[1] != texts[2]


def test_a_prompt_that_does_not_fit_is_rejected_by_name(generated, kvstead, tiny):
    """What is longer than the model takes says so in place of its answer; the others are answered."""
    asked = *_prompts(_words(300), "w1"), "--max-new-tokens", 3
    rejected, answered = generated(*asked)["completions"]
    assert (rejected["finish_reason"], rejected["tokens"]) == ("rejected", [])
    assert rejected["reason"]
    assert len(answered["tokens"]) == 3
    ended = kvstead("generate", tiny, *asked, "--memory", "1MiB")
    assert f"(rejected: {rejected['reason']})\n\n[2] w1\n{answered['text']}\n\n" in ended.out


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["./missing"], "missing"),
        (["{tiny}", "--memory", "4KiB"], "bytes"),
        (["{tiny}", "--page-size", "1000000000000"], ""),
        (["{tiny}", "--memory", "1000TiB"], ""),
    ],
)
def test_an_error_of_model_or_memory_is_one_line(kvstead, tiny, arguments, says):
    """A model that is not there and a memory that holds nothing are one line, with exit code 2."""
    ended = kvstead("generate", *(argument.format(tiny=tiny) for argument in arguments), "--prompt", "w1")
    assert (ended.code, ended.out) == (2, "")
    assert ended.err.startswith("kvstead: ")
    assert says in ended.err
    assert ended.err.count("\n") == 1
