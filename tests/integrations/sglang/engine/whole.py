"""SGLang's engine as its users start it, with all its processes and nothing of it exchanged.

python -m engine.whole MODEL PAGE_SIZE: answers requests, aborts one, flushes the cache, answers the same once more, and
prints what came out as JSON.
"""

import json
import sys

from engine.driver import SERVING
from engine.workload import waves

_REQUESTS = 12


def _answers(engine):
    events = waves(_REQUESTS)
    sampling = [{"max_new_tokens": event.new_tokens, "temperature": 0.0, "ignore_eos": True} for event in events]
    answers = engine.generate(input_ids=[list(event.prompt) for event in events], sampling_params=sampling)
    return {event.request: answer["output_ids"] for event, answer in zip(events, answers, strict=True)}


async def _aborted(engine):
    """How a request ends that is aborted at its first token."""
    sampling = {"max_new_tokens": 400, "temperature": 0.0, "ignore_eos": True}
    prompt = list(waves(1)[0].prompt)
    parts = await engine.async_generate(input_ids=prompt, sampling_params=sampling, rid="aborted", stream=True)
    reason = None
    async for part in parts:
        if reason is None:
            engine.tokenizer_manager.abort_request(rid="aborted")
        reason = part["meta_info"]["finish_reason"] or {}
    return reason["type"]


def main(model, page_size):
    """Run it; every process of the engine loads the plugin by its entry point."""
    import sglang

    engine = sglang.Engine(
        model_path=model,
        attention_backend="torch_native",
        max_total_tokens=512,
        max_running_requests=8,
        chunked_prefill_size=64,
        page_size=page_size,
        **SERVING,
    )
    try:
        first = _answers(engine)
        ended = engine.loop.run_until_complete(_aborted(engine))
        flushed = engine.loop.run_until_complete(engine.tokenizer_manager.flush_cache(timeout_s=60)).success
        found = {"first": first, "ended": ended, "flushed": flushed, "again": _answers(engine)}
        found["kvstead"] = engine.get_server_info()["internal_states"][0].get("kvstead")
        sys.stdout.write(json.dumps(found) + "\n")
        sys.stdout.flush()
    finally:
        engine.shutdown()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
