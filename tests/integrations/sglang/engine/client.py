"""Asks a process that has SGLang (`server`) for runs of its scheduler."""

import json
import os
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
_ROOT = HERE.parents[3]
_PLACES = (_ROOT / "src", _ROOT / "benchmarks", HERE.parent, HERE / "site")


def environment(**settings):
    """That of a process that runs SGLang: what only a GPU has is stood in for, also in the processes that it starts."""
    quiet = {"PYTHONWARNINGS": "ignore", "TRANSFORMERS_VERBOSITY": "error", "OMP_NUM_THREADS": "1"}
    return os.environ | quiet | {"PYTHONPATH": ":".join(map(str, _PLACES))} | settings


class Engines:
    """One process for many runs, since importing SGLang takes longer than most of them; each is a child of it."""

    def __init__(self, home, python=sys.executable, **settings):
        self.home = home
        self._errors = (home / "server.log").open("w")
        self._process = subprocess.Popen(  # noqa: S603 - an interpreter of this project
            [str(python), "-m", "engine.server", str(home)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
            env=environment(**settings),
        )

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._process.stdin.close()
        self._process.stdout.close()
        self._process.wait(60)
        self._errors.close()

    def run(self, configuration, *modes):
        """What a run in each of the modes did, all of them side by side."""
        targets = {mode: self.home / f"{mode}.json" for mode in modes}
        runs = [
            {"configuration": configuration.as_json(), "mode": mode, "target": str(target)}
            for mode, target in targets.items()
        ]
        self._process.stdin.write(json.dumps(runs) + "\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline()
        assert answer, (self.home / "server.log").read_text()[-3000:]
        said = {mode: Path(f"{target}.log").read_text()[-3000:] for mode, target in targets.items()}
        assert not any(json.loads(answer)), said
        return [json.loads(target.read_text()) for target in targets.values()]
