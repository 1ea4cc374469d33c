"""Orders that have names, for any places, replicas and memory.

    gpipe        all forwards, then all backwards; microbatch after microbatch
    1f1b         as many forwards as there are stages behind, then a backward and a forward in turn
    interleaved  the same where devices have several stages, which take turns
    breadth      all microbatches of a shard, then those of the next
    zero-bubble  backwards split in two, weights where nothing else can run

Within a device's memory fewer microbatches are in flight than the order would like: gpipe and
breadth take them in groups.
"""

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import replace

from planner.orders.list_schedule import Rule
from planner.orders.memory import can_run, peaks
from planner.orders.passes import Order, Pass, Pipeline, Places
from planner.orders.search import Schedules
from planner.orders.stages import NEVER, Homes, Stages

Named = Callable[[Pipeline, Places], Order]
Key = Callable[[Pass], tuple[int, ...]]


def gpipe(pipeline: Pipeline, places: Places) -> Order:
    """All forwards, then all backwards, each microbatch through all shards of a device."""
    return _flushed(pipeline, places, lambda p: (p.microbatch, _way(p)))


def breadth(pipeline: Pipeline, places: Places, descending: bool = False) -> Order:
    """All microbatches of a shard in turn, up and down again; looped breadth-first.

    descending: backwards take the last microbatch first, as in other systems, not in Gantry.
    """

    def key(p: Pass) -> tuple[int, ...]:
        return _way(p), -p.microbatch if descending and p.kind == "B" else p.microbatch

    return _flushed(pipeline, places, key)


def _way(p: Pass) -> int:
    """Ascends along a microbatch's way: up the shards, and down."""
    return p.shard if p.kind == "F" else -p.shard


def _flushed(pipeline: Pipeline, places: Places, key: Key) -> Order:
    """All forwards of a device by a key, then all backwards; in groups of as many microbatches as
    fit. As all devices follow one key, none waits in a circle."""
    homes = Homes.of(pipeline, places)
    group = _group(pipeline, homes)
    return tuple(
        tuple(
            p
            for p in sorted(passes, key=lambda p: (p.microbatch // group, p.kind == "B", key(p)))
            if p.kind == "B" or pipeline.has_forward(p.shard)
        )
        for passes in homes.passes()
    )


def _group(pipeline: Pipeline, homes: Homes) -> int:
    """The microbatches in flight at a time, about as many in every group."""
    most = pipeline.microbatches
    for device, row in enumerate(homes.held):
        held, own = sum(row), homes.shards(device)
        if pipeline.limits is not None and held and own:
            replicas = min(len(set(homes.where[s])) for s in own)
            most = min(most, pipeline.limits[device] // held * replicas)
    groups = -(-pipeline.microbatches // most)
    return -(-pipeline.microbatches // groups)


def one_forward_one_backward(pipeline: Pipeline, places: Places) -> Order:
    """1F1B; Megatron's interleaved one where devices have several stages.

    Stages of a device take turns: rounds of about as many microbatches as there are devices. With
    replicas a device waits for as many forwards as its share of the devices behind it. Where
    devices would wait in a circle, it is a list schedule with as many in flight.
    """
    stages = Stages.of(pipeline, places)
    homes = Homes.of(stages.pipeline, stages.places)
    mine = [homes.shards(d) for d in range(pipeline.devices)]
    rounds = max(1, pipeline.microbatches // sum(map(bool, mine)))
    turn = -(-pipeline.microbatches // rounds)
    depths = [_depth(mine, own, turn) if own else 0 for own in mine]
    lines = []
    for device, passes in enumerate(homes.passes()):
        passes.sort(key=lambda p: (p.microbatch // turn, _way(p), p.microbatch))
        room = pipeline.limits[device] if pipeline.limits else NEVER
        lines.append(tuple(_in_turn(passes, depths[device], room, homes, device)))
    order = stages.order(lines)
    if can_run(pipeline, order):
        return order
    depth = tuple(max(depths[d] for d in place) for place in stages.places)
    schedules = Schedules(stages.pipeline, stages.places, split=False)
    return stages.order(schedules.order(Rule(depth, (0,) * pipeline.devices, eager=True)))


def _in_turn(
    passes: list[Pass], depth: int, room: int, homes: Homes, device: int
) -> Iterator[Pass]:
    """Forwards until so many are in flight or memory is short, then a backward and a forward."""
    held, ahead, flight = homes.held[device], homes.ahead[device], 0
    forwards = deque(p for p in passes if p.kind == "F")
    for backward in (p for p in passes if p.kind == "B"):
        while forwards and flight < depth:
            if held[forwards[0].shard] + ahead[forwards[0].shard] > room:
                break
            flight, room = flight + 1, room - held[forwards[0].shard]
            yield forwards.popleft()
        flight, room = flight - 1, room + held[backward.shard]
        yield backward


def _depth(mine: list[list[int]], own: list[int], turn: int) -> int:
    """Forwards in flight on a device that has stages `own`."""
    replicas = sum(bool(other) and other[0] == own[0] for other in mine)
    behind = sum(bool(other) and other[0] > own[0] for other in mine)
    looped = len(own) > 1
    ahead = -(-behind * (2 if looped else 1) // replicas)
    return (len(own) - 1) * -(-turn // replicas) + ahead + 1


def zero_bubble(pipeline: Pipeline, places: Places) -> Order:
    """Backwards split in two, and memory: the best list schedule of a few, as in the papers. Where
    stages take turns on devices whose memory has no limits, these hold half more than in 1F1B: that
    leaves next to no bubble, and weights come no later than they must."""
    stages = Stages.of(pipeline, places).places
    if pipeline.limits is None and len({*stages}) < len(stages):
        held = peaks(pipeline, one_forward_one_backward(pipeline, places))
        pipeline = replace(pipeline, limits=tuple(3 * most // 2 for most in held))
    schedules = Schedules(pipeline, places)
    return schedules.order(schedules.ranked()[0])


def by_columns(named: Named, pipeline: Pipeline, places: Places) -> Order:
    """A named order. Where all stages have as many replicas, alike in their costs, and these as
    many microbatches, each has the order of the first ones, which is made alone."""
    replicas, rooms = len(places[0]), pipeline.limits
    own = list(dict.fromkeys(places))
    alike = len({device for place in own for device in place}) == replicas * len(own) and all(
        len(place) == replicas
        and len({(pipeline.costs[d], rooms and rooms[d]) for d in place}) == 1
        for place in own
    )
    if replicas == 1 or not alike or pipeline.microbatches % replicas:
        return named(pipeline, places)
    one = Pipeline(
        tuple(pipeline.costs[place[0]] for place in own),
        pipeline.microbatches // replicas,
        rooms and tuple(rooms[place[0]] for place in own),
    )
    lines: list[tuple[Pass, ...]] = [()] * pipeline.devices
    for place, line in zip(own, named(one, tuple((own.index(p),) for p in places)), strict=True):
        for n, device in enumerate(place):
            lines[device] = tuple(Pass(k, s, m * replicas + n) for k, s, m in line)
    return tuple(lines)


NAMED: dict[str, Named] = {
    "gpipe": gpipe,
    "1f1b": one_forward_one_backward,
    "interleaved": one_forward_one_backward,
    "breadth": breadth,
    "zero-bubble": zero_bubble,
}
