"""Ways to train steps of a task with lengths, with their rounds."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain, groupby, zip_longest
from typing import NamedTuple

import numpy as np
from msgspec import structs

from planner.dispatch import Pool
from planner.inputs import Effort
from planner.lowering import PipelineStrategy, Round, store
from planner.packing import Arrangement, Array, Asked, How, Kind, arranged, bucket
from planner.pipelines import ModeProgram, all_fitted, fitted, mode_program
from planner.search import Part
from planner.sequences.kinds import Shape, Some, with_kinds
from planner.sequences.mix import Lane, side_by_side
from planner.sequences.ways import FINEST, Trial
from planner.shards import MicrobatchCost
from plans.schema import Program
from plans.timing import Runs, duration_us, part

_ENOUGH = 1 << 62
_SIMULATED = 1024  # tokens and squares of microbatches of some steps of a kind, at most


@dataclass(frozen=True, eq=False)
class Made:
    """A way with its program for the steps that are arranged."""

    trial: Trial
    how: How
    arrangement: Arrangement
    round: Round
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
    def begin_us(self) -> int:
        """The time of a segment of its steps beside their periods."""
        own = self.program
        return own.enter_us + own.leave_us + max(0, own.round_us - own.period_us)


class Turn(NamedTuple):
    """Some steps in a row: the number of their way, and the kinds of their rounds."""

    way: int
    rounds: int
    kinds: Runs


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
    def turns(self) -> list[Turn]:
        return list(self._turns())

    def _turns(self) -> Iterator[Turn]:
        begins = [0] * len(self.ways)
        for way, run in groupby(self.which.tolist()):
            rounds, every = len(list(run)), self.ways[way].arrangement.turns
            yield Turn(way, rounds, part(every, begins[way], rounds))
            begins[way] += rounds

    @property
    def pools(self) -> list[Pool]:
        """The pipelines of each way, in the modes of its rounds."""
        return [replace(one.trial, strategy=one.round.strategy).pool for one in self.ways]

    @property
    def parts(self) -> tuple[Part, ...]:
        """All steps in turn, where not all have the same program."""
        each = (Part(self.ways[n].program, rounds, kinds) for n, rounds, kinds in self.turns)
        return tuple(each) if len(self.ways) > 1 else ()

    @property
    def us(self) -> int:
        """The time of all steps, with what segments take to begin and to end."""
        each = [(self.ways[n].program, rounds, kinds) for n, rounds, kinds in self.turns]
        return sum(duration_us(*one) for one in each)


def lowered(trial: Trial, how: How, steps: Sequence[int], jobs: int, effort: Effort) -> Made | int:
    """A way with its rounds for these steps; or the bytes that a device needs for them at least."""
    draft = _Draft.of(trial, how, steps, jobs)
    program, room = draft.modes(), trial.asked.kind.device_bytes
    full = fitted(program, room, _ENOUGH, effort)
    if isinstance(full, str):
        found = program.thrifty(effort)
        if found is None:
            return 0
        full = Round(found[1], trial.asked.links)
        if full.device_bytes > room:
            return full.device_bytes
    return draft.made(full)


def lowered_together(
    ways: Sequence[tuple[Trial, Sequence[int]]], how: How, jobs: int, effort: Effort
) -> list[Made] | None:
    """Ways for some steps each, whose shards are the same in the same modes; None where not all of
    them fit, also with the smallest shards."""
    drafts = [_Draft.of(trial, how, steps, jobs) for trial, steps in ways]
    found = _full(drafts, effort)
    if found is None:
        drafts = [replace(one, trial=replace(one.trial, pieces=FINEST)) for one in drafts]
        found = _full(drafts, effort)
    if found is None:
        return None
    every = [_named(draft.made(full)) for draft, full in zip(drafts, found, strict=True)]
    common = in_common([one.round.strategy for one in every])
    return every if store(common).bytes <= ways[0][0].asked.host_bytes else None


def _full(drafts: Sequence["_Draft"], effort: Effort) -> list[Round] | None:
    """Full rounds in the same modes: the best ones, or those that hold least in the first."""
    asked = drafts[0].trial.asked
    cuts = {cut for draft in drafts for cut in draft.strategy().cuts}
    programs = [draft.modes(cuts) for draft in drafts]
    steps = [len(draft.arrangement.steps) for draft in drafts]
    weights, room = [own / sum(steps) for own in steps], asked.kind.device_bytes
    found = all_fitted(programs, weights, room, _ENOUGH, effort)
    if not isinstance(found, str):
        return found
    least = programs[0].thrifty(effort)
    if least is None:
        return None
    tight = [replace(one.strategy, modes=least[1].modes, tight=True) for one in programs]
    rounds = [Round(strategy, asked.links) for strategy in tight]
    return rounds if max(full.device_bytes for full in rounds) <= room else None


def _named(made: Made) -> Made:
    """The way with a program called by its mix."""
    name = f"{made.program.name}.{made.trial.way.mix}"
    return replace(made, program=structs.replace(made.program, name=name))


def in_common(strategies: Sequence[PipelineStrategy]) -> PipelineStrategy:
    """The largest of strategies with the same shards in the same modes, with as many microbatches
    as any, each as large as in any: by it their task is described, and stored on the host."""
    columns = zip_longest(*(one.each for one in strategies))
    each = [max(filter(None, own), key=lambda costs: costs.microbatch) for own in columns]
    largest = max(strategies, key=lambda one: one.costs.microbatch)
    return replace(largest, costs=replace(largest.costs, count=len(each)), each=tuple(each))


@dataclass(frozen=True, eq=False)
class _Draft:
    """A way whose steps are arranged. lanes: the pipelines of the full round."""

    trial: Trial
    how: How
    arrangement: Arrangement
    lanes: Sequence[Lane]

    @classmethod
    def of(cls, trial: Trial, how: How, steps: Sequence[int], jobs: int) -> "_Draft":
        own, change_us = trial.asked.samples, trial.sent_us
        laid = arranged(own, steps, trial.pool, how, jobs=jobs, change_us=change_us)
        return cls(trial, how, laid, [*_lanes(trial, laid.kinds)])

    def strategy(self, cuts: Iterable[int] = ()) -> PipelineStrategy:
        """All on the devices; shards end where those of its stages do, and at these cuts."""
        asked, pieces = self.trial.asked, self.trial.pieces
        passes = self.trial.passes
        found = side_by_side(self.lanes, asked.links, asked.points, passes, pieces, cuts)
        assert found
        return found

    def modes(self, cuts: Iterable[int] = ()) -> ModeProgram:
        """The program that chooses the modes."""
        asked, strategy = self.trial.asked, self.strategy(cuts)
        return mode_program(strategy, asked.links, asked.kind.device_bytes, asked.host_bytes)

    def made(self, full: Round) -> Made:
        """The way with this full round."""
        asked, kinds = self.trial.asked, self.arrangement.kinds
        shapes = [_shape(asked, full, kind, kinds[0], self.lanes) for kind in kinds]
        return Made(self.trial, self.how, self.arrangement, full, with_kinds(full, shapes))


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
    asked: Asked, full: Round, kind: Kind, largest: Kind, lanes: Sequence[Lane]
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
