"""One run of SGLang's real scheduler, with its worker, model runner, pools and prefix cache, in this process on a CPU.

The plugin is loaded as SGLang's scheduler process loads it. Of SGLang only its two ends are exchanged, where requests
come in and answers go out; what models with windows or states need on a CPU besides is in `shims`.
"""

import logging
import os
import time
import traceback

CHECKS = {
    "SGLANG_ENABLE_STRICT_MEM_CHECK_DURING_BUSY": "1",
    "SGLANG_ENABLE_STRICT_MEM_CHECK_DURING_IDLE": "1",
    "SGLANG_CHECK_KV_PAGE_INVARIANTS": "1",
}
SERVING = {  # what all runs have in common
    "device": "cpu",
    "skip_tokenizer_init": True,
    "dtype": "float32",
    "disable_cuda_graph": True,
    "grammar_backend": "none",
    "log_level": "warning",
    "random_seed": 0,
}


def run(configuration, model, mode, port):
    """What a run in mode `off`, `strict` or `audit` did, as a dict for JSON; `port` is for SGLang's own use."""
    os.environ["KVSTEAD_SGLANG"] = mode
    if configuration.checked:
        os.environ.update(CHECKS)
    from sglang.srt.plugins import load_plugins

    from engine import shims

    shims.install_for(configuration)
    arguments = _arguments(configuration, model, port)
    warned = _Warnings()
    logging.getLogger("kvstead.sglang").addHandler(warned)
    start = time.process_time()
    load_plugins()
    scheduler = _scheduler(arguments)
    started = time.process_time() - start
    return _play(configuration, scheduler) | {"warned": warned.messages, "seconds to start": started}


class _Warnings(logging.Handler):
    """Keeps what kvstead warns of."""

    def __init__(self):
        super().__init__(logging.WARNING)
        self.messages = []

    def emit(self, record):
        self.messages.append(record.getMessage())


def _arguments(configuration, model, port):
    from engine.shims import STATES, attention_for
    from sglang.srt.server_args import ServerArgs

    states = {"max_mamba_cache_size": configuration.states}
    arguments = ServerArgs(
        model_path=str(model),
        attention_backend=attention_for(configuration),
        max_total_tokens=configuration.tokens,
        max_running_requests=configuration.running,
        chunked_prefill_size=configuration.chunk,
        page_size=configuration.page_size,
        disable_overlap_schedule=not configuration.overlap,
        enable_unified_memory=configuration.unified,
        nccl_port=port,
        **SERVING,
        **(states if configuration.model in STATES else {}),
        **configuration.settings,
    )
    arguments.resolve_once()
    arguments.check_server_args()
    return arguments


def _scheduler(arguments):
    """As SGLang's scheduler process makes it."""
    from sglang.srt.managers import scheduler as module
    from sglang.srt.runtime_context import SpawnRanks, publish
    from sglang.srt.server_args import PortArgs

    ports = PortArgs.init_new(arguments)
    publish(arguments, role="scheduler", ranks=SpawnRanks(world_rank=0, dp_rank=None, gpu_id=0))
    module.configure_scheduler_process(arguments, 0)
    return module.Scheduler(arguments, ports)


def _play(configuration, scheduler):
    from engine.player import Player
    from engine.watch import Watch
    from engine.workload import WORKLOADS
    from sglang.srt.managers import scheduler as module
    from sglang.srt.managers.scheduler_components.output_sender import SenderWrapper
    from sglang.srt.managers.scheduler_components.request_receiver import SchedulerRequestReceiver

    module.TEST_RETRACT = configuration.retract_every > 0
    module.TEST_RETRACT_INTERVAL = configuration.retract_every
    watch = Watch(scheduler)
    events = WORKLOADS[configuration.workload](configuration.requests)

    def stop():
        scheduler.gracefully_exit = True

    player = Player(events, configuration.rounds, watch.end_round, stop)
    SchedulerRequestReceiver.recv_requests = lambda _, local_reqs=None: player.receive(local_reqs)
    SenderWrapper.send_output = lambda _, output, recv_obj=None: player.send(output)  # noqa: ARG005 - its signature
    error = None
    try:
        scheduler.run_event_loop()
    except BaseException:  # noqa: BLE001 - of whatever kind, it is what the run is about
        error = traceback.format_exc()
    checker = scheduler.invariant_checker
    return {
        "types": watch.types(),
        "error": error,
        "steps": player.steps,
        "tokens": player.tokens,
        "ends": player.ends,
        "unfinished": player.running,
        "aborted": sorted(player.aborted),
        "flushed": player.flushed,
        "batches": watch.batches,
        "snapshots": watch.snapshots,
        "checks": watch.checks,
        "evicted": watch.evicted,
        "leak warnings": checker.count_req_pool_leak_warnings + checker.count_memory_leak_warnings,
        "seconds": watch.seconds,
    }
