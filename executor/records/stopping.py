"""Rules that end a task early: `loss>3.5@200` looks at its loss once 200 steps are done, and
`val_loss>3.5@200` at that of its latest evaluation then.

Rules are looked at where a segment of the task ends, since only there is its state whole. Where an
evaluation follows, those about evaluations wait for it.
"""

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from math import isfinite

from executor.errors import UsageError

_RULE = re.compile(
    r"(?:(?P<task>[A-Za-z0-9_-]+):)?(?P<what>val_loss|loss)"
    r"(?P<sign>[<>])(?P<value>[^@]+)@(?P<step>\d+)"
)


@dataclass(frozen=True)
class Rule:
    """Stop `task` (None: any) when its loss is above or below `value` after `step` steps.

    evaluation: the loss of its latest evaluation, not that of its latest step."""

    text: str
    task: str | None
    above: bool
    value: float
    step: int
    evaluation: bool = False

    def stops(self, task: str, step: int, loss: float) -> bool:
        """True if the task is to end with this loss; one that is no number is above everything."""
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
        raise UsageError(
            f"--stop {text}: a rule is loss>3.5@200 or task:loss<0.1@200, or the same of val_loss"
        )
    above, of = match["sign"] == ">", match["what"] == "val_loss"
    return Rule(text, match["task"], above, value, int(match["step"]), of)


def check(rules: Sequence[Rule], tasks: Sequence[str], evaluated: Collection[str] = ()) -> None:
    """UsageError for a rule about a task that the plan does not have or, of those about val_loss,
    does not evaluate."""
    for rule in rules:
        if rule.task is not None and rule.task not in tasks:
            names = ", ".join(tasks)
            raise UsageError(f"--stop {rule.text}: the plan has no such task, only {names}")
        if rule.evaluation and (rule.task not in evaluated if rule.task else not evaluated):
            what = f"task {rule.task}" if rule.task else "any task"
            raise UsageError(
                f"--stop {rule.text}: the plan does not evaluate {what}; give the workload's Task "
                "evaluate=Evaluation(...), profile and build again"
            )


def stopped_by(
    rules: Sequence[Rule], task: str, step: int, loss: float | None, val_loss: float | None = None
) -> Rule | None:
    """The first rule that ends the task, `step` steps done and `loss` that of the last one,
    `val_loss` that of the latest evaluation; None: not to be looked at."""
    pairs = ((rule, val_loss if rule.evaluation else loss) for rule in rules)
    return next((r for r, seen in pairs if seen is not None and r.stops(task, step, seen)), None)
