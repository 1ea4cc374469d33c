"""The rule `--stop-above LOSS@STEP`, which ends tasks early.

It is looked at where a segment of a task ends, since only there is its state whole.
"""

from dataclasses import dataclass
from math import isfinite


@dataclass(frozen=True)
class Above:
    """End a task whose latest loss is above `most` once it has so many steps; so is a loss that is
    no number."""

    most: float
    steps: int

    def __call__(self, task: str, step: int, loss: float | None, val_loss: float | None) -> str:
        if loss is None or step < self.steps or loss <= self.most:
            return ""
        return f"loss above {self.most:g} at step {self.steps}"


def above(text: str) -> Above:
    """The rule LOSS@STEP; ValueError says what is wrong with it."""
    most, _, steps = text.partition("@")
    try:
        value = float(most)
    except ValueError:
        value = float("nan")
    if not isfinite(value):
        raise ValueError(f"{text!r} is not like 3.5@200: {most!r} is no loss")
    if not steps.isdecimal():
        raise ValueError(f"{text!r} is not like 3.5@200: {steps!r} is no number of steps")
    return Above(value, int(steps))
