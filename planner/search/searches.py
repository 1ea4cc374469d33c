"""All searches of a build: one for all tasks of a shape, on every kind of devices, for one device
or for several at once."""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import NamedTuple

import numpy as np
from msgspec import structs
from numpy.typing import NDArray

from planner.bounds import Bounds
from planner.errors import Infeasible, NoPlanFound, nearest
from planner.inputs import DeviceGroup, Effort, Problem
from planner.processes import each
from planner.search import variants
from planner.search.shapes import Shape, everywhere, named, shapes_of
from planner.search.shares import Need, shares
from planner.search.sums import adds_alike
from planner.search.task import Candidate, Wide, out_of_time
from planner.search.variants import Found, Tried
from plans.prediction import Alternative
from profiles.lengths import held_out
from profiles.schema import Task

_LATER = 0.1  # of the time, for what follows the search
_WIDER = 3  # times as long a search on several devices takes, about

Ways = list[list[Candidate]]
"""The strategies of every task, in order: the best on each kind of devices where it fits, then
those on several devices of a kind at once."""


Pipelines = Callable[[tuple[DeviceGroup, Task, int], int, Effort], Found]
"""The search for the best way to train a task on so many devices of a kind at once, with so many
bytes on the host; Infeasible where there is none. It must be picklable."""


Lengths = NDArray[np.uint32]

Packing = Callable[[tuple[DeviceGroup, Task, int], Sequence[Lengths], int, Effort], Candidate]
"""The same of a task with the lengths of all its samples, and of those of its evaluation if it has
one, on any number of devices."""


class _Asked(NamedTuple):
    """A search in a process of its own. host_bytes: what the task may have there. lengths: of its
    samples and of those of its evaluation, as far as they have some. bound_us: no period on one
    device is below."""

    kind: DeviceGroup
    task: Task
    host_bytes: int
    devices: int
    lengths: tuple[Lengths, ...]
    bound_us: int


class _Place(NamedTuple):
    """A search: the number of a shape, the place of a kind, and how many devices."""

    shape: int
    kind: int
    devices: int


