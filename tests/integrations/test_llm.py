"""An `LLM` on tiny random models: answers, how they end, and that they release their memory."""

import signal
from collections import defaultdict, deque
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from itertools import islice

import numpy as np
import pytest
import torch
from hf_models import random_model, tiny_config
from hf_tokenizers import STOP, byte_tokenizer
from llm_serving import alone, model_of, prompt_of, serving

from kvstead.engine import KVCacheManager, Scheduler
from kvstead.errors import InvalidSize, LayoutError, RequestError
from kvstead.integrations.transformers import SamplingParams
from kvstead.integrations.transformers.answers import Answer
from kvstead.prefix import TokenKey

_COMMON = prompt_of(1, 24)
_PROMPTS = [prompt_of(2, 5), _COMMON + prompt_of(3, 9), prompt_of(4, 1), _COMMON + prompt_of(5, 3), _COMMON, [7] * 30]
_TIGHT = {"num_bytes": 2**16, "decode_headroom": 0}
_WAYS = {
    "plain": {},
    "chunked": {"chunk_tokens": 8},
    "unified": {"layout": "unified"},
    "tight": _TIGHT,
    "tight and unified": {**_TIGHT, "layout": "unified", "chunk_tokens": 16},
    "without cache": {"prefix_cache": False},
    "flex": {"attention": "flex"},
}


def _more(*values):
    """A case for the long run only."""
    return pytest.param(*values, marks=pytest.mark.models)


@pytest.mark.parametrize("way", [way if way in {"chunked", "tight and unified"} else _more(way) for way in _WAYS])
def test_answers_are_those_of_the_model_alone(way):
    """Greedy tokens equal those of `generate`, with stop tokens, in every use of memory, also on cached prefixes."""
    with serving(**_WAYS[way]) as llm:
        for _ in range(2):
            found = llm.generate(_PROMPTS, SamplingParams(max_new_tokens=12))
            assert [completion.tokens for completion in found] == alone("llama", _PROMPTS, 12)
        assert [list(completion.prompt_tokens) for completion in found] == _PROMPTS
        assert any(completion.num_cached for completion in found) == (way != "without cache")
        retracted = llm.summary()["requests"]["retracted"]
    assert (retracted > 0) == ("tight" in way)
    assert any(completion.num_retractions for completion in found) <= (retracted > 0)


def test_tenants_with_keys_of_their_own_share_nothing():
    """Prompts of one tenant share their pages; another tenant's, and those of none, find nothing of them."""
    with serving() as llm:
        tenants = [(TokenKey(0, None, name),) for name in ("a", "b", "a")]
        params = [SamplingParams(max_new_tokens=2, keys=keys) for keys in (*tenants, ())]
        found = [llm.generate([_COMMON], each)[0].num_cached for each in params]
    assert found == [0, 0, 20, 0]


def test_what_is_no_key_is_refused():
    """Keys of another kind are refused when the parameters are made."""
    with pytest.raises(RequestError, match="no key of tokens"):
        SamplingParams(keys=("tenant",))


@pytest.mark.parametrize(
    ("family", "layout"),
    [
        ("jamba", "static"),
        ("lfm2", "unified"),
        ("mistral", "static"),
        _more("jamba", "unified"),
        _more("lfm2", "static"),
        _more("mistral", "unified"),
        *(_more(family, layout) for family in ("gemma3_text", "gpt2") for layout in ("static", "unified")),
    ],
)
def test_families_are_set_up_as_they_need(family, layout):
    """With states, windows, learned positions or whole prompts, answers are those of the model alone."""
    with serving(family, layout=layout, num_bytes=2**20, chunk_tokens=16) as llm:
        found = llm.generate(_PROMPTS, SamplingParams(max_new_tokens=8))
        assert [completion.tokens for completion in found] == alone(family, _PROMPTS, 8)


def test_prompts_that_come_whole_are_never_cut():
    """They stay whole when several begin in one step, together longer than one may be."""
    prompts = [prompt_of(seed, 100) for seed in range(4)]
    with serving("jamba", layout="unified", chunk_tokens=16, max_length=110) as llm:
        found = llm.generate(prompts, SamplingParams(max_new_tokens=3))
        assert llm.summary()["steps"] == 3, "all began at once"
    assert [completion.tokens for completion in found] == alone("jamba", prompts, 3)


