"""Where tasks' bytes lie in a host store that has room for all that is kept of them.

Each has bytes of its own, or tasks that never train at the same time have what waits in the same:

    | a kept | b kept | c kept | a, then c | b |
"""

from collections.abc import Mapping, Sequence
from itertools import accumulate

from msgspec import structs

from planner.lowering import Store
from plans.order import ancestors
from plans.schema import Buffer, Host, Plan

Stores = Mapping[str, Store]
"""By the name of a task, its bytes on the host."""


def laid(budget: int, stores: Stores, kept: Sequence[int], scratch: Sequence[int]) -> Host:
    """The host store with what is kept of each task, and what waits there, from these bytes on."""
    buffers: list[Buffer] = []
    for own, low, behind in zip(stores.values(), kept, scratch, strict=True):
        buffers += [structs.replace(b, offset=low + b.offset) for b in own.kept]
        by = behind - own.kept_bytes
        buffers += [structs.replace(b, offset=by + b.offset) for b in own.scratch]
    return Host(budget, tuple(buffers))


def placed(budget: int, stores: Stores, places: Sequence[int]) -> Host:
    """The host store with all of each task from these bytes on."""
    behind = [low + own.kept_bytes for low, own in zip(places, stores.values(), strict=True)]
    return laid(budget, stores, places, behind)


def apart(budget: int, stores: Stores) -> Host:
    """The host store of tasks that share nothing."""
    ends = accumulate((own.bytes for own in stores.values()), initial=0)
    return placed(budget, stores, list(ends)[:-1])


def sharing(budget: int, stores: Stores, plan: Plan) -> Host:
    """The host store with what waits for a while in as few bytes as the plan's timetable allows."""
    *kept, base = accumulate((own.kept_bytes for own in stores.values()), initial=0)
    sizes = {name: own.scratch_bytes for name, own in stores.items()}
    places = _tight(sizes, _together(plan))
    return laid(budget, stores, kept, [base + places[name] for name in stores])


def _together(plan: Plan) -> dict[str, set[str]]:
    """For every task the others that may train at the same time."""
    programs = [plan.program(segment.program) for segment in plan.segments]
    trains = [() if program.evaluates else program.tasks for program in programs]
    numbers = dict.fromkeys((task.name for task in plan.tasks), 0)  # of its segments, as bits
    found: dict[str, set[str]] = {name: set() for name in numbers}
    for index, (before, names) in enumerate(zip(ancestors(plan), trains, strict=True)):
        beside = ~before
        for name in names:
            others = {other for other, own in numbers.items() if own & beside} - {name}
            found[name] |= others
            for other in others:
                found[other].add(name)
        for name in names:
            numbers[name] |= 1 << index
    return found


def _tight(sizes: Mapping[str, int], together: Mapping[str, set[str]]) -> dict[str, int]:
    """Places in as few bytes as can be found, the largest first; shared by all but those that are
    there together."""
    places: dict[str, int] = {}
    for task in sorted(sizes, key=lambda one: -sizes[one]):
        low = 0
        for other in sorted(together[task] & places.keys(), key=lambda one: places[one]):
            if places[other] - low >= sizes[task]:
                break
            low = max(low, places[other] + sizes[other])
        places[task] = low
    return places
