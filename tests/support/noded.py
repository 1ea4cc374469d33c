"""Handmade plans on several nodes, and the transfers that they need."""

from collections.abc import Iterable, Sequence

from msgspec.structs import replace
from support import handmade
from support.disked import solos
from support.keeping import packed_part
from support.parts import parallel_part, pipeline_part, resident_part
from support.retime import foretold
from support.streaming import streamed_part

from plans.schema import Net, Op, Plan, Program, Transfer
from profiles.codec import ALIGNMENT, align

TRANSFER_US = 25

Brought = tuple[str, int, int, int, tuple[int, ...]]
"""A transfer to be: its task, segment, source, target and shards."""


def on_nodes(plan: Plan, nodes: Sequence[int]) -> Plan:
    """The plan with its devices on these nodes, and no transfers."""
    pairs = zip(plan.devices, nodes, strict=True)
    devices = tuple(replace(device, node=node) for device, node in pairs)
    return replace(plan, devices=devices, net=None)


def node_of(op: Op, devices: Sequence[int], nodes: Sequence[int]) -> int:
    """The node that an op of a segment on these devices runs on."""
    left, right = op.stream.split(".")
    return nodes[devices[int(right if left == "host" else left)]]


def every_op(program: Program) -> tuple[Op, ...]:
    return (*program.enter, *program.round, *program.leave)


def bring(plan: Plan) -> Plan:
    """The plan with the transfers that it needs, each from the first node that has the state."""
    nodes, every = [device.node for device in plan.devices], {d.node for d in plan.devices}
    programs = {program.name: program for program in plan.programs}
    homes: dict[str, set[int]] = {}  # of a shard, `a.s0`
    found: list[Brought] = []
    for index, segment in enumerate(plan.segments):
        wanted: dict[tuple[str, int, int], set[int]] = {}
        ops = every_op(programs[segment.program])
        for op in ops:
            node = node_of(op, segment.devices, nodes)
            for shard in map(shard_of, op.reads.values()):
                has = homes.setdefault(shard, set(every)) if shard else every
                if node not in has:
                    task, number = shard.split(".s")
                    wanted.setdefault((task, min(has), node), set()).add(int(number))
        for (task, source, target), numbers in sorted(wanted.items()):
            found.append((task, index, source, target, tuple(sorted(numbers))))
            for number in numbers:
                homes[f"{task}.s{number}"].add(target)
        for op in ops:
            for shard in filter(None, map(shard_of, op.writes.values())):
                homes[shard] = {node_of(op, segment.devices, nodes)}
    return with_transfers(plan, found)


def shard_of(name: str) -> str:
    """The shard of a buffer of the host store that is kept between segments, `` of others."""
    shard, _, role = name.rpartition(".")
    return shard if role in ("param", "state") and shard.count(".") == 1 else ""


def with_transfers(plan: Plan, wanted: Iterable[Brought]) -> Plan:
    """The plan with these transfers, counted, and honestly timed."""
    counts: dict[str, int] = {}
    made = []
    for task, segment, source, target, shards in wanted:
        number = counts.get(task, 0)
        counts[task] = number + 1
        name = f"{task}.net.X{number}"
        made.append(Transfer(name, segment, source, target, shards, 0, TRANSFER_US))
    if not made:
        return timed(replace(plan, net=None))
    return timed(replace(plan, net=Net(sum(size(plan, one) for one in made), tuple(made))))


def size(plan: Plan, transfer: Transfer) -> int:
    """Bytes that a transfer carries; 0 of a task or of shards that the plan does not have."""
    shards = next((t.shards for t in plan.tasks if t.name == transfer.id.split(".")[0]), ())
    own = [shards[number] for number in transfer.shards if number < len(shards)]
    return sum(s.state_bytes + (0 if s.cast else s.param_bytes) for s in own)


def again(plan: Plan, transfers: Iterable[Transfer]) -> Plan:
    """The plan with other transfers, counted anew."""
    each = [(t.id.split(".")[0], t.segment, t.source, t.target, t.shards) for t in transfers]
    return with_transfers(plan, each)


def queue(plan: Plan) -> list[Transfer]:
    assert plan.net
    return list(plan.net.transfers)


