"""Sweeps: one task in many settings, of which the weaker end early.

    step      0 ─────── 100 ─────────────── 300 ─────────────────────── 900
    tasks         24     │        8          │             3             │  the best
                       16 end              5 end

Steps after which tasks are compared are *rungs*. This is successive halving; with brackets, some of
which are compared later, Hyperband.
"""

import math
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import accumulate, pairwise, product
from typing import Any, Literal, get_args

from executor.errors import WorkloadError
from executor.workload.task import Evaluation, Task

Settings = Mapping[str, Any]
Mode = Literal["min", "max"]


@dataclass(frozen=True)
class Sweep:
    """Trains task(name, **settings) for each of `configs`, and at each of the `rungs` ends those
    that are not among the best.

    configs: settings by name, or a list of them, which are then called t0, t1, ...; or the tasks
    themselves. rungs: steps, ascending; the last are those of each task. keep: the part that goes
    on, rounded up. metric: "loss", "val_loss", or one of Evaluation(metrics=...). mode: which is
    better. brackets: so many configs, in their order, are compared at all rungs, so many from the
    second one on, and so on, each bracket by itself; others are of the first one, by default all.
    """

    configs: Mapping[str, Settings | Task] | Sequence[Settings | Task]
    rungs: Sequence[int]
    task: Callable[..., Task] | None = None
    keep: float = 1 / 3
    metric: str = "loss"
    mode: Mode = "min"
    brackets: Sequence[int] = ()

    def __post_init__(self) -> None:
        """WorkloadError for what no sweep can have."""
        ascending = all(a < b for a, b in pairwise([0, *self.rungs]))
        for name, fits, must in (
            ("configs", bool(self.configs), "some settings, or tasks"),
            ("rungs", bool(self.rungs) and ascending, "steps, ascending, like (100, 300, 900)"),
            ("keep", 0 < self.keep < 1, "between 0 and 1, like 1/3"),
            ("mode", self.mode in get_args(Mode), "min or max"),
            ("brackets", len(self.brackets) <= len(self.rungs), "no more than there are rungs"),
        ):
            if not fits:
                raise WorkloadError(f"{name} of a sweep: {getattr(self, name)!r}; must be {must}")

    @property
    def settings(self) -> dict[str, Settings]:
        """The settings of each task by its name; none where tasks were given."""
        return {n: {} if isinstance(own, Task) else own for n, own in self._configs.items()}

    @property
    def _configs(self) -> dict[str, Settings | Task]:
        if isinstance(self.configs, Mapping):
            return dict(self.configs)
        return {
            own.name if isinstance(own, Task) else f"t{number}": own
            for number, own in enumerate(self.configs)
        }

    def tasks(self) -> list[Task]:
        """The tasks; WorkloadError for one that cannot be compared at all rungs."""
        made = [self._task(name, own) for name, own in self._configs.items()]
        for task, name in zip(made, self._configs, strict=True):
            self._check(task, name)
        return made

    def _task(self, name: str, own: Settings | Task) -> Task:
        if isinstance(own, Task):
            return own
        if self.task is None:
            raise WorkloadError("a sweep of settings needs a function, Sweep(configs, task=...)")
        return self.task(name, **own)

    def joined(self, tasks: Sequence[Task]) -> "Sweep":
        """The sweep with these tasks behind its own; WorkloadError for one that cannot be compared
        with them."""
        own = self._configs
        for task in tasks:
            if task.name in own:
                raise WorkloadError(
                    f"the sweep has a task {task.name} already; give it another name"
                )
            self._check(task, task.name)
        return replace(self, configs=own | {task.name: task for task in tasks})

    def kept(self, at: int, values: Mapping[str, float | None]) -> list[str]:
        """The tasks that go on after rung `at`, at which they have these values of the metric; None
        of one that has failed, which never does."""
        places = self._places()
        return [
            name
            for place in range(max(1, len(self.brackets)))
            for name in self._best(
                {name: v for name, v in values.items() if places.get(name, 0) == place},
                all_of_them=place > at,
            )
        ]

    def ranked(self, values: Mapping[str, float | None]) -> list[str]:
        """The tasks, best first; last those without a number."""
        sign = 1 if self.mode == "min" else -1
        return sorted(values, key=lambda name: _order(values[name], sign))

    def _places(self) -> dict[str, int]:
        """The bracket of each task that is not of the first."""
        names, ends = list(self.settings), list(accumulate(self.brackets))
        return {n: k + 1 for k, (a, b) in enumerate(pairwise(ends)) for n in names[a:b]}

    def _best(self, values: Mapping[str, float | None], *, all_of_them: bool) -> list[str]:
        part = Fraction(self.keep).limit_denominator(1 << 10)
        count = len(values) if all_of_them else math.ceil(len(values) * part)
        whole = [name for name in self.ranked(values) if _order(values[name], 1)[0] == 0]
        return whole[:count]

    def _check(self, task: Task, name: str) -> None:
        last, judged = self.rungs[-1], task.evaluate
        if not isinstance(task, Task) or task.name != name:
            raise WorkloadError(f"the task of {name} has another name; give it the one it is asked")
        if task.steps != last:
            raise WorkloadError(f"{name} has {task.steps} steps, the last rung is {last}")
        if self.metric == "loss":
            return
        metrics = ["val_loss", *judged.metrics] if isinstance(judged, Evaluation) else []
        if not judged or self.metric not in metrics:
            there = ", ".join(["loss", *metrics])
            raise WorkloadError(f"{name} has no metric {self.metric!r}, only {there}")
        if odd := [rung for rung in self.rungs if rung % judged.every]:
            raise WorkloadError(
                f"{name} is evaluated after every {judged.every} steps, not after {odd[0]}, a "
                "rung; choose multiples"
            )


def _order(value: float | None, sign: int) -> tuple[int, float]:
    """A key by which numbers come first, better ones before others."""
    number = value is not None and not math.isnan(value)
    return (0, sign * value) if number and value is not None else (1, 0.0)


def grid(
    choices: Mapping[str, Sequence[Any]], count: int | None = None, seed: int = 0
) -> list[Any]:
    """All settings of these choices, or `count` of them in a random order."""
    every = [dict(zip(choices, own, strict=True)) for own in product(*choices.values())]
    return every if count is None else random.Random(seed).sample(every, count)


def hyperband(least: int, most: int, part: int = 3) -> dict[str, Any]:
    """Rungs, `keep` and brackets as Hyperband has them, `part` times as many steps from rung to
    rung: Sweep(grid(choices, sum(ladder["brackets"])), task=..., **ladder)."""
    rungs = [most]
    while rungs[0] >= least * part:
        rungs.insert(0, rungs[0] // part)
    high = len(rungs) - 1
    counts = [math.ceil(len(rungs) / (s + 1) * part**s) for s in range(high, -1, -1)]
    return {"rungs": tuple(rungs), "keep": 1 / part, "brackets": tuple(counts)}
