import io
import sys

import pytest

from kvstead.replay.simulate import Progress
from kvstead.report.console import error_console, output_console
from kvstead.report.progress import ProgressBar

PROGRESS = Progress(clock_s=3723.0, done=12, total=80, running=7, waiting=3, held_bytes=250, total_bytes=1000)


class Terminal(io.StringIO):
    def isatty(self):
        """Pretend to be one."""
        return True


def test_a_terminal_sees_clock_requests_and_pool(monkeypatch):
    """The bar shows the trace's clock, requests done and at work, and the pool's use."""
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setenv("COLUMNS", "160")
    monkeypatch.setenv("TERM", "xterm")
    with ProgressBar() as bar:
        bar.show(PROGRESS)
        bar.show(PROGRESS)
    text = terminal.getvalue()
    for part in ("clock 1:02:03", "12/80", "7 running, 3 waiting", "pool 25.00 %"):
        assert part in text


@pytest.mark.parametrize("force", ["FORCE_COLOR", "TTY_COMPATIBLE"])
def test_anything_else_sees_nothing(monkeypatch, force):
    """No byte goes to a standard error that is no terminal, whatever the environment claims."""
    stream = io.StringIO()
    monkeypatch.setattr(sys, "stderr", stream)
    monkeypatch.setenv(force, "1")
    with ProgressBar() as bar:
        bar.show(PROGRESS)
    assert stream.getvalue() == ""


def test_tables_go_where_standard_streams_point_now(capsys):
    """Consoles follow redirected streams, and do not break long lines in a pipe at 80 columns."""
    output_console().print("o" * 120)
    error_console().print("e" * 120)
    assert tuple(capsys.readouterr()) == ("o" * 120 + "\n", "e" * 120 + "\n")