def timed(plan: Plan) -> Plan:
    """Segments and transfers as early as the order allows, with the lengths that they have; a plan
    in which some wait for each other in a ring gets any times."""
    programs = {program.name: program for program in plan.programs}
    transfers, segments = list(plan.net.transfers if plan.net else ()), list(plan.segments)
    for _ in range(len(transfers) + len(segments) + 1):
        before = transfers, segments
        free: dict[str, int] = {}
        ended: list[dict[str, int]] = []  # before each segment
        made = []
        for index, segment in enumerate(segments):
            claims = [
                *(f"d{d}" for d in segment.devices),
                *(f"t{name}" for name in programs[segment.program].tasks),
            ]
            coming = [one.end_us for one in transfers if one.segment == index]
            ended.append(dict(free))
            start = max([0, *coming, *(free.get(claim, 0) for claim in claims)])
            end = start + segment.end_us - segment.start_us
            free |= dict.fromkeys(claims, end)
            made.append(replace(segment, start_us=start, end_us=end))
        busy: dict[str, int] = {}
        sent = []
        for one in transfers:
            task = f"t{one.id.split('.')[0]}"
            claims = [task, f"n{one.source}", f"n{one.target}"]
            past = ended[one.segment] if one.segment < len(ended) else free
            start = max([past.get(task, 0), *(busy.get(claim, 0) for claim in claims)])
            end = start + TRANSFER_US
            busy |= dict.fromkeys(claims, end)
            sent.append(replace(one, start_us=start, end_us=end))
        transfers, segments = sent, made
        if before == (transfers, segments):
            break
    net = replace(plan.net, transfers=tuple(transfers)) if plan.net else None
    return foretold(replace(plan, segments=tuple(segments), net=net))


def tight(plan: Plan) -> Plan:
    """The plan with the smallest budget that each of its several nodes can do with."""
    nodes = {device.node for device in plan.devices}
    if len(nodes) == 1:
        return plan
    most = max(taken(plan, node) for node in nodes)
    return replace(plan, host=replace(plan.host, budget_bytes=most))


def taken(plan: Plan, node: int) -> int:
    """Bytes of the store that ops touch on a node, and all of the shards that they or transfers
    touch there, unit by unit; and what the updates of a program have beside that."""
    host, nodes = {b.name: b for b in plan.host.buffers}, [d.node for d in plan.devices]
    programs = {program.name: program for program in plan.programs}
    names: set[str] = set()
    beside = 0
    for segment in plan.segments:
        largest: dict[str, int] = {}
        for op in every_op(programs[segment.program]):
            if node_of(op, segment.devices, nodes) == node:
                names |= {*op.reads.values(), *op.writes.values()}
                if op.stream.startswith("host"):
                    largest[op.stream] = max(largest.get(op.stream, 0), op.transient_bytes)
        beside = max(beside, sum(largest.values()))
    shards = {shard_of(name) for name in names}
    for one in plan.net.transfers if plan.net else ():
        if node in (one.source, one.target):
            shards |= {f"{one.id.split('.')[0]}.s{number}" for number in one.shards}
    names |= {name for name in host if shard_of(name) in shards - {""}}
    units = {
        at
        for name in names & host.keys()
        for at in range(host[name].offset, host[name].offset + align(host[name].bytes), ALIGNMENT)
    }
    return len(units) * ALIGNMENT + beside


def moved() -> Plan:
    """One program that runs on node 0 first and on node 1 afterwards."""
    return bring(on_nodes(handmade.moved(), (0, 1)))


def gang() -> Plan:
    """A pipeline on two of three devices beside a task on one, both in turns on any of them."""
    return bring(on_nodes(handmade.gang(), (0, 0, 1)))


def across() -> Plan:
    """A pipeline with a stage on each node, which nothing moves between."""
    return bring(on_nodes(handmade.pipeline(), (0, 1)))


def replicas() -> Plan:
    """One shard on both nodes; the second gets its parameters anew when a segment begins."""
    part = parallel_part("a")
    runs = [("solo", (0, 1), 2), ("solo", (0, 1), 1), ("solo", (1, 0), 1)]
    plan = handmade.assemble([part], [handmade.program("solo", 2, [part])], runs)
    return bring(on_nodes(plan, (0, 1)))


def turns() -> Plan:
    """Three tasks that all train on three nodes, in turn, two of them updated on the host."""
    parts = [streamed_part("a"), resident_part("b"), packed_part("c")]
    runs = [("a", 0, 1), ("b", 1, 1), ("c", 2, 1), ("b", 0, 1), ("a", 1, 1), ("c", 0, 1)]
    runs += [("a", 2, 2), ("b", 1, 2), ("c", 1, 2)]
    return bring(on_nodes(solos(parts, runs), (0, 1, 2)))


def mixed() -> Plan:
    """A pipeline within a node, then across two, and a task beside it on four devices of two
    nodes."""
    parts = [pipeline_part("a"), streamed_part("b", shards=2)]
    programs = [
        handmade.program("a", 2, parts[:1]),
        handmade.program("b", 1, parts[1:]),
    ]
    runs = [("a", (0, 1), 1), ("b", (2,), 2), ("a", (3, 2), 1), ("b", (1,), 1), ("a", (1, 3), 2)]
    plan = handmade.assemble(parts, programs, [*runs, ("b", (2,), 1)])
    return bring(on_nodes(plan, (0, 0, 1, 1)))


NODED = {made.__name__: made for made in (moved, gang, across, replicas, turns, mixed)}
