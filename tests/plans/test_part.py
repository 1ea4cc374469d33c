"""A plan as its processes see it: what a process has, and what it does not."""

import pytest
from support import handmade
from support.noded import NODED

from plans.order import held
from plans.part import Part
from plans.schema import Plan


def each_alone(plan: Plan) -> list[Part]:
    """The parts of processes that have one device each."""
    ranks = range(len(plan.devices))
    return [Part(plan, ranks, me) for me in ranks]


def test_a_process_has_nothing_of_what_others_train() -> None:
    """Its segments and tasks are those of its devices; process 0, which leads, has all tasks."""
    plan = handmade.crowd()
    for part in each_alone(plan):
        own = [segment for segment in plan.segments if part.me in segment.devices]
        assert [segment for segment in plan.segments if part.runs(segment)] == own
        trained = {name for segment in own for name in plan.trained(segment)}
        names = {task.name for task in part.tasks}
        assert names == ({task.name for task in plan.tasks} if part.me == 0 else trained)


@pytest.mark.parametrize("name", NODED)
def test_the_first_process_of_a_node_has_all_that_its_store_holds(name: str) -> None:
    """It writes there what tasks begin with, and sends and receives what is moved."""
    plan = NODED[name]()
    for part in each_alone(plan):
        kept = held(plan)[part.node]
        assert {(task, number) for task, own in part.held.items() for number in own} == kept
        first = part.node_devices[0] == part.me
        assert first == (part.firsts[part.node] == part.me)
        assert not first or part.held.keys() <= {task.name for task in part.tasks}


def test_a_slab_is_that_of_the_largest_program_on_the_device() -> None:
    """In one process, which has all devices."""
    plan = handmade.crowd()
    most = {number: 0 for number in range(len(plan.devices))}
    for segment in plan.segments:
        memory = plan.program(segment.program).memory
        for number, one in zip(segment.devices, memory, strict=True):
            most[number] = max(most[number], one.slab_bytes)
    assert Part.whole(plan).slabs == most
