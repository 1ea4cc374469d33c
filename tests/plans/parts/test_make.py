"""The parts of plans: what a process gets, and what it does not."""

from random import Random

import msgspec
import pytest
from support import handmade, synthetic
from support.noded import NODED
from support.piped import drawn, piped, planned

from plans import violations
from plans.order import held
from plans.parts import Part, parts, whole
from plans.schema import Plan


def replicated(replicas: int) -> Plan:
    """Two stages with so many replicas each, which all do the same."""
    task = synthetic.task("a", layers=2, batch=4 * replicas)
    first, second = tuple(range(replicas)), tuple(range(replicas, 2 * replicas))
    return planned(piped(task, (0, 1, 2), (first, second), "1f1b"))


def each_alone(plan: Plan) -> dict[int, Part]:
    """The parts of processes that have one device each."""
    return parts(plan, range(len(plan.devices)))


def extent(part: Part) -> list[int]:
    """Ops, buffers, ways and devices that a process knows."""
    (program,) = part.programs
    phases = program.phases.values()
    ops = sum(len(phase.ops) + len(phase.takes) for phase in phases)
    counted = sum(sum(phase.counts.values()) for phase in phases)
    return [ops, counted, len(program.buffers), len(part.pairs), len(part.ranks), len(part.buffers)]


def test_what_a_process_gets_does_not_grow_with_devices() -> None:
    """Of a pipeline in replicas, the last of which does the same among eight and among thirty-two
    devices."""
    small, large = replicated(4), replicated(16)
    one, other = each_alone(small)[3], each_alone(large)[15]
    assert extent(one) == extent(other)
    sizes = [len(msgspec.msgpack.encode(part)) for part in (one, other)]
    assert sizes[1] < 1.05 * sizes[0]  # numbers have more digits
    assert len(msgspec.json.encode(large)) > 3 * len(msgspec.json.encode(small))


def test_a_process_gets_nothing_of_what_others_train() -> None:
    """Its tasks, programs and segments are those of its devices."""
    plan = handmade.crowd()
    for rank, part in each_alone(plan).items():
        own = {i for i, segment in enumerate(plan.segments) if rank in segment.devices}
        trained = {name for i in own for name in plan.trained(plan.segments[i])}
        assert part.segments.keys() == own
        assert {program.name for program in part.programs} == {
            plan.segments[i].program for i in own
        }
        names = {task.name for task in part.tasks}
        assert names == ({task.name for task in plan.tasks} if rank == 0 else trained)


@pytest.mark.parametrize("name", NODED)
def test_the_first_process_of_a_node_has_all_that_its_store_holds(name: str) -> None:
    """It writes there what tasks begin with, and sends and receives what is moved."""
    plan = NODED[name]()
    for part in each_alone(plan).values():
        first = part.first == 0
        shards = {(task, number) for task, own in part.held.items() for number in own}
        names = {task.name for task in part.tasks}
        kept = held(plan)[part.node]
        assert shards == {shard for shard in kept if shard[0] in names}
        assert not first or shards == kept
        assert bool(part.routes) == first


def test_one_process_has_all_of_a_plan() -> None:
    """With no process to tell, to wait for, or to connect to."""
    rng, seen = Random(1), 0
    while seen < 20:
        plan = planned(drawn(rng, 1, 4))
        if violations(plan):
            continue
        seen += 1
        part, (program,) = whole(plan), plan.programs
        (own,) = part.programs
        assert tuple(own.phases["round"].ops) == program.round
        assert own.buffers == program.buffers
        assert {b.name for b in part.buffers} <= {b.name for b in plan.host.buffers}
        assert part.slabs == {d: m.slab_bytes for d, m in enumerate(program.memory)}
        for phase in own.phases.values():
            assert (phase.takes, phase.tells, phase.places, phase.counts) == ((), {}, {}, {})
        assert (part.pair_count, part.route_count, part.segments[0].ranks) == (0, 0, [])
