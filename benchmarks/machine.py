"""What the figures were measured on."""

from __future__ import annotations

import os
import platform
import re
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def cpu_model() -> str:
    """The processor's own name for itself."""
    cpuinfo = Path("/proc/cpuinfo")
    found = re.search(r"model name\s*: (.+)", cpuinfo.read_text()) if cpuinfo.exists() else None
    return found[1] if found else platform.processor() or platform.machine()


def num_cores() -> int:
    """Cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def label() -> str:
    """Short, for a file name: cores and processor."""
    words = re.sub(r"\(.*?\)|@.*|\b(CPU|Processor|with)\b|\d+-Core", " ", cpu_model())
    return f"{num_cores()}x-" + "-".join(re.findall(r"[a-z0-9]+", words.lower()))


def commit() -> str:
    """The commit of kvstead, with a plus where sources differ from it."""
    head = _git("rev-parse", "--short", "HEAD")
    return head + ("+" if _git("status", "--porcelain", "--untracked-files=no", "src") else "")


def _git(*arguments: str) -> str:
    done = subprocess.run(["git", *arguments], capture_output=True, text=True, cwd=ROOT, check=False)
    return done.stdout.strip() or ("" if done.returncode == 0 else "unknown")
