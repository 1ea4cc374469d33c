"""Plans for one node, changed into plans for several: devices on nodes, tasks that move."""

from collections.abc import Iterable, Sequence

from msgspec.structs import replace
from support.retime import foretold

from plans.order import kept_bytes, laid_out
from plans.prediction import Bound
from plans.schema import Net, Plan, Segment, Transfer

NET_US = 300


def on_nodes(plan: Plan, nodes: Sequence[int]) -> Plan:
    """The plan with its devices on these nodes."""
    devices = zip(plan.devices, nodes, strict=True)
    return replace(plan, devices=tuple(replace(device, node=node) for device, node in devices))


def relaid(plan: Plan, runs: Iterable[tuple[str, tuple[int, ...], int]]) -> Plan:
    """The plan with these segments instead: a program, its devices, rounds."""
    made = laid_out((plan.program(name), devices, rounds, 0) for name, devices, rounds in runs)
    said = {"lower_bound_us": 1, "lower_bound_name": "compute", "bounds": (Bound("compute", 1),)}
    prediction = replace(plan.prediction, configuration_us=0, **said)
    return foretold(replace(plan, segments=tuple(made), prediction=prediction))


def moving(plan: Plan, nodes: Sequence[int]) -> Plan:
    """The plan with its devices on these nodes, every task moved whole wherever its next segment
    begins on another one, and all that one after the other."""
    plan = on_nodes(plan, nodes)
    transfers: list[Transfer] = []
    segments: list[Segment] = []
    at: dict[str, int] = {}
    free = 0
    for index, segment in enumerate(plan.segments):
        node = nodes[segment.devices[0]]
        for name in plan.trained(segment):
            if at.setdefault(name, node) != node:
                count = sum(one.id.startswith(f"{name}.net.") for one in transfers)
                shards = tuple(range(len(plan.task(name).shards)))
                moved = Transfer(f"{name}.net.X{count}", index, at[name], node, shards, free, free)
                transfers.append(replace(moved, end_us=free + NET_US))
                at[name], free = node, free + NET_US
        us = segment.end_us - segment.start_us
        segments.append(replace(segment, start_us=free, end_us=free + us))
        free += us
    size = sum(kept_bytes(plan.task(one.id.partition(".")[0])) for one in transfers)
    net = Net(size, tuple(transfers)) if transfers else None
    return foretold(replace(plan, segments=tuple(segments), net=net))
