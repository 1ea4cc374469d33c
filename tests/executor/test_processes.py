"""What several processes agree on before they train."""

import signal
from types import SimpleNamespace
from typing import Any

import pytest

from executor import distributed, processes
from executor.distributed import World
from executor.errors import UsageError
from profiles import console


def test_a_refusal_keeps_its_exit_code_though_torchrun_ends_process_0_meanwhile(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Process 0 tells the others of a plan that it refuses, whatever signal comes meanwhile."""
    said: list[str] = []

    def ended(*_: Any) -> None:
        signal.raise_signal(signal.SIGTERM)

    def refused(_: Any) -> None:
        raise UsageError("no such task")

    board = SimpleNamespace(
        world=World(0, 2),
        prepare_s=1.0,
        say=lambda key, _: said.append(key),
        wait=ended,
    )
    monkeypatch.setattr(distributed, "world", lambda: board.world)
    monkeypatch.setattr(distributed, "meet", lambda *_: board)
    monkeypatch.setattr(processes, "_end_with_agent", lambda _: None)
    asked: Any = SimpleNamespace(given=refused, stall_seconds=None)
    with console.heard((signal.SIGTERM,), lambda *_: pytest.fail("the signal has ended it")):
        assert processes.main(asked, lambda *_: 0) == 2
    assert said[0] == "verdict"
    assert "no such task" in capsys.readouterr().err