@dataclass(eq=False)
class Searches:
    """The searches of one build, and what each has found. Tasks of one shape share theirs.

    best: the search on several devices, packing: the search for tasks with lengths; None where
    there is none. parts: into how many the host memory beside what is kept is divided (`shares`).
    alone: the bounds of every task on one device of each kind, none where they are not known.
    """

    problem: Problem
    best: Pipelines | None = None
    packing: Packing | None = None
    jobs: int = 1
    parts: int | None = None
    alone: Sequence[Bounds] = ()
    _found: dict[_Place, Tried] = field(default_factory=dict)
    _ways: dict[_Place, list[Candidate]] = field(default_factory=dict)  # of each task of the shape
    _rooms: list[int] | None = None  # on the host, where it is short of memory

    @cached_property
    def shapes(self) -> list[Shape]:
        return shapes_of(self.problem)

    @cached_property
    def _numbers(self) -> dict[str, int]:
        """The shape of every task, by its number."""
        return {task.name: at for at, shape in enumerate(self.shapes) for task, *_ in shape.tasks}

    def _place(self, wide: Wide) -> _Place:
        return _Place(self._numbers[wide.task], wide.kind, wide.devices)

    @property
    def complete(self) -> bool:
        """True if no search was ended by time."""
        return not any(map(_late, self._found.values()))

    @property
    def ways(self) -> Ways:
        """All that was found for every task."""
        ways: dict[str, list[Candidate]] = {task.name: [] for task in self.problem.tasks}
        for place in sorted(self._ways, key=lambda one: (one.shape, one.devices > 1, one)):
            for task, way in zip(self.shapes[place.shape].tasks, self._ways[place], strict=True):
                ways[task[0].name].append(way)
        return [*ways.values()]

    def known(self, wide: Wide) -> bool:
        """True if this search was run, and time did not end it with nothing."""
        return self._known(self._place(wide))

    def _known(self, place: _Place) -> bool:
        return not isinstance(self._found.get(place, NoPlanFound()), NoPlanFound)

    def run(self, alone: Collection[str], wide: Iterable[Wide], effort: Effort) -> None:
        """Search for these tasks on one device of every kind, and on several devices at once; no
        search is run twice. Time that one does not use is left to the others, and some of it to
        what follows the search."""
        kinds = range(len(self.problem.kinds))
        places = {self._place(Wide(name, at, 1)) for name in alone for at in kinds}
        places |= set(map(self._place, wide))
        effort = replace(effort, deadline=effort.deadline - effort.left * _LATER)
        self._run([place for place in places if not self._known(place)], effort)
        if self._rooms is None and len(self.problem.tasks) > 1 and self._short_of_host():
            self._rooms = self._least_rooms(effort)
            self._ways.clear()
            self._run(set(self._found), effort)

    def check(self) -> None:
        """Infeasible or NoPlanFound when nothing was found for a task. Of shapes that fit nowhere
        the one that needs most is told, so that the memory it names is enough for all."""
        short = []
        for at in range(len(self.shapes)):
            own = {place: one for place, one in self._found.items() if place.shape == at}
            if any(isinstance(one, Candidate) for one in own.values()):
                continue
            for one in own.values():
                if isinstance(one, NoPlanFound):
                    raise one
            short.append(nearest(one for one in own.values() if isinstance(one, Infeasible)))
        if short:
            raise max(short, key=lambda failure: failure.smallest)

    def _run(self, places: Collection[_Place], effort: Effort) -> None:
        # Those on several devices first: one that time ends has found little.
        order = sorted(places, key=lambda one: (one.devices == 1, one))
        rooms = self._rooms or shares(self.problem, self._needs, self.parts, proven=False)
        self.take(dict(zip(order, self._each(order, rooms, effort), strict=True)))

    def take(self, found: Mapping[_Place, Tried]) -> None:
        """These results of searches."""
        for place, one in found.items():
            self._found[place] = one
            if isinstance(one, Candidate):
                shape = self.shapes[place.shape]
                try:
                    way = everywhere(self.problem, shape, place.kind, one)
                    adds_alike(self.problem, way)
                except Infeasible as error:  # also of what evaluates it
                    self._found[place] = error
                    continue
                tasks = (profiled[place.kind] for profiled in shape.tasks)
                self._ways[place] = [named(self.problem, way, task) for task in tasks]

    def _each(self, places: Sequence[_Place], rooms: Sequence[int], effort: Effort) -> list[Tried]:
        bare = [replace(kind, tasks=()) for kind in self.problem.kinds]  # for other processes
        asked = []
        for n, at, devices in places:
            task = self.shapes[n].first[at]
            names = [task.name] if task.lengths else []
            names += [held_out(task.name)] if task.evaluation_lengths else []
            lengths = tuple(self.problem.lengths[name] for name in names)
            bound_us = self._bound_us(task.name, at)
            asked.append(_Asked(bare[at], task, rooms[n], devices, lengths, bound_us))
        tried = partial(_tried, self.best, self.packing)
        return each(tried, asked, effort, self.jobs, _weight)

    def _bound_us(self, name: str, kind: int) -> int:
        """A period that no plan of a task on one device of a kind is below."""
        names = [task.name for task in self.problem.tasks]
        return self.alone[names.index(name)][kind, 1].period_us if self.alone else 0

    @property
    def _needs(self) -> list[Need]:
        return [Need.of(shape.first[0], len(shape.tasks)) for shape in self.shapes]

    def _least_rooms(self, effort: Effort) -> list[int]:
        """Bytes on the host for each shape, by the least that each needs: what it is told when it
        has nothing there."""
        least = replace(effort, limits=replace(effort.limits, search_ops=1))
        kinds = len(self.problem.kinds)
        places = [_Place(n, at, 1) for n in range(len(self.shapes)) for at in range(kinds)]
        told = self._each(places, [0] * len(self.shapes), least)
        each = [told[n * kinds : (n + 1) * kinds] for n in range(len(self.shapes))]
        needs = [_least(need, own) for need, own in zip(self._needs, each, strict=True)]
        return shares(self.problem, needs, self.parts, proven=True)

    def _short_of_host(self) -> bool:
        """True if a shape has no plan on one device, and would have one with more memory on the
        host."""
        of: dict[int, list[str | None]] = {}
        for place, one in self._found.items():
            if place.devices == 1:
                resource = one.resource if isinstance(one, Infeasible) else None
                of.setdefault(place.shape, []).append(resource)
        return any(None not in own and "host" in own for own in of.values())


