"""Random pauses before ops, to try other interleavings."""

import random
import time
from collections.abc import Callable

import pytest

from executor.devices import Mark
from executor.replay import launches
from executor.replay.launches import launch_of
from executor.replay.ops import Run, Work
from executor.replay.tickets import Launch, OnDone, Stream


def pausing(monkeypatch: pytest.MonkeyPatch, seed: int, most_us: int) -> None:
    """Let every op wait before it does anything, as long again for the same seed."""

    def paused(work: Work, run: Run, stream: Stream, check: Callable[[], None]) -> Launch:
        launch = launch_of(work, run, stream, check)
        draw = random.Random(f"{seed} {work.op.id}")

        def later(round_index: int) -> tuple[Mark, Mark, OnDone | None]:
            time.sleep(draw.randint(0, most_us) / 1e6)
            return launch(round_index)

        return later

    monkeypatch.setattr(launches, "launch_of", paused)
