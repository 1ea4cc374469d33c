"""Ways to train a task with lengths: pipelines side by side, the most tokens of their microbatches,
and how sequences are packed; and about how long its steps are.

Pipelines of a mix with equally many stages are of one type. What a microbatch takes on a stage is
square Q + linear T + fixed, of the stage that takes longest in the modes that shards have.
"""

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import product
from typing import NamedTuple

import numpy as np

from planner.inputs import Effort, Layout, OrderName, side_by_side
from planner.lowering import PipelineRound, PipelineStrategy
from planner.packing import Array, Curve, How, LengthsTask, PipelineType, Pool, bucket, pack_step
from planner.pipelines import ModeProgram, Passes, beside, mode_program
from planner.sequences.intervals import Offer
from planner.sequences.mixes import best_mix
from planner.shards import TaskCosts, backward_us, forward_us
from profiles.codec import ALIGNMENT

_FIRST = Passes("1f1b")
_LOOPED = tuple(Passes("interleaved", chunks) for chunks in (2, 4))
_ORDERS: dict[OrderName, tuple[Passes, ...]] = {  # "auto": those that are tried beside the first
    "auto": (*_LOOPED, Passes("zero-bubble")),
    "1f1b": (_FIRST,),
    "gpipe": (Passes("gpipe"),),
    "interleaved": _LOOPED,
    "zero-bubble": (Passes("zero-bubble"),),
    "breadth": tuple(Passes("breadth", one.chunks) for one in _LOOPED),
}
_FEW = 6  # devices, of which all mixes are looked at
FINEST = 4  # shards of a stage, at most
_GOLDEN = 0.618  # multiples of it fill a run evenly
_SCALES = (1, 2, 4, 0.5, 0.25)  # times the longest sample, for the most tokens of a microbatch


def evenly(steps: Sequence[int], most: int) -> list[int]:
    """At most so many of these steps, one at least: one of each of as many equal runs of steps, at
    another place in each, so that what comes again every few steps is not missed."""
    count = max(1, min(most, len(steps)))
    runs = np.arange(count)
    places = (runs + runs * _GOLDEN % 1) * len(steps) / count
    return [int(steps[at]) for at in places.astype(int).tolist()]


class PipelineConfig(NamedTuple):
    """most: the most tokens of a microbatch, by the depth of its pipeline."""

    layout: Layout
    most: dict[int, int]

    @property
    def types(self) -> list[tuple[int, int]]:
        """The depth and the number of the pipelines of each type, the deepest first."""
        return sorted(Counter(self.layout.depths).items(), reverse=True)


def ways(asked: LengthsTask, allowed: Sequence[Layout], effort: Effort) -> Iterator[PipelineConfig]:
    """All that are looked at."""
    longest = bucket(asked.longest)
    fits, sizes = _sizes(
        asked, sorted({depth for layout in allowed for depth in layout.depths}), effort
    )
    for layout in allowed:
        deepest, seen = max(fits[depth] for depth in layout.depths), list[dict[int, int]]()
        able = deepest >= longest and all(fits[depth] for depth in layout.depths)
        for size in sizes if able else ():
            most = {depth: size[depth] for depth in set(layout.depths)}
            for depth in most:
                if fits[depth] == deepest:
                    most[depth] = max(most[depth], longest)
            if most not in seen:
                seen.append(most)
                yield PipelineConfig(layout, most)


def _sizes(
    asked: LengthsTask, depths: Sequence[int], effort: Effort
) -> tuple[dict[int, int], list[dict[int, int]]]:
    """The most tokens of a microbatch that pipelines of each depth have memory for; and those that
    are tried: parts and multiples of the longest sample, and the most whose graphs can stay."""
    wanted = [bucket(round(scale * asked.longest)) for scale in _SCALES]
    fits, stay = (
        {depth: most_tokens(asked, depth, max(wanted), effort, saved=saved) for depth in depths}
        for saved in (False, True)
    )
    every = [*(dict.fromkeys(depths, size) for size in wanted), stay]
    longest = bucket(asked.longest)
    return fits, [
        {depth: min(fits[depth], size[depth] or longest) for depth in depths} for size in every
    ]


