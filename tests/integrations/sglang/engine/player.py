"""Plays requests into a scheduler at exact steps, and keeps what comes out."""

from array import array
from collections import defaultdict

from sglang.srt.managers.io_struct import AbortReq, FlushCacheReqInput, TokenizedGenerateReqInput
from sglang.srt.sampling.sampling_params import SamplingParams

_FLUSH_AFTER, _END_AFTER = 3, 6  # idle steps: each of them is checked by SGLang
_MOST_STEPS = 4000


class Player:
    """Stands where the scheduler's two sockets are: `receive` and `send` have their signatures.

    Calls `at_round_end` when the scheduler is idle at the end of a round, and `at_end` after the last.
    """

    def __init__(self, events, rounds, at_round_end, at_end):
        self._events, self._num_rounds = events, rounds
        self._at_round_end, self._at_end = at_round_end, at_end
        self._last = max(event.step for event in events)
        self._round = self._step = self._idle = 0
        self._running = set()
        self.steps = 0
        self.tokens = defaultdict(list)
        self.ends = {}  # request -> how it ended, tokens found in the cache, times retracted
        self.aborted = set()
        self.flushed = []

    @property
    def running(self):
        """Requests without an end, in order."""
        return sorted(self._running)

    def receive(self, local):
        """What reaches the scheduler at this step."""
        self.steps += 1
        assert self.steps <= _MOST_STEPS, f"the requests {self.running} never end"
        messages = [self._message(event) for event in self._events if event.step == self._step]
        self._step += 1
        if self._step > self._last and not self._running:
            messages += self._idle_messages()
        return [*(local or ()), *messages]

    def send(self, output):
        """What the scheduler answers."""
        kind = type(output).__name__
        if kind == "BatchTokenIDOutput":
            self._take_tokens(output)
        elif kind == "AbortReq":
            self._running.discard(output.rid)
            self.aborted.add(output.rid)
        elif kind == "FlushCacheReqOutput":
            self.flushed.append(bool(output.success))

    def _message(self, event):
        request = f"{self._round}/{event.request}"
        if not event.prompt:
            return AbortReq(rid=request)
        self._running.add(request)
        sampling = SamplingParams(max_new_tokens=event.new_tokens, temperature=0.0, ignore_eos=True)
        sampling.normalize(None)
        absent = dict.fromkeys(("input_text", "input_embeds", "mm_inputs", "token_type_ids", "token_ids_logprob"))
        return TokenizedGenerateReqInput(
            rid=request,
            input_ids=array("q", event.prompt),
            sampling_params=sampling,
            return_logprob=False,
            logprob_start_len=-1,
            top_logprobs_num=0,
            stream=False,
            **absent,
        )

    def _idle_messages(self):
        self._idle += 1
        if self._idle == _FLUSH_AFTER and self._round == 0:
            return [FlushCacheReqInput()]
        if self._idle == _END_AFTER:
            self._at_round_end()
            self._round, self._step, self._idle = self._round + 1, 0, 0
            if self._round == self._num_rounds:
                self._step = self._last + 1  # what is left of the loop brings nothing new
                self._at_end()
        return []

    def _take_tokens(self, output):
        retractions = output.retraction_counts or [0] * len(output.rids)
        for index, request in enumerate(output.rids):
            if output.output_ids is not None:
                self.tokens[request] += list(output.output_ids[index])
            if (reason := output.finished_reasons[index]) is not None:
                self._running.discard(request)
                self.ends[request] = (reason["type"], int(output.cached_tokens[index]), int(retractions[index]))
