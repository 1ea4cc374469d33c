"""The best way found to train a task with lengths: looked at by estimates, then by rounds for some
of its steps; the shortest is taken for all of them."""

import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from planner.errors import NoPlanFound
from planner.inputs import Effort
from planner.lowering import PipelineRound
from planner.packing import How
from planner.packing.arranged import Arrangement, Samples, arranged
from planner.packing.sums import Kind
from planner.pipelines import fitted, mode_program
from planner.sequences.asked import ORDER, Asked
from planner.sequences.kinds import Shape, with_kinds
from planner.sequences.mix import Lane, Mix, side_by_side
from planner.sequences.ways import Trial, tried, ways
from planner.shards import TaskCosts
from plans.metrics import duration_us
from plans.prediction import Alternative
from plans.schema import Program

_SAMPLE, _GUESSED = 48, 12  # steps by which ways are judged: by their rounds, by estimates
_LOWERED = 10  # ways at most
_PIECES = (1, 2, 4)  # shards of a stage
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
    def us(self) -> int:
        """The time of its steps."""
        turns = self.arrangement.turns
        return duration_us(self.program, sum(rounds for _, rounds in turns), turns)


def best(
    asked: Asked,
    allowed: Sequence[Mix],
    hows: Sequence[How],
    table: Path,
    jobs: int,
    effort: Effort,
) -> tuple[Made, list[Alternative]]:
    """The shortest way found for all steps, with their table at this path; and the others."""
    few = range(asked.done, asked.done + min(asked.task.steps, _SAMPLE))
    every, made = list(_trials(asked, allowed, hows, few, effort)), list[Made]()
    with tempfile.TemporaryDirectory() as folder:
        for _, how, trial in every[:_LOWERED]:
            if made and effort.left <= 0:
                break
            found = lowered(trial, how, few, Path(folder) / "table", 1, effort)
            if isinstance(found, Made):
                made.append(found)
    if not made:
        raise asked.too_long([depth for mix in allowed for depth in mix.depths], effort)
    for one in sorted(made, key=lambda one: one.us):
        found = lowered(one.trial, one.how, asked.steps, table, jobs, effort)
        if isinstance(found, Made):
            return found, [_told(asked, one, made, found) for one in made]
    raise NoPlanFound(f"{asked.task.name}: no way that fits some of its steps fits all of them")


def _trials(
    asked: Asked, allowed: Sequence[Mix], hows: Sequence[How], steps: range, effort: Effort
) -> list[tuple[int, How, Trial]]:
    """All ways, packed as is best for each, by their estimates, the shortest first."""
    stride = max(1, len(steps) // _GUESSED)
    lengths = [asked.step(number) for number in steps[::stride]]
    found = list[tuple[int, How, Trial]]()
    for way in ways(asked, allowed, effort):
        for pieces in _PIECES:
            if found and effort.left <= 0:
                break
            if trial := tried(asked, way, pieces, effort):
                us, how = min((trial.step_us(lengths, how), how) for how in hows)
                found.append((us, how, trial))
    return sorted(found, key=lambda one: one[0])


def lowered(
    trial: Trial, how: How, steps: range, table: Path, jobs: int, effort: Effort
) -> Made | str:
    """A way with its rounds for these steps; or why there are none."""
    asked = trial.asked
    samples = Samples(asked.lengths, asked.task.batch)
    change = trial.sent_us
    laid = arranged(samples, steps, trial.pool, how, table, jobs=jobs, change_us=change)
    lanes = [*_lanes(trial, laid.kinds)]
    strategy = side_by_side(lanes, asked.links, asked.points, ORDER, trial.pieces)
    assert strategy
    room = asked.kind.device_bytes
    program = mode_program(strategy, asked.links, room, asked.host_bytes)
    full = fitted(program, room, _ENOUGH, effort)
    if isinstance(full, str):
        return full
    shapes = [_shape(asked, full, kind, laid.kinds[0], lanes) for kind in laid.kinds]
    return Made(trial, how, laid, full, with_kinds(full, shapes))


def _lanes(trial: Trial, kinds: Sequence[Kind]) -> Iterator[Lane]:
    """The pipelines of the full round, whose microbatches take what those of all kinds do in the
    mean."""
    for place, (depth, most) in enumerate(zip(trial.way.mix.depths, kinds[0].most, strict=True)):
        many = sum(kind.steps * len(kind.tokens[place]) for kind in kinds)
        used, squares = (
            sum(kind.steps * sum(by[place]) for kind, by in zip(kinds, values, strict=True))
            for values in ([kind.tokens for kind in kinds], [kind.squares for kind in kinds])
        )
        count, size = len(most), max(most)
        yield Lane(depth, count, trial.asked.costs(size, squares // many, used // many, count))


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
    return Shape(tuple(kept), tuple(tokens), tuple(c.cut(full.strategy.cuts) for c in costs))


def _told(asked: Asked, one: Made, every: Sequence[Made], best: Made) -> Alternative:
    """A way, as a plan tells of it."""
    steps = sum(rounds for _, rounds in one.arrangement.turns)
    least = min(made.us for made in every)
    same = one.trial is best.trial
    longer = f"{(one.us - least) * 100 / least:.1f} % longer"
    return Alternative(
        task=asked.task.name,
        devices=one.trial.way.mix.devices,
        layout=str(one.trial.way.mix),
        order=f"{ORDER}, {one.how}",
        microbatch=max(one.trial.way.most.values()),
        recompute=sum(m.activations == "recompute" for m in one.round.strategy.modes[:-1]),
        period_us=one.us // steps,
        bound_us=one.arrangement.least_us // steps,
        peak_bytes=one.round.device_bytes,
        why_not="" if same else longer,
    )
