"""Ways to train steps of a task with lengths, with their rounds."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain, groupby, zip_longest

import numpy as np
from msgspec import structs

from planner.inputs import Effort
from planner.lowering import PipelineRound, PipelineStrategy, store
from planner.packing import Arrangement, Array, How, LengthsTask, Pool, StepKind, arranged, bucket
from planner.pipelines import Sketch, all_fitted, beside, mode_program
from planner.rounds import Entry
from planner.search import StepRun
from planner.sequences.kinds import Shape, with_kinds
from planner.sequences.ways import FINEST, CostedConfig
from planner.shards import MicrobatchCost, TaskCosts
from plans.schema import Program
from plans.timing import duration_us, part

_ENOUGH = 1 << 62
_SIMULATED = 1024  # tokens and squares of microbatches of some steps of a kind, at most


@dataclass(frozen=True, eq=False)
class Made:
    """A way with its program for the steps that are arranged."""

    trial: CostedConfig
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
        own = sum(int(asked.step(number).sum()) for number in self.arrangement.steps)
        return f" with {1 - own / whole:.1%} padding"

    @property
    def us(self) -> int:
        """The time of its steps in a row."""
        return duration_us(self.program, self.steps, self.arrangement.turns)

    @property
    def period_us(self) -> int:
        """The mean time of its steps."""
        return self.us // self.steps

    @property
    def entries(self) -> Sequence[Entry]:
        """The ops of its full round."""
        return self.round.entries


@dataclass(frozen=True, eq=False)
class InTurn:
    """Each step is one of one of these ways."""

    ways: Sequence[Made]

    @cached_property
    def which(self) -> Array:
        """The way of every step."""
        steps = [one.arrangement.steps for one in self.ways]
        owner = np.repeat(np.arange(len(steps)), [len(own) for own in steps])
        return np.asarray(owner[np.argsort(np.concatenate(steps))])

    @cached_property
    def parts(self) -> tuple[StepRun, ...]:
        """All steps in turn."""
        found, begins = list[StepRun](), [0] * len(self.ways)
        for number, run in groupby(self.which.tolist()):
            rounds, way = len(list(run)), self.ways[number]
            kinds = part(way.arrangement.turns, begins[number], rounds)
            found.append(StepRun(way.program, rounds, kinds))
            begins[number] += rounds
        return tuple(found)

    @property
    def pools(self) -> list[Pool]:
        """The pipelines of each way, in the modes of its rounds."""
        return [replace(one.trial, strategy=one.round.strategy).pool for one in self.ways]

    @property
    def us(self) -> int:
        """The time of all steps, with what segments take to begin and to end."""
        return sum(one.us for one in self.parts)


def lowered(
    ways: Sequence[tuple[CostedConfig, Sequence[int]]], how: How, jobs: int, effort: Effort
) -> list[Made] | int:
    """Ways with their rounds for some steps each, of the same shards in the same modes; or the
    bytes that a device needs for them at least, 0 where the host has too little."""
    asked = ways[0][0].asked
    laid = [
        arranged(asked.samples, steps, trial.pool, how, jobs=jobs, change_us=trial.sent_us)
        for trial, steps in ways
    ]
    sketches = [_sketch(way, one) for (way, _), one in zip(ways, laid, strict=True)]
    weights = [len(steps) / sum(len(own) for _, own in ways) for _, steps in ways]
    found = _rounds(asked, sketches, weights, effort)
    if isinstance(found, int) and len(ways) > 1:
        smallest = [replace(one, pieces=FINEST) for one in sketches]
        found = _rounds(asked, smallest, weights, effort)
    if isinstance(found, int):
        return found
    if len(ways) > 1 and store(in_common([one.strategy for one in found])).bytes > asked.host_bytes:
        return 0
    return [
        _made(way, how, own, sketch, full, alone=len(ways) == 1)
        for (way, _), own, sketch, full in zip(ways, laid, sketches, found, strict=True)
    ]


def _rounds(
    asked: LengthsTask, sketches: Sequence[Sketch], weights: Sequence[float], effort: Effort
) -> list[PipelineRound] | int:
    """Full rounds in the same modes: the best ones, or those that hold least in the first; or the
    bytes that a device needs for them."""
    cuts, room = {cut for sketch in sketches for cut in sketch.cuts}, asked.kind.device_bytes
    programs = [
        mode_program(strategy, asked.links, room, asked.host_bytes)
        for sketch in sketches
        for strategy in [replace(sketch, more=tuple(cuts)).strategy]
    ]
    found = all_fitted(programs, weights, room, _ENOUGH, effort)
    if not isinstance(found, str):
        return found
    least = programs[0].thrifty(effort)
    if least is None:
        return 0
    tight = [replace(one.strategy, modes=least.modes, tight=True) for one in programs]
    rounds = [PipelineRound(strategy, asked.links) for strategy in tight]
    need = max(full.device_bytes for full in rounds)
    return rounds if need <= room else need


def _made(
    trial: CostedConfig,
    how: How,
    laid: Arrangement,
    sketch: Sketch,
    full: PipelineRound,
    *,
    alone: bool,
) -> Made:
    """The way with this full round, its program called by its layout beside others."""
    sizes = [spec.costs.microbatch for spec in sketch.pipelines]
    shapes = [_shape(trial.asked, full, kind, laid.kinds[0], sizes) for kind in laid.kinds]
    program = with_kinds(full, shapes)
    name = program.name if alone else f"{program.name}.{trial.way.layout}"
    return Made(trial, how, laid, full, structs.replace(program, name=name))


def in_common(strategies: Sequence[PipelineStrategy]) -> PipelineStrategy:
    """The largest of strategies with the same shards in the same modes, with as many microbatches
    as any, each as large as in any: by it their task is described, and stored on the host."""
    columns = zip_longest(*(one.each for one in strategies))
    each = [max(filter(None, own), key=lambda costs: costs.microbatch) for own in columns]
    largest = max(strategies, key=lambda one: one.costs.microbatch)
    return replace(largest, costs=replace(largest.costs, count=len(each)), each=tuple(each))


def _sketch(trial: CostedConfig, laid: Arrangement) -> Sketch:
    """The full round of a way whose steps are arranged."""
    asked, depths = trial.asked, trial.way.layout.depths
    batches = [*_batches(trial, laid.kinds)]
    found = beside(depths, batches, trial.passes, asked.points, trial.pieces, asked.links)
    assert found
    return found


def _batches(trial: CostedConfig, kinds: Sequence[StepKind]) -> Iterator[TaskCosts]:
    """The pipelines of the full round, whose microbatches take what those of all kinds do in the
    mean. Those of one depth have equally many bytes, so that they have the same stages. The bytes
    of the deepest do for the longest sample of an evaluation."""
    depths, held = trial.way.layout.depths, trial.asked.held_out
    most = {max(depths): 0 if held is None else bucket(int(held.max()))}
    for depth, own in zip(depths, kinds[0].most, strict=True):
        most[depth] = max(most.get(depth, 0), *own)
    for place, depth in enumerate(depths):
        many = sum(kind.steps * len(kind.tokens[place]) for kind in kinds)
        used, squares = (
            sum(kind.steps * sum(by[place]) for kind, by in zip(kinds, values, strict=True))
            for values in ([kind.tokens for kind in kinds], [kind.squares for kind in kinds])
        )
        count = len(kinds[0].most[place])
        means = max(1, squares // many), max(1, used // many)
        yield trial.asked.costs(most[depth], *means, count)


def _shape(
    asked: LengthsTask, full: PipelineRound, kind: StepKind, largest: StepKind, own: Sequence[int]
) -> Shape:
    """A kind of rounds: of each pipeline the first microbatches of the full round, of its own
    size."""
    kept, first = list[int](), 0
    for most, whole in zip(kind.most, largest.most, strict=True):
        kept += range(first, first + len(most))
        first += len(whole)
    sizes = [size for size, most in zip(own, kind.most, strict=True) for _ in most]
    most_of = np.array([sizes, np.square(sizes)])

    def cut(size: int, squares: int, used: int) -> MicrobatchCost:
        return asked.costs(size, squares, used).cut(full.strategy.cuts)

    ends = [cut(n, 1, 1) for n in sizes], [cut(n, 1, n) for n in sizes]
    mean = np.array([[*chain(*kind.tokens)], [*chain(*kind.squares)]])
    some = kind.some[:: max(1, -(-kind.some.size // _SIMULATED))]
    return Shape(
        tuple(kept),
        tuple(chain(*kind.most)),
        (*ends, [cut(n, n * n, 1) for n in sizes]),
        (mean - 1) / (most_of - 1),
        (some - 1) / (most_of - 1),
    )