def proposed(asked: LengthsTask, steps: Sequence[Array], effort: Effort) -> list[Layout]:
    """The layouts that are looked at on so many devices: all of a few, and of many those that seem
    best with each size of microbatches for some steps; and equal pipelines."""
    devices = asked.devices
    if devices <= _FEW:
        return list(side_by_side(devices))
    depths = [depth for n in range(devices.bit_length()) if (depth := 1 << n) <= devices]
    depths = [depth for depth in depths if depth <= len(asked.task.layers)]
    fits, sizes = _sizes(asked, depths, effort)
    found = [Layout.beside([depth] * (devices // depth)) for depth in reversed(depths)]
    for size in sizes:
        offers = list[Offer]()
        for depth in reversed(depths):
            most = size[depth]
            if depth == depths[-1]:
                most = max(most, min(fits[depth], bucket(asked.longest)))
            trial = (
                tried(asked, PipelineConfig(Layout.beside([depth]), {depth: most}), 1, effort)
                if most
                else None
            )
            if trial:
                (one,) = trial.pool.types
                offers.append(Offer(depth, one.curve, depth, most))
        if not offers:
            continue
        if best := best_mix(offers, devices, steps, asked.hows[0]):
            pairs = zip(offers, best, strict=True)
            found.append(Layout.beside(one.depth for one, count in pairs for _ in range(count)))
    return list(dict.fromkeys(found))


def least_way(asked: LengthsTask, layout: Layout) -> PipelineConfig:
    """The one that needs least memory: only the deepest pipelines take long samples."""
    most = dict.fromkeys(layout.depths, ALIGNMENT)
    return PipelineConfig(layout, most | {layout.depth: bucket(asked.longest)})


def most_tokens(
    asked: LengthsTask, depth: int, wanted: int, effort: Effort, *, saved: bool = False
) -> int:
    """The most tokens, of so many that are wanted, of a microbatch that so many stages have memory
    for; 0 where there is none. saved: while all graphs stay on the devices."""
    layout, most = Layout.beside([depth]), wanted // ALIGNMENT

    def fits(units: int) -> bool:
        trial = thrifty(
            asked, PipelineConfig(layout, {depth: units * ALIGNMENT}), effort, saved=saved
        )
        if trial is None:
            return False
        return PipelineRound(trial.strategy, asked.links).device_bytes <= asked.kind.device_bytes

    if not fits(most):
        most = bisect_left(range(1, most), True, key=lambda units: not fits(units))
    return most * ALIGNMENT


@dataclass(frozen=True, eq=False)
class CostedConfig:
    """A way with a strategy for its steps. pieces: shards of each stage. passes: their order, which
    is not that of the strategy: by it ways are told apart before there are rounds."""

    asked: LengthsTask
    way: PipelineConfig
    pieces: int
    strategy: PipelineStrategy
    passes: Passes = _FIRST

    @cached_property
    def pool(self) -> Pool:
        """The types of pipelines, with what a microbatch takes on the longest of their stages."""
        layout = self.way.layout
        starts = {len(own): own[0][0] for own in reversed(layout.stages)}
        return Pool(
            tuple(
                PipelineType(
                    _curve(self.asked, self.strategy, range(starts[d], starts[d] + d), most),
                    d,
                    most,
                    count,
                )
                for d, count in self.way.types
                for most in (self.way.most[d],)
            )
        )

    def step_us(self, steps: Sequence[Array], how: How) -> int:
        """About how long such steps are in the mean: their passes, and what is sent."""
        laid = (pack_step(self.pool, lengths, how) for lengths in steps)
        return sum(max(step.us) for step in laid) // len(steps) + self.sent_us

    @property
    def sent_us(self) -> int:
        """About how long gradients take to homes that are spread evenly, and parameters back."""
        others = len(self.way.layout.pipelines) - 1
        each = self.strategy.costs.total("grad_bytes") * others // self.way.layout.devices
        return 2 * self.asked.links.send_us(each) if others else 0

    @property
    def begin_us(self) -> int:
        """About how long a segment takes to begin and to end."""
        links, took = self.asked.links, [0] * self.way.layout.devices
        stays = PipelineRound(self.strategy, links).walk.stays
        for copy in (*stays.comes(links), *stays.goes()):
            took[copy.device] += copy.us(links)
        return max(took)


def estimated(
    asked: LengthsTask, layouts: Sequence[Layout], pieces: Sequence[int], effort: Effort
) -> Iterator[CostedConfig]:
    """All ways in these layouts with so many shards of a stage, one at least until time is up."""
    found = False
    for way, shards in product(ways(asked, layouts, effort), pieces):
        if found and effort.left <= 0:
            return
        if trial := tried(asked, way, shards, effort):
            found = True
            yield from as_asked(trial)


def tried(
    asked: LengthsTask, way: PipelineConfig, pieces: int, effort: Effort
) -> CostedConfig | None:
    """A way in the modes that seem best for a few microbatches; None where there are none."""
    program = _program(asked, way, pieces)
    chosen = program.chosen(effort) if program else None
    return CostedConfig(asked, way, pieces, chosen.strategy) if chosen else None


def thrifty(
    asked: LengthsTask, way: PipelineConfig, effort: Effort, *, saved: bool = False
) -> CostedConfig | None:
    """A way in the modes that hold least, or those of them in which graphs stay; None where the
    host has no memory for them."""
    program = _program(asked, way, FINEST)
    found = program.thrifty(effort, saved=saved) if program else None
    return CostedConfig(asked, way, FINEST, found) if found else None


def as_asked(trial: CostedConfig) -> Iterator[CostedConfig]:
    """The way in the order that is asked for, where there are pipelines of several stages."""
    if trial.asked.order == "auto" or trial.way.layout.depth == 1:
        yield trial
    else:
        yield from otherwise(trial)


def otherwise(trial: CostedConfig) -> Iterator[CostedConfig]:
    """The same with passes in other orders, or in that which is asked for, where there are
    pipelines of several stages."""
    if trial.way.layout.depth == 1:
        return
    for passes in _ORDERS[trial.asked.order]:
        if _program(trial.asked, trial.way, trial.pieces, passes):
            yield replace(trial, passes=passes)


def _program(
    asked: LengthsTask, way: PipelineConfig, pieces: int, passes: Passes = _FIRST
) -> ModeProgram | None:
    """The program that chooses the modes; None where pipelines have more stages than there are
    layers."""
    depths = way.layout.depths
    batches = [asked.costs(way.most[depth], count=2 * depth) for depth in depths]
    sketch = beside(depths, batches, passes, asked.points, pieces, asked.links)
    if sketch is None:
        return None
    return mode_program(sketch.strategy, asked.links, asked.kind.device_bytes, asked.host_bytes)


def _curve(asked: LengthsTask, strategy: PipelineStrategy, devices: range, most: int) -> Curve:
    """The longest of these stages, by a microbatch as full as they can be, of usual sequences."""
    curves = asked.curves(most, partial(_stages_us, strategy, devices))
    usual = min(most, asked.spread)
    return max(curves, key=lambda one: (one.square * usual + one.linear) * most + one.fixed)


def _stages_us(strategy: PipelineStrategy, devices: range, costs: TaskCosts) -> list[int]:
    """The time of a microbatch's passes on each of these devices."""
    shards = costs.cut(strategy.cuts).shards
    found = []
    for device in devices:
        own = {one.shard for one in strategy.order[device]}
        pairs = [(shards[k], strategy.modes[k], k < strategy.last) for k in own]
        found.append(sum(forward_us(s, m) * early + backward_us(s, m) for s, m, early in pairs))
    return found
