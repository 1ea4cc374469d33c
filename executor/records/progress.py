"""The progress of tasks, and their expected ends: the plan's times, as late as it runs so far."""

from collections.abc import Collection, Iterable, Mapping
from math import isfinite
from typing import NamedTuple

from plans.metrics import phase_starts
from plans.schema import Plan, Program, Segment
from profiles.units import show_us

_SHOWN = 4  # tasks on a line


class Standing(NamedTuple):
    """done: steps of this run, of `steps`; loss: of the latest one, None before the first.
    val_loss: of the latest evaluation.

    end_us: when the last step should be done, µs since the run began; of a task that is done,
    when it was.
    """

    name: str
    done: int
    steps: int
    loss: float | None
    end_us: int
    val_loss: float | None = None


class Progress:
    """The plan's own idea of when steps end, for comparing with what happens."""

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
                return phase_starts(program, segment, done - 1)[1] + program.round_us
            done -= segment.rounds
        return max(segment.end_us for segment, _ in self._runs[task])

    def states(
        self,
        losses: Mapping[str, Mapping[int, float]],
        ended_us: Mapping[str, int],
        dropped: Collection[str] = (),
        val_losses: Mapping[str, Mapping[int, float]] | None = None,
    ) -> list[Standing]:
        """Every task that was not dropped, from the losses and times of its steps so far.

        A task that has not begun is as late as all others together.
        """
        begun = {n: self.planned_us(n, len(losses[n])) for n in self.steps if losses[n]}
        late = sum(ended_us[name] for name in begun) / max(1, sum(begun.values())) if begun else 1.0
        found = []
        for name, steps in self.steps.items():
            if name not in dropped:
                ratio = ended_us[name] / max(1, begun[name]) if name in begun else late
                end = int(ratio * self.planned_us(name, steps))
                loss, val_loss = _latest(losses[name]), _latest((val_losses or {}).get(name, {}))
                found.append(Standing(name, len(losses[name]), steps, loss, end, val_loss))
        return found


def _latest(by_step: Mapping[int, float]) -> float | None:
    return by_step[max(by_step)] if by_step else None


def line(states: Iterable[Standing], elapsed_us: int) -> str:
    """`3/10 steps, 31.00 s, 55.00 s left; a 2/5 loss 4.21 done at 60.00 s; ...`"""
    known = list(states)
    done, total = sum(s.done for s in known), sum(s.steps for s in known)
    left = max((s.end_us for s in known if s.done < s.steps), default=elapsed_us) - elapsed_us
    head = f"{done}/{total} steps, {show_us(elapsed_us)}"
    if done:
        head += f", {show_us(max(left, 0))} left"
    return "; ".join([head, *tasks(known)])


def tasks(states: Iterable[Standing]) -> list[str]:
    """The first few tasks under way: steps done, latest loss, and when they should be done."""
    running = [s for s in states if 0 < s.done < s.steps]
    more = [f"{len(running) - _SHOWN} more"] if len(running) > _SHOWN else []
    return [*map(_words, running[:_SHOWN]), *more]


def _words(state: Standing) -> str:
    loss = "nan" if state.loss is None or not isfinite(state.loss) else f"{state.loss:.4g}"
    val = "" if state.val_loss is None else f" val {state.val_loss:.4g}"
    done = f"{state.name} {state.done}/{state.steps}"
    return f"{done} loss {loss}{val} done at {show_us(state.end_us)}"
