"""Failures and the tasks that cannot go on after them: all of the run's, or some.

With `keep_going` a failed task is dropped, and with it every task that a segment yet to end trains
in one program with it: their ops share streams and rounds, and cannot go on apart.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from math import isfinite

_FP16_PATIENCE = 10  # steps in a row without a finite loss; fewer are how a loss scale is found


@dataclass(frozen=True)
class Failure:
    """One failure, and the op it happened in.

    tasks: those that cannot go on, one wherever an op failed. step: None outside of all steps.
    fatal: no task's numbers can be trusted any more. process: of several, the one that failed.
    """

    tasks: tuple[str, ...]
    text: str
    op: str = ""
    stream: str = ""
    round: int = 0
    step: int | None = None
    fatal: bool = False
    process: int | None = None

    def __str__(self) -> str:
        where = [f"{self.op} on {self.stream} in round {self.round}"] if self.op else []
        where += [] if self.process is None else [f"process {self.process}"]
        return f"{', '.join(where)}: {self.text}" if where else self.text


def trouble(losses: Mapping[int, float], step: int, precision: str) -> str:
    """The trouble with a task whose latest loss is that of `step`; empty while there is none."""
    patience = _FP16_PATIENCE if precision == "fp16-autocast" else 1
    if any(isfinite(losses.get(step - back, 0.0)) for back in range(patience)):
        return ""
    steps = f" and was no number in the {patience - 1} steps before" if patience > 1 else ""
    return f"the loss of step {step} is {losses[step]}{steps}"