def test_an_answer_ends_with_a_stop_token():
    """A stop token of the model or the params ends an answer, as its last token but not in the text."""
    tokenizer = byte_tokenizer()
    with serving(tokenizer=tokenizer) as llm:
        (free,) = llm.generate([_COMMON], SamplingParams(max_new_tokens=20))
        assert (free.finish_reason, len(free.tokens)) == ("length", 20)
        at = next(at for at, token in enumerate(free.tokens) if at > 3 and token not in free.tokens[:at])
        params = SamplingParams(max_new_tokens=20, stop_tokens=(free.tokens[at],))
        (stopped,) = llm.generate([_COMMON], params)
    assert (stopped.finish_reason, stopped.tokens) == ("stop", free.tokens[: at + 1])
    assert stopped.text == tokenizer.decode(free.tokens[:at], skip_special_tokens=True)
    model = random_model(tiny_config("llama", vocab_size=320, eos_token_id=[free.tokens[at], STOP]))
    with serving(model=model, tokenizer=tokenizer) as llm:
        (found,) = llm.generate([_COMMON], SamplingParams(max_new_tokens=20))
        assert (found.finish_reason, found.tokens, found.text) == ("stop", stopped.tokens, stopped.text)


def test_a_stop_token_as_the_last_one_is_a_stop():
    """An answer that ends by a stop token and by its length has stopped."""
    with serving() as llm:
        (free,) = llm.generate([_COMMON], SamplingParams(max_new_tokens=1))
        (both,) = llm.generate([_COMMON], SamplingParams(max_new_tokens=1, stop_tokens=free.tokens))
    assert (free.finish_reason, both.finish_reason) == ("length", "stop")


def test_pieces_together_are_the_completions():
    """The tokens and texts of all pieces of a prompt join to those of its completion."""
    params = [SamplingParams(max_new_tokens=count, temperature=2.0, seed=count) for count in (1, 7, 30, 12, 5, 9)]
    texts, tokens, completions = defaultdict(str), defaultdict(tuple), {}
    with serving(tokenizer=byte_tokenizer()) as llm:
        for piece in llm.stream(_PROMPTS, params):
            assert piece.index not in completions, "nothing comes after the completion"
            texts[piece.index] += piece.text
            tokens[piece.index] += piece.tokens
            if piece.completion is not None:
                completions[piece.index] = piece.completion
        again = llm.generate(_PROMPTS, params)
    for index, completion in completions.items():
        assert texts[index] == completion.text
        assert tokens[index] == completion.tokens
    assert [(one.text, one.tokens) for _, one in sorted(completions.items())] == [(o.text, o.tokens) for o in again]


_BAD = {
    "empty ids": [],
    "empty text": "",
    "beyond the vocabulary": [1, 5, 320],
    "negative": [4, -1],
    "fractions": [0.5],
    "no message": [{"role": "user"}],
    "nothing": None,
    "half a character": "\ud800",
    "as long as the model": [5] * 512,
    "longer": [5] * 2000,
    "longer than the memory": [5] * 400,
    "against the template": [{"role": "robot", "content": "x"}],
    "what a template fails at": [{"role": "user", "content": ""}],
    "half a character in a chat": [{"role": "user", "content": "\ud800"}],
    "beyond 64 bits": [1, 2**70],
    "an array without a dimension": np.array(5),
    "a fraction without a dimension": torch.tensor(0.5),
    "bytes": b"abc",
    "what a tokenizer gives": {"input_ids": [1, 2]},
}


@pytest.mark.parametrize("kind", _BAD)
def test_a_bad_prompt_is_rejected_alone(kind):
    """Its completion says why, and those beside it are served."""
    tokenizer = byte_tokenizer()
    template = (
        "{% if messages[0].role == 'robot' %}{{ raise_exception('who is that?') }}{% endif %}"
        "{{ 1 / (messages[0].content | length) }}{{ messages[0].content }}"
    )
    with serving(tokenizer=tokenizer, num_bytes=2**18) as llm, pytest.MonkeyPatch.context() as patch:
        patch.setattr(tokenizer, "chat_template", template)
        before, bad, behind = llm.generate([_COMMON, _BAD[kind], _COMMON], SamplingParams(max_new_tokens=5))
        assert (bad.finish_reason, bad.tokens, bad.text) == ("rejected", (), "")
        assert bad.reason
        assert before.tokens == behind.tokens
        assert len(before.tokens) == 5
        assert llm.summary()["rejections"] == [f"request 1: {bad.reason}"]
        if not isinstance(_BAD[kind], str | list | None):
            assert [one.finish_reason for one in llm.generate(_BAD[kind])] == ["rejected"], "also alone"


def test_no_prompts_give_no_completions():
    """Without prompts there is nothing to return; params of no tokens are refused."""
    with serving() as llm:
        assert llm.generate([]) == list(llm.stream([])) == llm.step() == []
    with pytest.raises(RequestError, match="Use 1 or more"):
        SamplingParams(max_new_tokens=0)


