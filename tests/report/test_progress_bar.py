import io
import sys

import pytest

from kvstead.replay.simulate import Progress
from kvstead.report.console import error_console, output_console
from kvstead.report.progress import loading_bar, replay_bar

PROGRESS = Progress(clock_s=3723.0, done=12, total=80, running=7, waiting=3, held_bytes=250, total_bytes=1000)


class Terminal(io.StringIO):
    def isatty(self):
        """Pretend to be one."""
        return True


def terminal_for(monkeypatch):
    stream = Terminal()
    monkeypatch.setattr(sys, "stderr", stream)
    monkeypatch.setenv("COLUMNS", "160")
    monkeypatch.setenv("TERM", "xterm")
    return stream


def test_a_terminal_sees_clock_requests_and_pool(monkeypatch):
    """The bar shows the trace's clock, requests done and at work, and the pool's use."""
    terminal = terminal_for(monkeypatch)
    with replay_bar() as show:
        show(PROGRESS)
        show(PROGRESS)
    text = terminal.getvalue()
    for part in ("clock 1:02:03", "12/80", "7 running, 3 waiting", "pool 25.00 %"):
        assert part in text


def test_a_terminal_sees_each_part_of_a_loading(monkeypatch):
    """The bar names what is done now, whatever its name has in it, and counts its parts."""
    terminal = terminal_for(monkeypatch)
    with loading_bar() as show:
        show("converting [bold]model", 3, 40)
        show("loading", 1, 7)
        show("loading", 7, 7)
    text = terminal.getvalue()
    for part in ("converting [bold]model", "3/40", "loading", "7/7"):
        assert part in text


@pytest.mark.parametrize("force", ["FORCE_COLOR", "TTY_COMPATIBLE"])
@pytest.mark.parametrize(("bar", "progress"), [(replay_bar, [PROGRESS]), (loading_bar, ["loading", 1, 2])])
def test_nothing_is_shown_without_a_terminal(monkeypatch, force, bar, progress):
    """No byte goes to a standard error that is no terminal, whatever the environment claims."""
    stream = io.StringIO()
    monkeypatch.setattr(sys, "stderr", stream)
    monkeypatch.setenv(force, "1")
    with bar() as show:
        show(*progress)
    assert stream.getvalue() == ""


def test_tables_go_where_standard_streams_point_now(capsys):
    """Consoles follow redirected streams, and do not break long lines in a pipe at 80 columns."""
    output_console().print("o" * 120)
    error_console().print("e" * 120)
    assert tuple(capsys.readouterr()) == ("o" * 120 + "\n", "e" * 120 + "\n")
