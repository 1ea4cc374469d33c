"""A terminal shows a table of the run that stays; a file has lines."""

import io
import os
import pty
import re
import sys
import time
from itertools import pairwise
from pathlib import Path
from threading import Thread

import pytest
from support import handmade
from support.chains import tasks_for
from support.fit import fit, lasting

from executor import run
from executor.driver import Options
from executor.records import live
from executor.records.live import Live
from executor.records.progress import Progress
from executor.replay import Recorder
from plans.runlog import OpRecord
from profiles import console

pytest.importorskip("rich")


class Terminal:
    """A pseudo-terminal in the place of stderr, and what it was shown."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._own, other = pty.openpty()
        self.text = ""
        self._stream = os.fdopen(other, "w")
        monkeypatch.setattr(sys, "stderr", self._stream)
        monkeypatch.setenv("TERM", "xterm")
        monkeypatch.setenv("COLUMNS", "200")
        self._reader = Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        try:
            while data := os.read(self._own, 1 << 16):
                self.text += data.decode()
        except OSError:  # its other end is closed
            pass

    def shown(self) -> str:
        """All that it was shown, once nobody writes there."""
        self._stream.close()
        self._reader.join()
        return self.text


def drawn(folder: Path) -> None:
    """A run that lasts for some drawings."""
    plan = handmade.PLANS["streamed"]()
    tasks = tasks_for(plan)
    run(lasting(fit(plan, tasks), 80), tasks, Options(folder=folder))


def test_a_terminal_shows_devices_and_tasks(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Ops and steps as they come, in a table that goes in the end; the log has nothing of it."""
    terminal = Terminal(monkeypatch)
    monkeypatch.setattr(live, "_APART_S", (0, 0))  # as often as it can
    drawn(tmp_path)
    text = terminal.shown()
    name = handmade.PLANS["streamed"]().tasks[0].name
    for told in ("device", "planned", "actual", f"{name}.s", "/80", " left"):
        assert told in text, text
    assert len(set(re.findall(r"(\d+)/80 ", text))) > 1  # it was drawn anew
    assert "\x1b[?25h" in text  # the cursor is there
    assert "planned" not in (tmp_path / "log.jsonl").read_text()


def test_a_file_has_lines(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Where stderr is no terminal nothing is drawn, whatever the environment says."""
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    drawn(tmp_path)
    assert "\x1b" not in sys.stderr.getvalue()  # type: ignore[attr-defined]


def test_without_rich_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    """In a line, and lines follow."""
    terminal = Terminal(monkeypatch)
    monkeypatch.setitem(sys.modules, "rich.live", None)
    assert live.live() is None
    assert "pip install rich" in terminal.shown()


def test_long_work_is_named_while_it_goes_on(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """In a line, and on a terminal in one that moves and goes in the end."""
    with live.working("planning"):
        assert capsys.readouterr().err == "planning\n"
    terminal = Terminal(monkeypatch)
    with live.working("planning"):
        time.sleep(0.2)
    assert "\x1b[2K" in terminal.shown()  # the line is cleared
    assert terminal.text.count("planning") > 1


def test_messages_come_above_the_table(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whole, each drawn before the table that follows."""
    terminal = Terminal(monkeypatch)
    table = Live()
    table.show(lambda: ("head", [[("device", "op"), ("cpu0", "a.s0.F0")]]))
    console.warn("task a: something")
    table.close()
    text = terminal.shown()
    assert "warning: task a: something" in text
    assert text.index("a.s0.F0") < text.index("warning:") < text.rindex("a.s0.F0")
    assert "\x1b[2K" in text[: text.index("warning:")]  # the table went from its lines before


def test_drawing_takes_little_of_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """At most four a second, and fewer where a drawing takes longer."""
    terminal = Terminal(monkeypatch)
    now, made = [100.0], list[float]()
    monkeypatch.setattr(time, "perf_counter", lambda: now[0])

    def slow() -> tuple[str, list[list[tuple[str, ...]]]]:
        made.append(now[0])
        now[0] += 0.01 if len(made) > 2 else 0
        return "head", []

    table = Live()
    while now[0] < 110:
        table.show(slow)
        now[0] += 0.05
    table.close()
    assert "head" in terminal.shown()
    apart = [b - a for a, b in pairwise(made)]
    assert all(0.25 <= gap < 0.35 for gap in apart[:2])
    assert all(2 <= gap < 2.2 for gap in apart[2:])
    assert len(made) > 5


def test_the_latest_op_of_each_device_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """By the record that came last, on the device of its stream."""
    terminal = Terminal(monkeypatch)
    plan = handmade.PLANS["streamed"]()
    progress = Progress(plan, Recorder(plan.tasks))
    first, second = [op.id for op in plan.programs[0].round if op.queue.device == 0][:2]
    progress.show([OpRecord(0, first, 3, 0, 1, False), OpRecord(0, second, 3, 1, 2, False)])
    progress.close()
    assert second in terminal.shown()
    assert [op.op for op in progress._ops.values()] == [second]