def test_prompts_come_in_many_forms():
    """A text, ids in a list, an array or a tensor, a chat, or several of these give one completion each."""
    tokenizer = byte_tokenizer()
    ids = tokenizer("a tea")["input_ids"]
    params = SamplingParams(max_new_tokens=3)
    with serving(tokenizer=tokenizer) as llm:
        expected = llm.generate([ids], params)[0].tokens
        chat = [{"role": "user", "content": "a tea"}]
        for prompt in ("a tea", ids, tuple(ids), np.array(ids), torch.tensor(ids), chat):
            assert [one.tokens for one in llm.generate(prompt, params)] == [expected]
            assert [one.tokens for one in llm.generate([prompt, prompt], params)] == [expected] * 2
        assert len(llm.generate(np.array([ids, ids]), params)) == 2


def test_a_chat_goes_through_the_template():
    """Messages are written by the model's template, up to the assistant's turn."""
    tokenizer = byte_tokenizer()
    template = "{% for m in messages %}{{ m.role }}:{{ m.content }};{% endfor %}{{ '!' if add_generation_prompt }}"
    chat = [{"role": "system", "content": "be"}, {"role": "user", "content": "go"}]
    with serving(tokenizer=tokenizer) as llm, pytest.MonkeyPatch.context() as patch:
        patch.setattr(tokenizer, "chat_template", template)
        (found,) = llm.generate([chat], SamplingParams(max_new_tokens=1))
        patch.setattr(tokenizer, "chat_template", None)
        (plain,) = llm.generate([chat], SamplingParams(max_new_tokens=1))
    assert tokenizer.decode(found.prompt_tokens) == "system:be;user:go;!"
    assert tokenizer.decode(plain.prompt_tokens) == "be\ngo"


def test_params_are_one_for_all_or_one_each():
    """Another number of them is refused before anything begins."""
    with serving() as llm:
        found = llm.generate(_PROMPTS[:2], [SamplingParams(max_new_tokens=2), SamplingParams(max_new_tokens=4)])
        assert [len(one.tokens) for one in found] == [2, 4]
        with pytest.raises(RequestError, match="2 prompts come with 1 params"):
            llm.stream(_PROMPTS[:2], [SamplingParams()])


@pytest.mark.parametrize("way", [_more("plain"), "tight"])
def test_a_stream_left_early_releases_everything(way):
    """After a break, a close or an error of the reader, at any piece, nothing runs and nothing is held."""
    with serving(**_WAYS[way]) as llm:
        for num_pieces in (1, 25):
            for at, _ in enumerate(llm.stream(_PROMPTS), start=1):
                if at == num_pieces:
                    break
            assert llm.is_idle
            with closing(llm.stream(_PROMPTS)) as stream:
                next(stream)
            assert llm.is_idle
            with pytest.raises(ZeroDivisionError):
                _fail_at(llm.stream(_PROMPTS), num_pieces)
            assert llm.is_idle
            llm.manager.audit()
        assert llm.summary()["requests"]["aborted"] > 0
        llm.stream(_PROMPTS).close()
        assert llm.is_idle, "a stream that never began leaves nothing"


def _fail_at(stream, num_pieces):
    for at, _ in enumerate(stream):
        1 / (num_pieces - at)


@pytest.mark.parametrize(("family", "fault"), [("llama", KeyboardInterrupt), _more("lfm2", RuntimeError)])
def test_an_interrupted_step_releases_everything(family, fault):
    """After an error inside the model's pass, at any step, the memory is empty and later answers are right."""
    for step in (1, 2, 6):
        with serving(family, chunk_tokens=16) as llm:
            num_calls = 0

            def fail(*_, last=step):
                nonlocal num_calls
                num_calls += 1
                if num_calls == last:
                    raise fault

            layer = model_of(family).get_output_embeddings()
            handle = layer.register_forward_pre_hook(fail)
            with pytest.raises(fault):
                llm.generate(_PROMPTS, SamplingParams(max_new_tokens=8))
            handle.remove()
            assert llm.is_idle
            llm.manager.audit()
            found = llm.generate(_PROMPTS, SamplingParams(max_new_tokens=8))
            assert [one.tokens for one in found] == alone(family, _PROMPTS, 8)


