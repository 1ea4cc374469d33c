"""A way to train a task with lengths, with the rounds and the table of so many steps."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

import numpy as np

from planner.inputs import Effort
from planner.lowering import PipelineRound
from planner.packing import Arrangement, How, Kind, Samples, arranged
from planner.pipelines import fitted, mode_program
from planner.sequences.asked import Asked
from planner.sequences.kinds import Shape, Some, with_kinds
from planner.sequences.mix import Lane, side_by_side
from planner.sequences.ways import ORDER, Trial
from planner.shards import MicrobatchCost
from plans.schema import Program
from plans.timing import duration_us

_ENOUGH = 1 << 62
_SIMULATED = 1024  # tokens and squares of microbatches of some steps of a kind, at most


@dataclass(frozen=True, eq=False)
class Made:
    """A way with its program for some steps or all."""

    trial: Trial
    how: How
    arrangement: Arrangement
    round: PipelineRound
    program: Program

    @property
    def steps(self) -> int:
        return sum(rounds for _, rounds in self.arrangement.turns)

    @property
    def padding(self) -> str:
        """The part of all tokens that is padding, in words, where there is any."""
        asked, kinds = self.trial.asked, self.arrangement.kinds
        if self.how != "pad":
            return ""
        whole = sum(kind.steps * sum(map(sum, kind.tokens)) for kind in kinds)
        own = sum(int(asked.step(number).sum()) for number in asked.steps[: self.steps])
        return f" with {1 - own / whole:.1%} padding"

    @property
    def us(self) -> int:
        """The time of its steps."""
        return duration_us(self.program, self.steps, self.arrangement.turns)


def lowered(
    trial: Trial, how: How, steps: range, table: Path, jobs: int, effort: Effort
) -> Made | int:
    """A way with its rounds for these steps; or the bytes that a device needs for them at least."""
    asked = trial.asked
    samples = Samples(asked.lengths, asked.task.batch)
    laid = arranged(samples, steps, trial.pool, how, table, jobs=jobs, change_us=trial.sent_us)
    lanes = [*_lanes(trial, laid.kinds)]
    strategy = side_by_side(lanes, asked.links, asked.points, ORDER, trial.pieces)
    assert strategy
    room = asked.kind.device_bytes
    program = mode_program(strategy, asked.links, room, asked.host_bytes)
    full = fitted(program, room, _ENOUGH, effort)
    if isinstance(full, str):
        found = program.thrifty(effort)
        if found is None:
            return 0
        full = PipelineRound(found[1], asked.links)
        if full.device_bytes > room:
            return full.device_bytes
    shapes = [_shape(asked, full, kind, laid.kinds[0], lanes) for kind in laid.kinds]
    return Made(trial, how, laid, full, with_kinds(full, shapes))


def _lanes(trial: Trial, kinds: Sequence[Kind]) -> Iterator[Lane]:
    """The pipelines of the full round, whose microbatches take what those of all kinds do in the
    mean. Those of one depth have equally many bytes, so that they have the same stages."""
    depths, most = trial.way.mix.depths, dict[int, int]()
    for depth, own in zip(depths, kinds[0].most, strict=True):
        most[depth] = max(most.get(depth, 0), *own)
    for place, depth in enumerate(depths):
        many = sum(kind.steps * len(kind.tokens[place]) for kind in kinds)
        used, squares = (
            sum(kind.steps * sum(by[place]) for kind, by in zip(kinds, values, strict=True))
            for values in ([kind.tokens for kind in kinds], [kind.squares for kind in kinds])
        )
        count = len(kinds[0].most[place])
        costs = trial.asked.costs(most[depth], max(1, squares // many), max(1, used // many), count)
        yield Lane(depth, count, costs)


def _shape(
    asked: Asked, full: PipelineRound, kind: Kind, largest: Kind, lanes: Sequence[Lane]
) -> Shape:
    """A kind of rounds: of each pipeline the first microbatches of the full round."""
    kept, first = list[int](), 0
    for most, whole in zip(kind.most, largest.most, strict=True):
        kept += range(first, first + len(most))
        first += len(whole)

    own = [lane for lane, most in zip(lanes, kind.most, strict=True) for _ in most]

    def costs(tokens: Iterable[int], squares: Iterable[int]) -> tuple[MicrobatchCost, ...]:
        return tuple(
            asked.costs(lane.costs.microbatch, square, used).cut(full.strategy.cuts)
            for lane, used, square in zip(own, tokens, squares, strict=True)
        )

    sizes, none = [lane.costs.microbatch for lane in own], [1] * len(own)
    ends = costs(none, none), costs(sizes, none), costs(none, [n * n for n in sizes])
    some = kind.some[:: max(1, -(-kind.some.size // _SIMULATED))]
    return Shape(
        tuple(kept),
        tuple(chain(*kind.most)),
        costs(chain(*kind.tokens), chain(*kind.squares)),
        Some(ends, (some - 1) / (np.array([sizes, np.square(sizes)]) - 1)),
    )
