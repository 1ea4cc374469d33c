"""Rules that end a task early: `loss>3.5@200` looks at its loss once 200 steps are done.

Rules are looked at where a segment of the task ends, since only there is its state whole.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from math import isfinite

from executor.errors import UsageError

_RULE = re.compile(
    r"(?:(?P<task>[A-Za-z0-9_-]+):)?loss(?P<sign>[<>])(?P<value>[^@]+)@(?P<step>\d+)"
)


@dataclass(frozen=True)
class Rule:
    """Stop `task` (None: any) when its loss is above or below `value` after `step` steps."""

    text: str
    task: str | None
    above: bool
    value: float
    step: int

    def stops(self, task: str, step: int, loss: float) -> bool:
        """Whether the task is to end with this loss; one that is no number is above everything."""
        if self.task not in (None, task) or step < self.step:
            return False
        return not loss <= self.value if self.above else loss < self.value


def parse(text: str) -> Rule:
    """The rule `[task:]loss>NUMBER@STEP`; UsageError for anything else."""
    match = _RULE.fullmatch(text)
    try:
        value = float(match["value"]) if match else None
    except ValueError:
        value = None
    if match is None or value is None or not isfinite(value):
        raise UsageError(f"--stop {text}: a rule is loss>3.5@200 or task:loss<0.1@200")
    return Rule(text, match["task"], match["sign"] == ">", value, int(match["step"]))


def check(rules: Sequence[Rule], tasks: Sequence[str]) -> None:
    """UsageError for a rule about a task that the plan does not have."""
    for rule in rules:
        if rule.task is not None and rule.task not in tasks:
            names = ", ".join(tasks)
            raise UsageError(f"--stop {rule.text}: the plan has no such task, only {names}")


def stopped_by(rules: Sequence[Rule], task: str, step: int, loss: float) -> Rule | None:
    """The first rule that ends the task, `step` steps done and `loss` that of the last one."""
    return next((rule for rule in rules if rule.stops(task, step, loss)), None)
