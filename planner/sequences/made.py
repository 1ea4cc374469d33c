"""A way to train a task with lengths, with the rounds and the table of so many steps."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from planner.inputs import Effort
from planner.lowering import PipelineRound
from planner.packing import Arrangement, How, Kind, Samples, arranged
from planner.pipelines import fitted, mode_program
from planner.sequences.asked import Asked, bucket
from planner.sequences.kinds import Shape, with_kinds
from planner.sequences.mix import Lane, side_by_side
from planner.sequences.ways import ORDER, Trial
from planner.shards import TaskCosts
from plans.schema import Program
from plans.timing import duration_us

_ENOUGH = 1 << 62


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
        """The time of its steps: as its program says, whose pipelines take what they do in the mean
        of a kind, and how much longer each step's longest pipeline takes."""
        laid, pool = self.arrangement, self.trial.pool
        means = 0
        for kind in laid.kinds:
            took = []
            for place, number in enumerate(pool.type_of.tolist()):
                one = pool.types[number]
                pairs = zip(kind.squares[place], kind.tokens[place], strict=True)
                own = [one.curve.square * q + one.curve.linear * t for q, t in pairs]
                took.append(sum(own) + (one.depth - 1) * max(own) + len(own) * one.curve.fixed)
            means += kind.steps * round(max(took))
        return duration_us(self.program, self.steps, laid.turns) + max(0, laid.us - means)


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
    mean. Those of one depth have equally many bytes, so that they have the same stages. The bytes
    of the deepest do for the longest sample of an evaluation."""
    depths, judged = trial.way.mix.depths, trial.asked.judged
    most = {max(depths): 0 if judged is None else bucket(int(judged.max()))}
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
    kept, tokens, costs, first = list[int](), list[int](), list[TaskCosts](), 0
    for place, lane in enumerate(lanes):
        most = kind.most[place]
        kept += range(first, first + len(most))
        tokens += most
        for used, squares in zip(kind.tokens[place], kind.squares[place], strict=True):
            costs.append(asked.costs(lane.costs.microbatch, squares, used))
        first += len(largest.most[place])
    return Shape(tuple(kept), tuple(tokens), tuple(one.cut(full.strategy.cuts) for one in costs))
