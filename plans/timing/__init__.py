"""When ops run by the plan's numbers, and what follows from that for devices and tasks."""

from plans.timing.intervals import Interval, exposed_copy_us, overlaps, uncovered, union
from plans.timing.kinds import RoundKinds, Runs, joined, kinds_of, of_kind, part, runs, scaled
from plans.timing.phases import Phase, duration_us, kind_rounds, longest, phases, rounds_us
from plans.timing.predict import (
    busy_us,
    device_times,
    round_compute_us,
    round_exposed_us,
    round_reach,
    task_spans,
)
from plans.timing.steps import step_us
from plans.timing.timeline import OpBar, op_bars, plan_stream, rank, streams, timeline
