"""Plans changed into plans for several nodes, or with other segments, and some of them."""

from collections.abc import Iterable, Sequence

from msgspec.structs import replace
from support import handmade
from support.disked import solos
from support.parts import packed_part, pipeline_part, resident_part, streamed_part
from support.retime import foretold

from plans.order import Run, laid_out
from plans.prediction import Bound
from plans.schema import Plan
from profiles.codec import ALIGNMENT, align


def on_nodes(plan: Plan, nodes: Sequence[int]) -> Plan:
    """The plan with its devices on these nodes."""
    devices = zip(plan.devices, nodes, strict=True)
    return replace(plan, devices=tuple(replace(device, node=node) for device, node in devices))


def relaid(plan: Plan, runs: Iterable[tuple[str, tuple[int, ...], int]]) -> Plan:
    """The plan with these segments instead: a program, its devices, rounds."""
    made = laid_out(Run(plan.program(name), devices, rounds) for name, devices, rounds in runs)
    prediction = replace(plan.prediction, configuration_us=0, bounds=(Bound("compute", 1),))
    return foretold(replace(plan, segments=tuple(made), prediction=prediction))


def shard_of(name: str) -> str:
    """The shard of a buffer of the host store that is kept between segments, `` of others."""
    shard, _, role = name.rpartition(".")
    return shard if role in ("param", "state", "base") and shard.count(".") == 1 else ""


def tight(plan: Plan) -> Plan:
    """The plan with the smallest budget that each of its several nodes can do with."""
    nodes = {device.node for device in plan.devices}
    if len(nodes) == 1:
        return plan
    most = max(taken(plan, node) for node in nodes)
    return replace(plan, host=replace(plan.host, budget_bytes=most))


def taken(plan: Plan, node: int) -> int:
    """Bytes of the store that ops touch on a node, and all of the shards that they touch there,
    unit by unit; and what the updates of a program have beside that."""
    host, nodes = {b.name: b for b in plan.host.buffers}, [d.node for d in plan.devices]
    programs = {program.name: program for program in plan.programs}
    names: set[str] = set()
    beside = 0
    for segment in plan.segments:
        largest: dict[str, int] = {}
        for op in programs[segment.program].ops:
            if nodes[segment.devices[op.queue.device]] == node:
                names |= {*op.reads.values(), *op.writes.values()}
                if op.stream.startswith("host"):
                    largest[op.stream] = max(largest.get(op.stream, 0), op.transient_bytes)
        beside = max(beside, sum(largest.values()))
    shards = {shard_of(name) for name in names}
    names |= {name for name in host if shard_of(name) in shards - {""}}
    units = {
        at
        for name in names & host.keys()
        for at in range(host[name].offset, host[name].offset + align(host[name].bytes), ALIGNMENT)
    }
    return len(units) * ALIGNMENT + beside


def across() -> Plan:
    """A pipeline with a stage on each node."""
    return on_nodes(handmade.pipeline(), (0, 1))


def fleet() -> Plan:
    """A task on each node."""
    return on_nodes(handmade.fleet(), (0, 1))


def turns() -> Plan:
    """Three tasks on three nodes of two devices, one of them on both, two updated on the host."""
    parts = [streamed_part("a"), resident_part("b"), packed_part("c")]
    runs = [("a", 0, 1), ("b", 2, 1), ("c", 4, 1), ("b", 3, 1), ("a", 1, 1), ("c", 4, 1)]
    runs += [("a", 0, 2), ("b", 2, 2), ("c", 4, 2)]
    return on_nodes(solos(parts, runs), (0, 0, 1, 1, 2))


def mixed() -> Plan:
    """A pipeline across two nodes, on other devices of theirs in the end, and a task beside it."""
    parts = [pipeline_part("a"), streamed_part("b", shards=2)]
    programs = [handmade.program("a", 2, parts[:1]), handmade.program("b", 1, parts[1:])]
    runs = [("a", (0, 2), 1), ("b", (3,), 2), ("a", (1, 2), 1), ("b", (2,), 1), ("a", (1, 3), 2)]
    plan = handmade.assemble(parts, programs, [*runs, ("b", (2,), 1)])
    return on_nodes(plan, (0, 0, 1, 1))


NODED = {made.__name__: made for made in (across, fleet, turns, mixed)}
