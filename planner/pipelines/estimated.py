"""Sketches as ways to train a task: what is found out about their rounds before they are made.

A sketch has its bound; then the span of its order; then what parts of modes take; then a rough
round, which is longer for the memory that it takes too much.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from planner.inputs import Effort
from planner.lowering import PipelineRound
from planner.orders import InvalidOrder
from planner.pipelines.fitting import NO_ROOM, fitted, mode_program, smaller
from planner.pipelines.modes import Chosen, ModeProgram
from planner.pipelines.ranking import Estimate
from planner.pipelines.reorder import PLACED
from planner.pipelines.sketch import ZERO_BUBBLE, Sketch
from plans.prediction import Alternative

_BOUND, _SPAN, _ESTIMATE = (f"its {what} is longer" for what in ("bound", "order", "estimate"))
_ROUGHLY = 2  # times the ops of other rounds, in rough ones
_OVER = 0.25  # a rough round that takes so many times the room is longer by this power of it
_OFF = 4  # a rough round is longer than the best modes by up to 1/n


@dataclass(frozen=True, eq=False)
class Tried:
    """A sketch that was looked at, its round if there is one, or why there is none."""

    sketch: Sketch
    round: PipelineRound | None
    why_not: str = ""

    @classmethod
    def of(cls, sketch: Sketch, made: PipelineRound | str) -> "Tried":
        return cls(sketch, None, made) if isinstance(made, str) else cls(sketch, made)

    @property
    def even_us(self) -> int:
        """The bound of any places: all work spread evenly."""
        costs, layout = self.sketch.costs, self.sketch.layout
        return costs.microbatches * costs.total("least") // layout.devices

    def alternative(self, task: str, best: PipelineRound) -> Alternative:
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


class Estimated:
    """Lives while sketches are ranked: what rough rounds have told of each family of them."""

    def __init__(self, every: Sequence[Sketch], room: int, host_bytes: int, effort: Effort) -> None:
        self.room, self.host_bytes, self.effort = room, host_bytes, effort
        self._ops = effort.limits.search_ops * _ROUGHLY
        self._ops *= len({sketch.family for sketch in every}) > 1
        self._most = self._ops
        self._longer: dict[tuple[object, ...], float] = {}
        self.rooms: dict[tuple[object, ...], tuple[int, ...]] = {}
        self.ways = [_Way(self, sketch) for sketch in every]

    def rough_us(self, sketch: Sketch, parts: Chosen) -> int:
        """About how long the rounds of these parts of modes are, by the first of the family."""
        few = sum(map(len, parts.strategy.order)) <= self._most  # else it tells of this one alone
        if sketch.family not in self._longer and few and self._ops > 0:
            made = PipelineRound(parts.strategy, sketch.links)
            over = max(self.room, made.device_bytes) / self.room
            self._longer[sketch.family] = made.period_us / parts.us * over**_OVER
            program = mode_program(sketch.strategy, sketch.links, self.room, self.host_bytes)
            self.rooms[sketch.family] = smaller(program, made, self.room).room
            self._ops -= len(made.entries)
        mean = sum(self._longer.values()) / max(1, len(self._longer))
        return round(parts.us * self._longer.get(sketch.family, mean))


@dataclass(frozen=True, eq=False)
class _Way:
    """A sketch that is ranked."""

    of: Estimated
    sketch: Sketch

    def estimates(self) -> Iterator[Estimate]:
        """Its bound, its span, what parts of modes take, a rough round."""
        us = self.sketch.bound_us
        yield Estimate(us, us, _BOUND)
        program = program_of(self.sketch, self.of.room, self.of.host_bytes)
        if program is None:
            return
        us = max(us, program.delays.span_us)
        yield Estimate(us, us, _SPAN)
        parts = program.relaxed(self.of.effort)
        del program  # its rows take much memory
        if parts is None:
            return
        us = max(us, parts.us)
        yield Estimate(us, us, _ESTIMATE)
        us = max(us, self.of.rough_us(self.sketch, parts))
        yield Estimate(us, max(us - us // _OFF, parts.us), _ESTIMATE, last=True)

    def made(self, shortest: int) -> PipelineRound | str:
        """The best modes that fit, in the room that the family's rough round has left."""
        program = program_of(self.sketch, self.of.room, self.of.host_bytes)
        assert program
        room = self.of.rooms.get(self.sketch.family, program.room)
        return fitted(replace(program, room=room), self.of.room, shortest, self.of.effort)


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
    return Tried.of(sketch, found)
