"""The progress of tasks, and their expected ends: the plan's times, as late as it runs so far."""

from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

from plans.metrics import duration_us
from plans.schema import Plan, Program, Segment
from profiles.units import show_us

_SHOWN = 4  # tasks on a line


class Standing(NamedTuple):
    """done: steps of this run, of `steps`; loss, val_loss: of the latest step and evaluation, None
    before the first; end_us: expected end of the last step, µs since the run began."""

    name: str
    done: int
    steps: int
    loss: float | None
    val_loss: float | None
    end_us: int


class Progress:
    """The plan's times of steps, which those of the run are compared with."""

    def __init__(self, plan: Plan) -> None:
        self.steps = {task.name: task.steps for task in plan.tasks}
        self._runs: dict[str, list[tuple[Segment, Program]]] = {name: [] for name in self.steps}
        for segment in plan.segments:
            program = plan.program(segment.program)
            for name in () if program.evaluates else program.tasks:
                self._runs[name].append((segment, program))

    def planned_us(self, task: str, done: int) -> int:
        """When the task should have done so many steps (one at least), in µs of the plan."""
        for segment, program in self._runs[task]:
            if done <= segment.rounds:
                return segment.start_us + duration_us(program, done) - program.leave_us
            done -= segment.rounds
        return max(segment.end_us for segment, _ in self._runs[task])

    def standings(
        self,
        losses: Mapping[str, Mapping[int, float]],
        val_losses: Mapping[str, Mapping[int, float]],
        ended_us: Mapping[str, int],
        dropped: Collection[str],
    ) -> list[Standing]:
        """The progress of every task that was not dropped, from its losses and times so far.

        A task that has not begun is as late as all others together.
        """
        begun = {n: self.planned_us(n, len(losses[n])) for n in self.steps if losses[n]}
        late = sum(ended_us[name] for name in begun) / max(1, sum(begun.values())) if begun else 1.0
        found = []
        for name, steps in self.steps.items():
            if name not in dropped:
                ratio = ended_us[name] / max(1, begun[name]) if name in begun else late
                end = int(ratio * self.planned_us(name, steps))
                latest = _latest(losses[name]), _latest(val_losses[name])
                found.append(Standing(name, len(losses[name]), steps, *latest, end))
        return found


def _latest(by_step: Mapping[int, float]) -> float | None:
    return by_step[max(by_step)] if by_step else None


def line(standings: Sequence[Standing], elapsed_us: int) -> str:
    """`3/10 steps, 31.00 s, 55.00 s left; a 2/5 loss 4.21 done at 60.00 s; ...`"""
    done, total = sum(s.done for s in standings), sum(s.steps for s in standings)
    left = max((s.end_us - elapsed_us for s in standings if s.done < s.steps), default=0)
    head = f"{done}/{total} steps, {show_us(elapsed_us)}"
    if done:
        head += f", {show_us(max(left, 0))} left"
    return "; ".join([head, *tasks(standings)])


def tasks(standings: Sequence[Standing]) -> list[str]:
    """The first few tasks under way: steps done, latest losses, and expected ends."""
    running = [s for s in standings if 0 < s.done < s.steps]
    shown = []
    for s in running[:_SHOWN]:
        val = "" if s.val_loss is None else f" val {s.val_loss:.4g}"
        done = f"{s.name} {s.done}/{s.steps} loss {s.loss:.4g}{val}"
        shown.append(f"{done} done at {show_us(s.end_us)}")
    return shown + ([f"{len(running) - _SHOWN} more"] if len(running) > _SHOWN else [])