@pytest.mark.usefixtures("raising_interrupts")
@pytest.mark.parametrize(
    ("owner", "name"),
    [
        (Scheduler, "add"),
        (Scheduler, "schedule"),
        (KVCacheManager, "match"),
        (KVCacheManager, "extend"),
        (KVCacheManager, "decode"),
        (Scheduler, "process"),
        (KVCacheManager, "commit"),
        (KVCacheManager, "cache"),
        (Answer, "take"),
        (KVCacheManager, "finish"),
        (Scheduler, "abort"),
    ],
)
def test_an_interrupt_waits_until_memory_is_consistent(owner, name, monkeypatch):
    """Ctrl-C while memory is planned, taken or released is raised afterwards, and all requests are aborted."""
    original = getattr(owner, name)
    is_due = True

    def interrupted(*args, **keywords):
        nonlocal is_due
        if is_due:
            is_due = False
            signal.raise_signal(signal.SIGINT)
        return original(*args, **keywords)

    monkeypatch.setattr(owner, name, interrupted)
    handler = signal.getsignal(signal.SIGINT)
    params = SamplingParams(max_new_tokens=4)
    with serving() as llm:
        with pytest.raises(KeyboardInterrupt):
            _read(llm.stream(_PROMPTS, params), 1 if name == "abort" else None)
        assert (is_due, llm.is_idle, signal.getsignal(signal.SIGINT)) == (False, True, handler)
        llm.manager.audit()
        assert [one.tokens for one in llm.generate(_PROMPTS, params)] == alone("llama", _PROMPTS, 4)


def _read(stream, most):
    with closing(stream):
        deque(islice(stream, most))


def test_another_thread_leaves_signals_alone():
    """Only the main thread may set signal handlers and is interrupted; other threads answer as it does."""
    with serving() as llm, ThreadPoolExecutor(1) as pool:
        found = pool.submit(llm.generate, _PROMPTS[:2], SamplingParams(max_new_tokens=4)).result()
    assert [one.tokens for one in found] == alone("llama", _PROMPTS[:2], 4)


