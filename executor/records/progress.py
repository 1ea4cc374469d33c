"""The progress of tasks, and their expected ends: the plan's times, as late as it runs so far."""

import sys
import time
from collections.abc import Mapping, Sequence

from executor.records.live import Rows, live
from executor.replay import Recorder
from plans.runlog import DropRecord, Line, OpRecord
from plans.schema import Plan, Program, Segment
from plans.timing import duration_us, part, runs
from profiles.units import show_us

_SHOWN = 4  # tasks on a line
_ROWS = 12  # devices and tasks in a table
_SILENCE_S = 10.0  # between lines where there is no table


class Progress:
    """Shows on stderr how far the tasks are: a table on a terminal, otherwise a line now and
    then."""

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
        self._plan = plan
        self._table = live()
        self._ops: dict[str, OpRecord] = {}  # of each device the latest
        self._streams = {
            program.name: {op.id: op.queue.device for op in program.ops}
            for program in (plan.programs if self._table else ())
        }

    def show(self, lines: Sequence[Line]) -> None:
        """Show what these records say, if it is time."""
        self._dropped |= {line.task for line in lines if isinstance(line, DropRecord)}
        if self._table is not None:
            self._see(lines)
            self._table.show(self._tables)
        elif time.perf_counter() - self._shown > _SILENCE_S:
            self._shown = time.perf_counter()
            print(self.line(self._recorder.now()), file=sys.stderr, flush=True)

    def close(self) -> None:
        if self._table is not None:
            self._table.close()

    def _see(self, lines: Sequence[Line]) -> None:
        """Note the latest op of each device."""
        seen: dict[str, OpRecord] = {}
        for line in reversed(lines):
            if len(seen) == len(self._plan.devices):
                break
            if isinstance(line, OpRecord):
                segment = self._plan.segments[line.segment]
                at = self._streams[segment.program].get(line.op)
                if at is not None:
                    seen.setdefault(self._plan.devices[segment.devices[at]].name, line)
        self._ops |= seen

    def _tables(self) -> tuple[str, list[Rows]]:
        """A line on the whole run; tables of devices with their latest ops and of running tasks."""
        ends, recorder = self.ends_us(), self._recorder
        devices: list[Sequence[str]] = [("device", "op", "round")]
        for device in self._plan.devices[:_ROWS]:
            op = self._ops.get(device.name)
            devices.append((device.name, op.op, str(op.round)) if op else (device.name, "", ""))
        running = self._running(ends)
        heads = ("task", "step", "loss", "", "planned", "actual", "last step at")
        tasks: list[Sequence[str]] = [heads]
        for name in running[:_ROWS]:
            done = len(recorder.losses[name])
            times = self.planned_us(name, done), recorder.ended_us[name], ends[name]
            step, loss = f"{done}/{self._steps[name]}", f"{_latest(recorder.losses[name]):.4g}"
            tasks.append((name, step, loss, self._judged(name), *map(show_us, times)))
        for rows, whole in ((devices, len(self._plan.devices)), (tasks, len(running))):
            if whole > _ROWS:
                rows.append((f"{whole - _ROWS} more", *[""] * (len(rows[0]) - 1)))
        return self._head(recorder.now(), ends), [devices, tasks]

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
        """`3/10 steps, 31.00 s, 55.00 s left; a 2/5 loss 4.21 last step at 60.00 s; ...`"""
        ends = self.ends_us()
        return "; ".join([self._head(elapsed_us, ends), *self._under_way(ends)])

    def _head(self, elapsed_us: int, ends: Mapping[str, int]) -> str:
        done = {n: len(by) for n, by in self._recorder.losses.items()}
        left = max(
            (end - elapsed_us for n, end in ends.items() if done[n] < self._steps[n]), default=0
        )
        head = f"{sum(done[n] for n in ends)}/{sum(self._steps[n] for n in ends)} steps"
        head += f", {show_us(elapsed_us)}"
        if any(done[n] for n in ends):
            head += f", {show_us(max(left, 0))} left"
        return head

    def _running(self, ends_us: Mapping[str, int]) -> list[str]:
        """The tasks that have begun and not ended."""
        losses = self._recorder.losses
        return [name for name in ends_us if 0 < len(losses[name]) < self._steps[name]]

    def _under_way(self, ends_us: Mapping[str, int]) -> list[str]:
        """The first few tasks under way: steps done, latest losses, and expected ends."""
        losses, running, shown = self._recorder.losses, self._running(ends_us), []
        for name in running[:_SHOWN]:
            said = [f"{name} {len(losses[name])}/{self._steps[name]}"]
            said += [f"loss {_latest(losses[name]):.4g}", self._judged(name)]
            shown.append(f"{' '.join(filter(None, said))} last step at {show_us(ends_us[name])}")
        return shown + ([f"{len(running) - _SHOWN} more"] if len(running) > _SHOWN else [])

    def _judged(self, task: str) -> str:
        """The latest evaluation: `val 4.21 accuracy 0.5`; empty where there is none."""
        val, known = self._recorder.val_losses[task], self._recorder.metrics[task]
        told = {"val": _latest(val)} if val else {}
        told |= known[max(known)] if known else {}
        return " ".join(f"{name} {value:.4g}" for name, value in told.items())


def _latest(by_step: Mapping[int, float]) -> float:
    return by_step[max(by_step)]
