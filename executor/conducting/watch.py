"""Stalls: segments in which nothing ends for too long, and what waits for them."""

import time
from collections.abc import Iterator, Mapping

from executor.conducting.turns import Turns
from executor.replay import Activity, Failure, Settings
from plans.schema import Plan


class Watch:
    """Looks for stalls in segments.

    Where a failure ends the run, the run is stalled when no op ends in any of them. With
    `keep_going` each counts alone: a silent one fails and is stopped; one that is silent as long
    again is lost, and the tasks fail that need what its ops may still use.
    """

    def __init__(self, plan: Plan, settings: Settings, turns: Turns) -> None:
        self.lost: dict[int, Activity] = {}  # stopped, and some op does not return
        self._limit_s = patience_s(plan, settings)
        self._keep_going = settings.keep_going
        self._turns = turns
        self._failed: dict[int, float] = {}  # when one was found silent

    def look(self, active: dict[int, Activity]) -> Iterator[Failure]:
        """The failures by silence. Who is lost leaves `active`."""
        now = time.perf_counter()
        # One that has ended waits only for this thread, which may have been writing.
        latest = {index: one.latest for index, one in active.items() if not one.ended}
        silence = now - max(latest.values(), default=now)
        if silence > self._limit_s and not self._keep_going:
            yield Failure((), self._stalled(silence, state(active)), fatal=True)
            return
        for index, at in latest.items():
            if self._keep_going and now - max(at, self._failed.get(index, at)) > self._limit_s:
                text = self._stalled(now - at, "; ".join(active[index].states()))
                if failure := active[index].stuck(text):
                    self._failed[index] = now
                    yield failure
                else:
                    self.lost[index] = active.pop(index)
        for index in self._turns.blocked(self.lost) if self.lost else ():
            name, held = self._turns.names[index], state(self.lost)
            text = f"{name} waits for ops of a dropped task that do not return: {held}"
            yield Failure(self._turns.tasks[index], text)

    def _stalled(self, silence: float, state: str) -> str:
        return (
            f"no op ended for {silence:.1f} s, the limit is {self._limit_s:g}: {state}; "
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
