"""Stalls: no op ends for too long."""

import time
from collections.abc import Mapping

from executor.replay import Activity, Settings
from plans.schema import Plan


class Watch:
    """Looks whether any op ends in the segments under way."""

    def __init__(self, plan: Plan, settings: Settings) -> None:
        self._limit_s = patience_s(plan, settings)

    def look(self, active: Mapping[int, Activity]) -> str:
        """The trouble with segments in none of which an op has ended for too long, if so."""
        # One that has ended waits only for this thread, which may have been writing.
        latest = [one.latest for one in active.values() if not one.ended]
        now = time.perf_counter()
        silence = now - max(latest, default=now)
        if silence <= self._limit_s:
            return ""
        return (
            f"no op ended for {silence:.1f} s, the limit is {self._limit_s:g}: {state(active)}; "
            "raise --stall-seconds if it is only slow"
        )


def state(active: Mapping[int, Activity]) -> str:
    """A text of the ops that run, then of those that wait and for which op."""
    lines = [line for one in active.values() for line in one.states()]
    return "; ".join(sorted(lines, key=lambda line: " waits for " in line)) or "no op"


def running(active: Mapping[int, Activity]) -> str:
    """A text of one op that runs, and how many more do."""
    lines = sorted(line for one in active.values() for line in one.states())
    lines = [line for line in lines if " waits for " not in line] or lines
    more = f" and {len(lines) - 1} more" if len(lines) > 1 else ""
    return f"{lines[0]}{more}" if lines else "no op"


def patience_s(plan: Plan, settings: Settings) -> float:
    """The silence that is a stall: as asked for, or twenty times the longest op that the plan
    predicts, a minute at least."""
    if settings.stall_seconds:
        return settings.stall_seconds
    longest = max(op.us for program in plan.programs for op in program.ops)
    return max(60.0, 20 * longest / 1e6)
