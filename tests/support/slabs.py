"""The bytes of slabs that the jobs of a run are given."""

from typing import Any

import pytest

from executor.replay.jobs import Maker
from executor.replay.ops import Work
from plans.schema import Plan


def bound(monkeypatch: pytest.MonkeyPatch, plan: Plan) -> list[int]:
    """The end of the last byte of every device's slab that an op reads or writes, known when the
    plan's run has ended."""
    ends = [0] * len(plan.devices)
    made = Maker._work

    def noted(self: Maker, *told: Any) -> Work:
        work = made(self, *told)
        for flat in (*work.reads.values(), *work.writes.values()):
            for home in self.setup.places.values():
                slab = home.device.slab
                if flat.untyped_storage().data_ptr() == slab.untyped_storage().data_ptr():
                    end = flat.data_ptr() - slab.data_ptr() + flat.numel()
                    ends[home.number] = max(ends[home.number], end)
        return work

    monkeypatch.setattr(Maker, "_work", noted)
    return ends
