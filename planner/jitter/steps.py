"""Many runs of a round at once: the steps of each, when every op's time is drawn anew.

An op starts as in `rounds.timeline`, as soon as all that it waits for has ended, but its end is a
vector: one time for each run. A run begins in the plan's steady state. Its step is the time from
the end of a round to the end of the next, once a few rounds have passed.

A drawn time lies as far from the planned one as a normal variable whose 10th and 90th percentiles
are those of the op's spread, each side by itself.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from graphlib import TopologicalSorter
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from planner.jitter.spreads import STEADY, Spread
from plans.schema import Program

_ROUNDS = 4  # simulated, of which the last is the step that counts
_TENTH = 1.2815515655446004  # standard deviations from the median to the 90th percentile
_CELLS = 1 << 24  # ops times runs that are simulated at once

Times = NDArray[np.int64]


@dataclass(frozen=True)
class Jitter:
    """Steps of as many runs, ascending, and the period that was planned.

    path: of ops that a step waited for, back from its last op to the end of the step before: in how
    many runs, and by how many µs they were late then, in all.
    """

    planned_us: int
    steps: tuple[int, ...]
    path: Mapping[str, tuple[int, int]]

    def quantile(self, percent: int) -> int:
        """The step that `percent` in a hundred are not longer than."""
        return self.steps[max(-(-percent * len(self.steps) // 100), 1) - 1]

    @property
    def mean_us(self) -> int:
        """The mean step."""
        return sum(self.steps) // len(self.steps)


def jitter(
    program: Program, spreads: Mapping[str, Spread], *, samples: int = 1000, seed: int = 0
) -> Jitter:
    """The steps of so many runs of a program's rounds whose ops, by name, spread like this; the
    same for the same seed."""
    graph, rng = _linked(program), np.random.default_rng(seed)
    wide = [spreads.get(op.id, STEADY) for op in program.round]
    most = max(_CELLS // len(wide), 1)
    steps: list[int] = []
    runs, late = np.zeros(len(wide), np.int64), np.zeros(len(wide), np.int64)
    for first in range(0, samples, most):
        some = _Runs(graph, wide, min(most, samples - first), rng)
        steps += some.steps().tolist()
        for op, on_path in some.path():
            runs[op] += on_path.size
            late[op] += some.late[op][on_path].sum()
    path = {
        op.id: (int(runs[at]), int(late[at])) for at, op in enumerate(program.round) if runs[at]
    }
    return Jitter(program.period_us, tuple(sorted(steps)), path)


@dataclass(frozen=True)
class _Graph:
    """A round's ops by position: planned times and end before a round begins, what each waits for
    (positions in the round before come after all of this one), and an order that agrees."""

    us: Sequence[int]
    ended: Times
    waits: Sequence[NDArray[np.intp]]
    order: Sequence[int]


def _linked(program: Program) -> _Graph:
    ops = program.round
    place, count = {op.id: at for at, op in enumerate(ops)}, len(ops)
    waits = [
        [place[e.removesuffix("@-1")] + count * e.endswith("@-1") for e in op.after] for op in ops
    ]
    queues: dict[str, list[int]] = {}
    for at, op in enumerate(ops):
        queues.setdefault(op.stream, []).append(at)
    for queue in queues.values():
        waits[queue[0]].append(queue[-1] + count)
        for before, at in pairwise(queue):
            waits[at].append(before)
    same = {at: [dep for dep in edges if dep < count] for at, edges in enumerate(waits)}
    return _Graph(
        us=[op.end_us - op.start_us for op in ops],
        ended=np.array([op.end_us - program.period_us for op in ops], np.int64),
        waits=[np.array(edges, np.intp) for edges in waits],
        order=list(TopologicalSorter(same).static_order()),
    )


class _Runs:
    """So many runs side by side; `late` µs of each op beyond its plan, in the last round."""

    def __init__(
        self, graph: _Graph, wide: Sequence[Spread], count: int, rng: np.random.Generator
    ) -> None:
        self._graph, self._wide, self._count, self._rng = graph, wide, count, rng
        self._last = np.zeros((len(wide), count), np.int32)  # of the ops waited for, in last round
        self.late = np.zeros((len(wide), count), np.int32)

    def steps(self) -> Times:
        """The last round's step in each run."""
        ops = len(self._wide)
        ends = np.empty((2 * ops, self._count), np.int64)  # this round's, the round's before
        ends[:ops] = self._graph.ended[:, None]
        for number in range(_ROUNDS):
            ends[ops:] = ends[:ops]
            for at in self._graph.order:
                self._advance(ends, at, last=number == _ROUNDS - 1)
        self._end = ends[:ops].argmax(axis=0)
        step: Times = ends[:ops].max(axis=0) - ends[ops:].max(axis=0)
        return step

    def _advance(self, ends: Times, at: int, *, last: bool) -> None:
        """An op of this round: its ends."""
        waits = self._graph.waits[at]
        before = ends[waits]
        start = before.max(axis=0)
        late = self._drawn(at)
        ends[at] = start + (self._graph.us[at] + late)
        if last:
            self._last[at] = waits[before.argmax(axis=0)]
            self.late[at] = late

    def _drawn(self, at: int) -> Times | int:
        """µs that the op takes longer than planned in each run; it never takes less than none."""
        low, high = self._wide[at]
        if not low and not high:
            return 0
        z = self._rng.standard_normal(self._count)
        late = np.rint(z * np.where(z < 0, low, high) / _TENTH).astype(np.int64)
        return np.maximum(late, -self._graph.us[at])

    def path(self) -> Iterator[tuple[int, NDArray[np.intp]]]:
        """Each op of the last round with the runs in which the step waited for it."""
        ops = len(self._wide)
        on_path = np.zeros((ops, self._count), np.bool_)
        on_path[self._end, np.arange(self._count)] = True
        for at in reversed(self._graph.order):
            runs = np.flatnonzero(on_path[at])
            if runs.size:
                yield at, runs
                before = self._last[at][runs]
                inside = before < ops
                on_path[before[inside], runs[inside]] = True
