"""Random pauses before ops, to try other interleavings."""

import random
import time

import pytest

from executor.replay import jobs
from executor.replay.jobs import around
from executor.replay.ops import OnDone, Run, Work


def pausing(monkeypatch: pytest.MonkeyPatch, seed: int, most_us: int) -> None:
    """Let every op wait before it does anything, as long again for the same seed."""

    def paused(work: Work, run: Run) -> Run:
        made = around(work, run)
        draw = random.Random(f"{seed} {work.op.id}")

        def later(round_index: int) -> OnDone | None:
            time.sleep(draw.randint(0, most_us) / 1e6)
            return made(round_index)

        return later

    monkeypatch.setattr(jobs, "around", paused)
