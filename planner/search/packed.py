"""The steps of a task whose samples have lengths, as they are trained one after the other."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from plans.schema import Lengths, Program
from plans.timing import Runs, duration_us, kinds_of, part


class StepRun(NamedTuple):
    """Steps in a row by one program; kinds: those of their rounds in turn."""

    program: Program
    rounds: int
    kinds: Runs

    @property
    def us(self) -> int:
        """The time of a segment of them."""
        return duration_us(*self)


class Evaluations(NamedTuple):
    """The evaluations of a task: the rounds of each, what a plan says of their samples, and the
    file of each sample's microbatch."""

    rounds: int
    lengths: Lengths
    table: Path


@dataclass(frozen=True)
class Packed:
    """turns: the kinds of the steps in turn. lengths: what a plan says of them. table: the file of
    each sample's microbatch. least_us: no way to divide the steps' samples among the same pipelines
    trains them sooner. parts: of all steps, where not all have the same program. evaluations: its
    evaluations, if there are any."""

    turns: Runs
    lengths: Lengths
    table: Path
    least_us: int
    parts: tuple[StepRun, ...] = ()
    evaluations: Evaluations | None = None

    def between(self, program: Program, begin: int, end: int) -> Iterator[StepRun]:
        """The steps from one to before another; of a task with one program, those that are done
        after the time of so many steps that last their mean, about."""
        if not self.parts:
            first, last = (_reached(program, self.turns, count) for count in (begin, end))
            yield StepRun(program, last - first, part(self.turns, first, last - first))
            return
        at = 0
        for one in self.parts:
            low, high = max(begin, at), min(end, at + one.rounds)
            if low < high:
                yield StepRun(one.program, high - low, part(one.kinds, low - at, high - low))
            at += one.rounds


def _reached(program: Program, turns: Runs, count: int) -> int:
    """The steps that are done after the time of so many steps that last their mean, about."""
    each = [kind.period_us for kind in kinds_of(program)]
    us, steps = sum(rounds * each[kind] for kind, rounds in turns), sum(n for _, n in turns)
    left, done = us * count // steps, 0
    for kind, rounds in turns:
        if left < rounds * each[kind]:
            return done + round(left / each[kind])
        left, done = left - rounds * each[kind], done + rounds
    return done