def _tried(best: Pipelines | None, packing: Packing | None, asked: _Asked, effort: Effort) -> Tried:
    """The result of a search, which may be nothing: the task may have a plan without it."""
    if effort.left <= 0:
        return out_of_time(asked.task)
    own = asked.kind, asked.task, asked.host_bytes
    found: Found
    try:
        if packing and asked.lengths:
            found = packing(own, asked.lengths, asked.devices, effort)
        elif best and asked.devices > 1:
            found = best(own, asked.devices, effort)
        else:
            found = variants.best_alone(own, asked.bound_us, effort)
    except (Infeasible, NoPlanFound) as error:
        return error
    if isinstance(found, Candidate) and effort.left <= 0:
        return replace(found, complete=False)
    return found


def _weight(asked: _Asked) -> int:
    """About how long a search takes, beside others."""
    return len(asked.task.layers) * (_WIDER if asked.devices > 1 else 1)


def _late(one: Tried) -> bool:
    """True if time ended the search."""
    return isinstance(one, NoPlanFound) or (isinstance(one, Candidate) and not one.complete)


def baselines(problem: Problem) -> Searches:
    """Every task as Hydra trains it."""
    searches = Searches(problem)
    searches.take(
        {
            _Place(n, at, 1): variants.baseline(kind, task)
            for n, shape in enumerate(searches.shapes)
            for at, (kind, task) in enumerate(zip(problem.kinds, shape.first, strict=True))
        }
    )
    return searches


def compared(ways: Ways, chosen: Sequence[Candidate]) -> list[Candidate]:
    """The chosen strategies, which tell of the best on other numbers of devices as well, where a
    task was searched for on several."""
    found = []
    for own, taken in zip(ways, chosen, strict=True):
        others = [way for way in own if way.program != taken.program and not way.packed]
        if any(way.alternatives for way in own) and not taken.packed:
            rows = taken.alternatives or (_alone(taken),)
            more = [_left(way, taken.program.period_us) for way in others]
            count = sum(way.looked_at or 1 for way in own)
            taken = replace(taken, alternatives=(*rows, *more), looked_at=count)
        found.append(taken)
    return found


def _left(way: Candidate, us: int) -> Alternative:
    """The best of a way that was not taken. us: the period of the one that was."""
    best = next((one for one in way.alternatives if not one.why_not), None) or _alone(way)
    more = best.period_us - us
    why_not = f"{more * 100 / us:.1f} % longer" if more > 0 else "takes more of the devices' time"
    return structs.replace(best, why_not=why_not)


def _alone(way: Candidate) -> Alternative:
    """A strategy on one device."""
    costs = way.strategy.costs
    return Alternative(
        task=costs.task.name,
        devices=1,
        layout="1x1",
        order="-",
        microbatch=costs.microbatch,
        recompute=sum(mode.activations == "recompute" for mode in way.strategy.modes[:-1]),
        period_us=way.program.period_us,
        bound_us=costs.least_us,
        peak_bytes=max(one.bytes for one in way.program.memory),
    )


def _least(need: Need, told: Sequence[Tried]) -> Need:
    short = [one for one in told if isinstance(one, Infeasible) and one.resource == "host"]
    errors = [one for one in short if one.smallest]  # with lengths none is named
    return replace(need, least=min((one.smallest for one in errors), default=need.kept))
