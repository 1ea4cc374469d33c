"""Sketches ranked: more and more is found out about how long the rounds of each would be, always of
the one that seems shortest, and the most promising ones get their modes.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from heapq import heapify, heappop, heappush

from planner.inputs import Effort
from planner.lowering import Round
from planner.orders import InvalidOrder
from planner.pipelines.fitting import NO_ROOM, fitted, mode_program, smaller
from planner.pipelines.modes import Chosen, ModeProgram
from planner.pipelines.reorder import PLACED
from planner.pipelines.sketch import ZERO_BUBBLE, Sketch
from plans.prediction import Alternative

_BOUND, _SPAN, _PARTS, _ROUGH = range(4)  # what is known of a sketch's period
_LONGER = ("its bound is longer", "its order is longer", *["its estimate is longer"] * 2)
LATE = "time was up"
_RANKING = 2  # 1/n of the time is left for rounds
_ROUGHLY = 2  # times the ops of other rounds, in rough ones
_OFF = 4  # a rough round is longer than the best modes by up to 1/n
_SIMULATED = 24  # sketches at most


@dataclass(frozen=True, eq=False)
class Tried:
    """A sketch that was looked at, its round if there is one, or why there is none."""

    sketch: Sketch
    round: Round | None
    why_not: str = ""

    @property
    def even_us(self) -> int:
        """The bound of any places: all work spread evenly."""
        costs, layout = self.sketch.costs, self.sketch.layout
        return costs.microbatches * costs.total("least") // layout.devices

    def alternative(self, task: str, best: Round) -> Alternative:
        """It, as a plan tells of it."""
        made, why_not = self.round, self.why_not
        if made and made is not best:
            why_not = f"{(made.period_us - best.period_us) * 100 / best.period_us:.1f} % longer"
        modes = made.strategy.modes if made else ()
        split = made and made.strategy.halved  # also by a search from an order that splits none
        cut = replace(self.sketch, named=ZERO_BUBBLE) if split else self.sketch
        placed = made and made.strategy.named == PLACED
        return Alternative(
            task=task,
            devices=self.sketch.layout.devices,
            layout="mixed" if placed else str(self.sketch.layout),
            order=made.strategy.named if made else self.sketch.named,
            microbatch=self.sketch.costs.microbatch,
            recompute=sum(mode.activations == "recompute" for mode in modes[:-1]),
            period_us=made.period_us if made else 0,
            bound_us=self.even_us if placed else cut.bound_us,
            peak_bytes=made.device_bytes if made else 0,
            why_not=why_not,
        )


def ranked(every: Sequence[Sketch], room: int, host_bytes: int, effort: Effort) -> Iterator[Tried]:
    """Sketches by what is known of their periods: bounds, then the spans of their orders, then what
    parts of modes take, then a rough round, as if what it takes too much were more of it; then
    rounds, until the effort is used up; and those that do not fit. Where time is short, only those
    that are known roughly by then get rounds."""
    short = effort.left / _RANKING
    open_ = [(sketch.bound_us, _BOUND, n) for n, sketch in enumerate(every)]
    heapify(open_)
    left = rough = effort.limits.search_ops
    rough *= _ROUGHLY * (len({sketch.family for sketch in every}) > 1)
    shortest, parts = 1 << 62, dict[int, Chosen]()
    roughly = dict[tuple[object, ...], tuple[float, tuple[int, ...]]]()
    while open_:
        us, known, n = heappop(open_)
        sketch = every[n]
        least = max(us - us // _OFF, parts[n].us) if known == _ROUGH else us
        if least >= shortest or left <= 0 or effort.left <= 0:
            yield Tried(sketch, None, _LONGER[known])
            continue
        if roughly and known < _ROUGH and effort.left < short:
            yield Tried(sketch, None, LATE)
            continue
        program = program_of(sketch, room, host_bytes)
        if program and known == _ROUGH:
            _, rooms = roughly.get(sketch.family, (1.0, program.room))
            program = replace(program, room=rooms)
            one = fit(sketch, program, room, shortest, effort)
            left -= len(one.round.entries) if one.round else effort.limits.search_least_ops
            left -= effort.limits.search_ops // _SIMULATED
            shortest = min(shortest, one.round.period_us) if one.round else shortest
            yield one
            continue
        more = None
        if program and known == _BOUND:
            more = program.delays.span_us
        elif program and known == _SPAN and (found := program.relaxed(effort)):
            parts[n], more = found, found.us
        elif program and known == _PARTS:
            if sketch.family not in roughly and rough > 0:
                made = Round(parts[n].strategy, sketch.links)
                longer = made.period_us * max(room, made.device_bytes) / (room * parts[n].us)
                roughly[sketch.family] = longer, smaller(program, made, room).room
                rough -= len(made.entries)
            mean = sum(longer for longer, _ in roughly.values()) / max(1, len(roughly))
            longer, _ = roughly.get(sketch.family, (mean, ()))
            more = round(parts[n].us * longer)
        if more is None:
            yield Tried(sketch, None, NO_ROOM)
        else:
            heappush(open_, (max(us, more), known + 1, n))


def program_of(sketch: Sketch, room: int, host_bytes: int) -> ModeProgram | None:
    """The program that chooses its modes; None where there is no such order."""
    try:
        return mode_program(sketch.strategy, sketch.links, room, host_bytes)
    except InvalidOrder:
        return None


def fit(
    sketch: Sketch, program: ModeProgram | None, room: int, shortest: int, effort: Effort
) -> Tried:
    """The sketch with the best modes that fit, unless those of a shorter round do not."""
    found = fitted(program, room, shortest, effort) if program else NO_ROOM
    return Tried(sketch, None, found) if isinstance(found, str) else Tried(sketch, found)
