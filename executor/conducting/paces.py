"""Finds a device that computes slower than the others, beside what the plan has for each."""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from statistics import median

import msgspec

from plans.runlog import Line, OpRecord, StepRecord
from plans.schema import Plan

_SLOW = 1.15  # times its peers
_STEPS = 20  # that are looked at together
_LEAST_US = 10_000_000  # of them, planned: shorter ones vary by themselves


class Pace(msgspec.Struct, array_like=True):
    """The time of a device's ops, actual and planned. op: the one that was late by most, with its
    two times. It is counted up in place: every op of a run comes by."""

    actual_us: int = 0
    planned_us: int = 0
    op: str = ""
    op_us: int = 0
    op_planned_us: int = 0

    def count(self, us: int, planned_us: int, op: str, op_us: int, op_planned_us: int) -> None:
        """Count so much more, of which this op was late by most."""
        self.actual_us += us
        self.planned_us += planned_us
        if op_us - op_planned_us > self.op_us - self.op_planned_us:
            self.op, self.op_us, self.op_planned_us = op, op_us, op_planned_us


class Paces:
    """The paces of devices since the last look, by number."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._known: dict[int, dict[str, tuple[int, int]]] = {}  # device and µs by segment, op
        self._paces: defaultdict[int, Pace] = defaultdict(Pace)
        self._steps = 0

    def add(self, lines: Iterable[Line]) -> None:
        """Count the ops among these records that devices compute."""
        for line in lines:
            if isinstance(line, OpRecord) and (known := self._ops(line.segment).get(line.op)):
                device, planned_us = known
                us = line.end_us - line.start_us
                self._paces[device].count(us, planned_us, line.op, us, planned_us)
            self._steps += isinstance(line, StepRecord)

    def merge(self, paces: Mapping[int, Pace]) -> None:
        """Count what these devices of other processes did."""
        for device, pace in paces.items():
            own = self._paces[device]
            own.count(pace.actual_us, pace.planned_us, pace.op, pace.op_us, pace.op_planned_us)

    def taken(self) -> dict[int, Pace]:
        """The paces since the last look."""
        taken, self._paces, self._steps = dict(self._paces), defaultdict(Pace), 0
        return taken

    def slow(self) -> str:
        """The device that is slower than the others, in words, if enough was seen to say so."""
        least_us = min((pace.planned_us for pace in self._paces.values()), default=0)
        if self._steps < _STEPS or least_us < _LEAST_US:
            return ""
        paces = self.taken()
        ratios = {number: pace.actual_us / pace.planned_us for number, pace in paces.items()}
        slowest = max(ratios, key=ratios.__getitem__)
        others = [ratio for number, ratio in ratios.items() if number != slowest]
        if not others or ratios[slowest] <= _SLOW * median(others):
            return ""
        late = paces[slowest]
        return (
            f"{self._plan.devices[slowest].name} computes {ratios[slowest]:.2f} times as long as "
            f"planned, the others {median(others):.2f} times; {late.op} took {late.op_us} us "
            f"instead of {late.op_planned_us}"
        )

    def _ops(self, index: int) -> Mapping[str, tuple[int, int]]:
        if index not in self._known:
            segment = self._plan.segments[index]
            self._known[index] = {
                op.id: (segment.devices[op.queue.device], op.us)
                for op in self._plan.program(segment.program).ops
                if op.queue.lane == "compute"
            }
        return self._known[index]
