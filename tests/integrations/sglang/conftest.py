"""Comparisons with SGLang itself run on request, in the interpreter that has it; see `make test-sglang`."""

import os
import sys

from paths import ROOT

for part in ("allocators", "conformance"):  # the watcher of devices; the replayer of scripts and its drivers
    sys.path.append(str(ROOT / "tests" / part))

collect_ignore_glob = [] if os.environ.get("KVSTEAD_SGLANG_TESTS") == "1" else ["test_peer_*.py"]