def test_a_failed_step_ends_all_requests_in_it():
    """Requests of other readers in the step end too, with the reason; waiting requests are served."""
    with serving(max_requests=1) as llm:
        ids = [llm.add(prompt, SamplingParams(max_new_tokens=3)) for prompt in _PROMPTS[:2]]
        handle = model_of("llama").register_forward_pre_hook(lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            llm.step()
        handle.remove()
        pieces = []
        while not llm.is_idle:
            pieces += llm.step()
    ends = {piece.index: piece.completion for piece in pieces if piece.completion}
    assert (ends[ids[0]].finish_reason, ends[ids[1]].finish_reason) == ("aborted", "length")
    assert "ZeroDivisionError" in ends[ids[0]].reason


def test_readers_get_their_own_pieces():
    """Two streams and single requests, read in turns, each get all pieces of their own prompts and no others."""
    params = SamplingParams(max_new_tokens=12)
    with serving() as llm:
        first, second = llm.stream(_PROMPTS[:2], params), llm.stream(_PROMPTS[2:4], params)
        ids = [llm.add(prompt, params) for prompt in _PROMPTS[4:]]
        found = {}
        is_over = False
        while not is_over:
            pieces = [(base, piece) for base, stream in ((0, first), (2, second)) for piece in [next(stream, None)]]
            pieces += [(4 - ids[0], piece) for piece in llm.step()]
            is_over = llm.is_idle and not any(piece for _, piece in pieces)
            found |= {base + piece.index: piece.completion for base, piece in pieces if piece and piece.completion}
    assert [found[at].tokens for at in range(len(_PROMPTS))] == alone("llama", _PROMPTS, 12)


def test_an_abort_ends_one_request_at_any_time():
    """A request may be aborted while it waits, in its prompt or in its answer; aborting again does nothing."""
    (expected,) = alone("llama", [_COMMON], 12)
    for num_steps in (0, 1, 3, 6):
        with serving(chunk_tokens=8, max_requests=2) as llm:
            ids = [llm.add(_COMMON, SamplingParams(max_new_tokens=12)) for _ in range(3)]
            pieces = [piece for _ in range(num_steps) for piece in llm.step()]
            llm.abort(ids[1])
            llm.abort(ids[1])
            while not llm.is_idle:
                pieces += llm.step()
            llm.abort(ids[0])
            llm.abort(10**6)
        ends = [piece.completion for piece in sorted(pieces, key=lambda piece: piece.index) if piece.completion]
        assert [end.finish_reason for end in ends] == ["length", "aborted", "length"]
        assert ends[0].tokens == ends[2].tokens == expected
        assert ends[1].tokens == expected[: len(ends[1].tokens)]


def test_a_reader_of_a_stream_may_abort_one_request():
    """A piece has the id of its request; the others of the stream go on after its abort."""
    with serving() as llm:
        ends = {}
        for piece in llm.stream(_PROMPTS, SamplingParams(max_new_tokens=10)):
            if piece.index == 1:
                llm.abort(piece.request_id)
            if piece.completion:
                ends[piece.index] = piece.completion
    assert {index: str(end.finish_reason) for index, end in ends.items() if index != 1} == dict.fromkeys(
        (0, 2, 3, 4, 5), "length"
    )
    assert ends[1].finish_reason == "aborted"
    assert 0 < len(ends[1].tokens) < 10


def test_answers_end_at_the_limit_of_their_length():
    """An answer ends at the model's last position, at `max_length`, or where the memory ends."""
    with serving() as llm:
        assert llm.max_length == 512
        (found,) = llm.generate([prompt_of(8, 508)], SamplingParams(max_new_tokens=20))
        assert (found.finish_reason, len(found.tokens)) == ("length", 4)
    with serving(max_length=30) as llm:
        (found,) = llm.generate([_COMMON], SamplingParams(max_new_tokens=20))
        assert (found.finish_reason, len(found.tokens)) == ("length", 6)
    with serving(num_bytes=2**16) as llm:
        assert llm.max_length == llm.manager.num_slots == 60
        (found,) = llm.generate([_COMMON], SamplingParams(max_new_tokens=200))
        assert (found.finish_reason, len(found.tokens)) == ("length", 36)
    rope = {"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 2.0}
    model = random_model(tiny_config("llama", max_position_embeddings=64, rope_parameters=rope))
    with serving(model=model) as llm:
        assert llm.max_length == 64


@pytest.mark.parametrize("layout", ["static", "unified"])
@pytest.mark.parametrize("family", ["lfm2", _more("gemma3_text"), "mistral"])
def test_answers_use_the_memory_to_its_last_token(family, layout):
    """Also with windows and states, the longest prompt that fits is answered, to the last token."""
    with serving(family, layout=layout, num_bytes=2**15, page_size=16) as llm:
        assert llm.max_length < 512
        long, short = llm.generate([[5] * (llm.max_length - 1), [6] * 3], SamplingParams(max_new_tokens=1000))
        (beyond,) = llm.generate([[5] * llm.max_length])
    assert (long.finish_reason, len(long.tokens)) == ("length", 1)
    assert (short.finish_reason, len(short.tokens)) == ("length", llm.max_length - 3)
    assert beyond.finish_reason == "rejected"


def test_bad_settings_are_refused():
    """A layout without storage, lengths beyond the model, and a memory without a page are refused."""
    for options, error, text in (
        ({"layout": "padded"}, LayoutError, "static, unified"),
        ({"max_length": 513}, InvalidSize, "max_length is 513, and the model's own 512"),
        ({"max_length": 1}, InvalidSize, "Use 2 .. 512"),
        ({"num_bytes": 100}, LayoutError, "100"),
    ):
        with pytest.raises(error, match=text), serving(**options):
            pass


def test_the_summary_adds_up():
    """Counts equal those of the completions, bytes those of the memory, and model time is part of the whole."""
    with serving(max_requests=3) as llm:
        found = llm.generate([*_PROMPTS, []], SamplingParams(max_new_tokens=6))
        llm.abort(llm.add(_COMMON))
        llm.step()
        summary = llm.summary()
    served = found[:-1]
    assert summary["requests"] == {"total": 8, "finished": 6, "rejected": 1, "retracted": 0, "aborted": 1}
    assert summary["prefix"]["prompt_tokens"] == sum(len(one.prompt_tokens) for one in served)
    assert summary["prefix"]["hit_tokens"] == sum(one.num_cached for one in served) > 0
    assert summary["output_tokens"] == sum(len(one.tokens) for one in served)
    memory = summary["memory"]
    assert sum(memory["by_state"].values()) == memory["total_bytes"] == llm.manager.total_bytes
    assert sum(memory["by_kind"].values()) == memory["mean_bytes"] <= memory["peak_bytes"]
    assert 0 < summary["model_s"] < summary["wall_s"]
    assert summary["outside_model_share"] == pytest.approx(1 - summary["model_s"] / summary["wall_s"])
    assert (summary["model"], summary["layout"], summary["page_size"]) == ("llama", "static", 4)


def test_the_package_root_exports_it():
    """`from kvstead import LLM` gives the same class."""
    import kvstead  # noqa: PLC0415
    from kvstead.integrations.transformers import LLM  # noqa: PLC0415

    assert kvstead.LLM is LLM
