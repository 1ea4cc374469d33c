"""The progress of tasks, and their expected ends: the plan's times, as late as it runs so far."""

import sys
import time
from collections.abc import Mapping, Sequence
from functools import partial

from tqdm import tqdm

from executor.replay import Recorder
from plans.runlog import DropRecord, Line, StepRecord
from plans.schema import Plan, Program, Segment
from plans.timing import duration_us, part, runs
from profiles.units import show_us

_SHOWN = 4  # tasks on a line
_SILENCE_S = 10.0  # between lines where there is no bar


class Progress:
    """Shows on stderr how far the tasks are: a bar on a terminal, otherwise a line now and then."""

    def __init__(self, plan: Plan, recorder: Recorder) -> None:
        self._recorder = recorder
        self._steps = {task.name: task.steps for task in plan.tasks}
        self._runs: dict[str, list[tuple[Segment, Program]]] = {name: [] for name in self._steps}
        for segment in plan.segments:
            program = plan.program(segment.program)
            for name in () if program.evaluates else program.tasks:
                self._runs[name].append((segment, program))
        self._dropped: set[str] = set()
        self._shown = time.perf_counter()
        total, known = sum(self._steps.values()), sum(map(len, recorder.losses.values()))
        bar = partial(tqdm, total=total, initial=known, unit="step", leave=False)
        self._bar = bar() if sys.stderr.isatty() else None

    def show(self, lines: Sequence[Line]) -> None:
        """Show what these records say, if it is time."""
        steps = sum(isinstance(line, StepRecord) for line in lines)
        self._dropped |= {line.task for line in lines if isinstance(line, DropRecord)}
        if self._bar is not None and steps:
            self._bar.update(steps)
            self._bar.set_postfix_str("; ".join(self._under_way(self.ends_us())), refresh=False)
        elif self._bar is None and time.perf_counter() - self._shown > _SILENCE_S:
            self._shown = time.perf_counter()
            print(self.line(self._recorder.now()), file=sys.stderr, flush=True)

    def close(self) -> None:
        if self._bar is not None:
            self._bar.close()

    def planned_us(self, task: str, done: int) -> int:
        """When the task should have done so many steps (one at least), in µs of the plan."""
        for segment, program in self._runs[task]:
            if done <= segment.rounds:
                kinds = part(runs(segment), 0, done)
                return segment.start_us + duration_us(program, done, kinds) - program.leave_us
            done -= segment.rounds
        return max(segment.end_us for segment, _ in self._runs[task])

    def left_us(self) -> int:
        """The time that the plan has for what is left of it."""
        done = {name: len(by) for name, by in self._recorder.losses.items()}
        return max(
            (
                self.planned_us(name, steps)
                - (self.planned_us(name, done[name]) if done[name] else 0)
                for name, steps in self._steps.items()
                if name not in self._dropped and done[name] < steps
            ),
            default=0,
        )

    def ends_us(self) -> dict[str, int]:
        """When the tasks that were not dropped should end, in µs of the run. One that has not begun
        is as late as all others together."""
        ended, losses = self._recorder.ended_us, self._recorder.losses
        planned = {name: self.planned_us(name, len(by)) for name, by in losses.items() if by}
        together = sum(ended[name] for name in planned) / max(1, sum(planned.values()))
        late = {name: ended[name] / max(1, us) for name, us in planned.items()}
        return {
            name: int(late.get(name, together if planned else 1) * self.planned_us(name, steps))
            for name, steps in self._steps.items()
            if name not in self._dropped
        }

    def line(self, elapsed_us: int) -> str:
        """`3/10 steps, 31.00 s, 55.00 s left; a 2/5 loss 4.21 done at 60.00 s; ...`"""
        ends, done = self.ends_us(), {n: len(by) for n, by in self._recorder.losses.items()}
        left = max(
            (end - elapsed_us for n, end in ends.items() if done[n] < self._steps[n]), default=0
        )
        head = f"{sum(done[n] for n in ends)}/{sum(self._steps[n] for n in ends)} steps"
        head += f", {show_us(elapsed_us)}"
        if any(done[n] for n in ends):
            head += f", {show_us(max(left, 0))} left"
        return "; ".join([head, *self._under_way(ends)])

    def _under_way(self, ends_us: Mapping[str, int]) -> list[str]:
        """The first few tasks under way: steps done, latest losses, and expected ends."""
        losses, val_losses = self._recorder.losses, self._recorder.val_losses
        running = [name for name in ends_us if 0 < len(losses[name]) < self._steps[name]]
        shown = []
        for name in running[:_SHOWN]:
            val = f" val {_latest(val_losses[name]):.4g}" if val_losses[name] else ""
            known = self._recorder.metrics[name]
            for metric, value in known[max(known)].items() if known else ():
                val += f" {metric} {value:.4g}"
            step = f"{name} {len(losses[name])}/{self._steps[name]}"
            loss = f"loss {_latest(losses[name]):.4g}{val}"
            shown.append(f"{step} {loss} done at {show_us(ends_us[name])}")
        return shown + ([f"{len(running) - _SHOWN} more"] if len(running) > _SHOWN else [])


def _latest(by_step: Mapping[int, float]) -> float:
    return by_step[max(by_step)]
