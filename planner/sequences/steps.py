"""The steps of a plan of samples with lengths: how long each is by its own tokens, and at least."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

from planner.dispatch import Bounds, Pool
from planner.inputs import Layout
from planner.lowering import PipelineStrategy
from planner.orders import Kind, Pass
from planner.sequences.asked import Array, Asked
from planner.sequences.mix import Mix
from planner.sequences.ways import Trial, Way
from planner.shards import Mode
from plans.order import task_runs
from plans.samples import places
from plans.schema import Op, Plan, Program, Task
from plans.timing import kinds_of

_NS = 1000  # in a µs


class Step(NamedTuple):
    """us: as long as its pipelines compute its own tokens, each stage like the longest one of its
    pipeline, from the first pass to the last; bound_us: no dispatch and packing of its samples on
    these pipelines takes less, by the same curves; kind_us: the period of its kind of rounds, which
    overlap, with updates and copies."""

    step: int
    kind: int
    samples: int
    longest: int
    tokens: int
    us: int
    kind_us: int
    bound_us: int

    @property
    def gap(self) -> float:
        """The part of its time that is above the bound."""
        return 1 - self.bound_us / self.us


def steps_of(plan: Plan, asked: Asked, table: NDArray[np.uint16]) -> Iterator[Step]:
    """Every step of the task, whose table's rows are these. asked: the task as it was profiled."""
    task = plan.task(asked.task.name)
    runs = list(task_runs(plan, task.name))
    names = dict.fromkeys(run.program for run in runs)
    steps = list(_samples(task, asked, table))
    known = {name: _Pipelines(plan.program(name), task, asked) for name in names}
    bounds = {name: Bounds(one.fine, [own for own, _ in steps]) for name, one in known.items()}
    for run in runs:
        own, program = known[run.program], plan.program(run.program)
        for step in range(run.first, run.first + run.steps):
            lengths, groups = steps[step - task.done]
            us = own.us(run.kind, lengths, groups)
            least = bounds[run.program].us(lengths, us * _NS)
            rounded = len(lengths) + max(own.mix.depths)  # each time is rounded up to a ns
            yield Step(
                step,
                run.kind,
                len(lengths),
                int(lengths.max()),
                int(lengths.sum()),
                us,
                kinds_of(program)[run.kind].period_us,
                max(0, least - rounded) // _NS,
            )


def _samples(
    task: Task, asked: Asked, table: NDArray[np.uint16]
) -> Iterator[tuple[Array, NDArray[np.integer]]]:
    """The lengths of every step's samples, and the microbatch of each."""
    assert task.lengths
    window = task.lengths.window
    for begin in range(0, len(table), window):
        rows = table[begin : begin + window]
        first = task.done + begin
        lengths = np.concatenate([asked.step(first + at) for at in range(len(rows))])
        found = places(rows, window, task.microbatches)
        for at in range(len(rows)):
            mine = np.flatnonzero(found.steps == at)
            yield lengths[mine], found.microbatches.ravel()[mine]


@dataclass(frozen=True)
class _Pipelines:
    """The pipelines of a program that trains this task."""

    program: Program
    task: Task
    asked: Asked

    @cached_property
    def _devices(self) -> list[tuple[int, ...]]:
        """The devices of every pipeline, which are the mix's in turn."""
        return sorted(set(_devices_of(self.program.round).values()))

    @cached_property
    def mix(self) -> Mix:
        return Mix(tuple(map(len, self._devices)))

    @cached_property
    def pool(self) -> Pool:
        """As the plan was made for, in its shards and modes."""
        most = dict.fromkeys(self.mix.depths, 0)
        for number, devices in _devices_of(self.program.round).items():
            most[len(devices)] = max(most[len(devices)], self.program.tokens[number])
        shards = self.task.shards
        strategy = PipelineStrategy(
            self.asked.costs(self.task.microbatch),
            (0, *(shard.end_layer for shard in shards)),
            tuple(Mode("resident", "device", shard.activations) for shard in shards),
            _passes(self.program),
            Layout((1,)),
            "",  # whatever it is called
        )
        return Trial(self.asked, Way(self.mix, most), 1, strategy).pool

    @cached_property
    def fine(self) -> Pool:
        """The same in ns, in which rounding counts for less."""
        return Pool(
            tuple(
                replace(
                    one,
                    curve=replace(
                        one.curve,
                        square=one.curve.square * _NS,
                        linear=one.curve.linear * _NS,
                        fixed=one.curve.fixed * _NS,
                    ),
                )
                for one in self.pool.types
            )
        )

    @cached_property
    def _of_kind(self) -> list[Array]:
        """For each kind the pipeline of every microbatch."""
        found = list[Array]()
        for kind in kinds_of(self.program):
            devices = _devices_of(kind.ops)
            places = [self._devices.index(devices[number]) for number in range(len(kind.tokens))]
            found.append(np.array(places))
        return found

    def us(self, kind: int, lengths: Array, groups: NDArray[np.integer]) -> int:
        """The time of a step of a kind with these samples in its microbatches."""
        where, pool = self._of_kind[kind], self.pool
        types = [self.pool.types[number] for number in pool.type_of[where].tolist()]
        tokens, squares = _sums(lengths, groups, len(where), self.task)
        curves = np.array([(t.curve.square, t.curve.linear, t.curve.fixed) for t in types])
        each = curves[:, 0] * squares + curves[:, 1] * tokens + curves[:, 2]
        whole, top = np.zeros(pool.pipelines), np.zeros(pool.pipelines)
        np.add.at(whole, where, each)
        np.maximum.at(top, where, each)
        return int(np.ceil((whole + (pool.depths[pool.type_of] - 1) * top).max()))


def _sums(
    lengths: Array, groups: NDArray[np.integer], count: int, task: Task
) -> tuple[Array, Array]:
    """The tokens of each microbatch and the sum of their squares, of one token where it has none;
    with padding."""
    if task.lengths and task.lengths.padded:
        longest = np.zeros(count, np.int64)
        np.maximum.at(longest, groups, lengths)
        lengths = longest[groups]
    sums = (np.bincount(groups, lengths**power, count).astype(np.int64) for power in (1, 2))
    tokens, squares = (np.maximum(own, 1) for own in sums)
    return tokens, squares


def _devices_of(ops: Sequence[Op]) -> dict[int, tuple[int, ...]]:
    """The devices of every microbatch."""
    found: dict[int, set[int]] = {}
    for op in ops:
        name = op.name
        if name.item == "s" and name.kind in "FBIW":
            found.setdefault(name.index, set()).add(op.queue.device)
    return {number: tuple(sorted(devices)) for number, devices in found.items()}


def _passes(program: Program) -> tuple[tuple[Pass, ...], ...]:
    """The passes of every device."""
    found: list[list[Pass]] = [[] for _ in range(program.devices)]
    for op in program.round:
        name = op.name
        if name.item == "s" and name.kind in "FBIW":
            found[op.queue.device].append(Pass(cast("Kind", name.kind), name.number, name.index))
    return tuple(map(tuple, found))
