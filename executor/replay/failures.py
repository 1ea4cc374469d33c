"""Failures and the tasks that cannot go on after them: all of the run's, or some.

With `keep_going` a failed task is dropped, and with it every task that a segment yet to end trains
in one program with it: their ops share streams and rounds, and cannot go on apart.
"""

from dataclasses import dataclass
from math import isfinite

from plans.schema import Plan

_FP16_PATIENCE = 10  # steps in a row without a finite loss; fewer are how a loss scale is found


@dataclass(frozen=True)
class Failure:
    """One failure, and the op it happened in.

    tasks: those that cannot go on, one wherever an op failed. step: None outside of all steps.
    fatal: no task's numbers can be trusted any more.
    """

    tasks: tuple[str, ...]
    text: str
    op: str = ""
    stream: str = ""
    round: int = 0
    step: int | None = None
    fatal: bool = False

    def __str__(self) -> str:
        where = f"{self.op} on {self.stream} in round {self.round}: " if self.op else ""
        return where + self.text


class Losses:
    """Finds the tasks whose loss stays no number; one thread at a time per task."""

    def __init__(self, plan: Plan) -> None:
        self._patience = {
            task.name: _FP16_PATIENCE if task.precision == "fp16-autocast" else 1
            for task in plan.tasks
        }
        self._in_a_row = dict.fromkeys(self._patience, 0)

    def trouble(self, task: str, step: int, loss: float) -> str:
        """The trouble with a task that has this loss; empty while there is none."""
        count = 0 if isfinite(loss) else self._in_a_row[task] + 1
        self._in_a_row[task] = count
        if count < self._patience[task]:
            return ""
        steps = f" and was no number in the {count - 1} steps before" if count > 1 else ""
        return f"the loss of step {step} is {loss}{steps}"
