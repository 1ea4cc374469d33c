"""Orders that have names, for any places, replicas and memory.

    gpipe        all forwards, then all backwards; microbatch after microbatch
    1f1b         as many forwards as there are stages behind, then a backward and a forward in turn
    interleaved  the same where devices have several stages, which take turns
    breadth      all microbatches of a shard, then those of the next
    zero-bubble  backwards split in two, weights where nothing else can run

Within a device's memory fewer microbatches are in flight than the order would like: gpipe and
breadth take them in groups.
"""

from collections.abc import Callable

from planner.orders.merging import Block, Line, Stages, merged
from planner.orders.passes import Order, Pipeline, Places
from planner.orders.zero_bubble import zero_bubble

Named = Callable[[Pipeline, Places], Order]


def gpipe(pipeline: Pipeline, places: Places) -> Order:
    """All forwards, then all backwards, each microbatch through all stages of a device."""
    stages = Stages.of(pipeline, places)
    return _flushed(
        pipeline, stages, lambda b: (b.microbatch, b.stage), lambda b: (b.microbatch, -b.stage)
    )


def breadth(pipeline: Pipeline, places: Places, descending: bool = False) -> Order:
    """All microbatches of a shard in turn, up and down again; looped breadth-first.

    descending: backwards take the last microbatch first, as in other systems, not in Gantry.
    """
    sign = -1 if descending else 1
    stages = Stages.of(pipeline, places, alone=True)
    return _flushed(
        pipeline,
        stages,
        lambda b: (b.stage, b.microbatch),
        lambda b: (-b.stage, sign * b.microbatch),
    )


def one_forward_one_backward(pipeline: Pipeline, places: Places) -> Order:
    """1F1B; Megatron's interleaved one where devices have several stages.

    Stages of a device take turns: rounds of about as many microbatches as there are devices. With
    replicas a device waits for as many forwards as its share of the devices behind it.
    """
    stages = Stages.of(pipeline, places)
    mine = [stages.of_device(d) for d in range(pipeline.devices)]
    used = sum(bool(own) for own in mine)
    rounds = max(1, pipeline.microbatches // used)
    turn = -(-pipeline.microbatches // rounds)
    lines = []
    for device, own in enumerate(mine):
        blocks = stages.blocks(device)
        lines.append(
            Line(
                sorted(blocks, key=lambda b: (b.microbatch // turn, b.stage, b.microbatch)),
                sorted(blocks, key=lambda b: (b.microbatch // turn, -b.stage, b.microbatch)),
                _depth(mine, own, turn) if own else 0,
                pipeline.microbatches,
            )
        )
    return merged(pipeline, stages, lines)


def _depth(mine: list[list[int]], own: list[int], turn: int) -> int:
    """Forwards in flight on a device that has stages `own`."""
    replicas = sum(bool(other) and other[0] == own[0] for other in mine)
    behind = sum(bool(other) and other[0] > own[0] for other in mine)
    looped = len(own) > 1
    ahead = -(-behind * (2 if looped else 1) // replicas)
    return (len(own) - 1) * -(-turn // replicas) + ahead + 1


def _flushed(
    pipeline: Pipeline,
    stages: Stages,
    forward: Callable[[Block], tuple[int, int]],
    backward: Callable[[Block], tuple[int, int]],
) -> Order:
    """All forwards of a device in one order, then all backwards in another; in groups of as many
    microbatches as fit."""
    group = _group(pipeline, stages)
    lines = []
    for device in range(pipeline.devices):
        blocks = stages.blocks(device)
        lines.append(
            Line(
                sorted(blocks, key=lambda b: (b.microbatch // group, *forward(b))),
                sorted(blocks, key=lambda b: (b.microbatch // group, *backward(b))),
                len(blocks),
                group,
            )
        )
    return merged(pipeline, stages, lines)


def _group(pipeline: Pipeline, stages: Stages) -> int:
    """The microbatches in flight at a time, about as many in every group."""
    most = pipeline.microbatches
    for device, row in enumerate(stages.held):
        held, own = sum(row), stages.of_device(device)
        if pipeline.limits is not None and held and own:
            replicas = min(len(set(stages.where[k])) for k in own)
            most = min(most, pipeline.limits[device] // held * replicas)
    groups = -(-pipeline.microbatches // most)
    return -(-pipeline.microbatches // groups)


NAMED: dict[str, Named] = {
    "gpipe": gpipe,
    "1f1b": one_forward_one_backward,
    "interleaved": one_forward_one_backward,
    "breadth": breadth,
    "zero-bubble": zero_bubble,
}
