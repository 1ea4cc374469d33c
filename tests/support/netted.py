"""Plans for one node, changed into plans for several: devices on nodes, tasks that move."""

from collections.abc import Sequence

from msgspec.structs import replace
from support.retime import foretold

from plans.disk import kept_bytes
from plans.prediction import Bound
from plans.schema import Net, Plan, Segment, Transfer
from plans.segments import laid_out

NET_US = 300


def on_nodes(plan: Plan, nodes: Sequence[int]) -> Plan:
    """The plan with its devices on these nodes."""
    devices = zip(plan.devices, nodes, strict=True)
    return replace(plan, devices=tuple(replace(device, node=node) for device, node in devices))


def split(plan: Plan, rounds: Sequence[int], devices: Sequence[int]) -> Plan:
    """The plan with its only task trained in segments of so many rounds, each on one device."""
    (segment,) = plan.segments
    program = plan.program(segment.program)
    runs = [(program, (at,), count, 0) for count, at in zip(rounds, devices, strict=True)]
    said = {"lower_bound_us": 1, "lower_bound_name": "compute", "bounds": (Bound("compute", 1),)}
    prediction = replace(plan.prediction, configuration_us=0, **said)
    return foretold(replace(plan, segments=tuple(laid_out(runs)), prediction=prediction))


def moving(plan: Plan, nodes: Sequence[int]) -> Plan:
    """The plan with its devices on these nodes, and its only task moved whole wherever its next
    segment begins on another one."""
    plan = on_nodes(plan, nodes)
    (task,) = plan.tasks
    shards = tuple(range(len(task.shards)))
    transfers: list[Transfer] = []
    segments: list[Segment] = []
    free = 0
    for index, segment in enumerate(plan.segments):
        at = nodes[segment.devices[0]]
        before = nodes[plan.segments[index - 1].devices[0]] if index else at
        if at != before:
            name = f"{task.name}.net.X{len(transfers)}"
            times = free, free + NET_US
            transfers.append(Transfer(name, index, before, at, shards, *times))
            free += NET_US
        us = segment.end_us - segment.start_us
        segments.append(replace(segment, start_us=free, end_us=free + us))
        free += us
    net = Net(kept_bytes(task) * len(transfers), tuple(transfers)) if transfers else None
    return foretold(replace(plan, segments=tuple(segments), net=net))


def placed(plan: Plan, devices: tuple[int, ...]) -> Plan:
    """The plan with its only segment on these devices."""
    (segment,) = plan.segments
    return foretold(replace(plan, segments=(replace(segment, devices=devices),)))
