"""Imports SGLang once and forks a child for every run, as a scheduler process is when it loads its plugins.

python -m engine.server FOLDER: each line of the input is a list of runs that go side by side, as JSON: a configuration,
a mode and the file for what the run did; the answer is a line with their exit codes. Models are made in FOLDER.
"""

import json
import logging
import os
import socket
import sys
import traceback
from pathlib import Path

import torch
from engine.configurations import Configuration
from engine.driver import run
from engine.models import model_path


def _import_sglang():
    logging.disable(logging.CRITICAL)  # models that cannot be imported on a CPU are reported at length
    import sglang.srt.managers.scheduler
    import sglang.srt.models.registry
    import sglang.srt.server_args  # noqa: F401

    logging.disable(logging.NOTSET)


def _free_ports(number):
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(number)]
    ports = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return ports


def _fork(configuration, model, mode, target, port):
    """A child that leaves what it did in `target` and what it said beside it."""
    if child := os.fork():
        return child
    code = 1
    try:
        said = os.open(f"{target}.log", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        for stream in (1, 2):
            os.dup2(said, stream)
        Path(target).write_text(json.dumps(run(configuration, model, mode, port)))
        code = 0
    except BaseException:  # noqa: BLE001 - said in the log
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)  # the threads and sockets of the parent are not the child's to end


def main(home):
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what SGLang prints is no answer
    torch.set_num_threads(1)
    _import_sglang()
    for line in sys.stdin:
        runs = json.loads(line)
        made = [(Configuration(**one["configuration"]), one["mode"], one["target"]) for one in runs]
        paths = [model_path(home, configuration.model) for configuration, _, _ in made]
        children = [
            _fork(configuration, path, mode, target, port)
            for (configuration, mode, target), path, port in zip(made, paths, _free_ports(len(made)), strict=True)
        ]
        codes = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
        print(json.dumps(codes), file=answers, flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
