"""Tasks on several nodes: each keeps to its own, and its states are where they are read, as their
execution on bytes says."""

from dataclasses import replace

import pytest
from msgspec import structs
from support import synthetic
from support.replayed import run_harm

import plans
from planner import Infeasible, Problem, build
from planner.inputs import Layout, Nodes, on_nodes
from planner.inputs.problem import Policy
from plans.order import nodes_of, store_bytes
from plans.schema import Plan
from profiles.schema import Evaluation, Link, Rate

pytestmark = pytest.mark.usefixtures("quick")

HASH = "0" * 64


def problem(nodes: Nodes, tasks: int, *, steps: int = 40, every: int | None = None) -> Problem:
    """Tasks on nodes, evaluated every so many steps."""
    made = [synthetic.task(f"t{number}", layers=4, steps=steps, batch=4) for number in range(tasks)]
    if every:
        own = Evaluation(every=every, batches=2)
        made = [structs.replace(task, evaluation=own) for task in made]
    asked = synthetic.problem(*made, usable_bytes=64 << 20, devices=nodes.total)
    net = Link("net", Rate(10**9, 20), Rate(10**9, 20))
    device = structs.replace(asked.device, links=(*asked.device.links, net))
    return on_nodes(asked.alike(device=device), nodes)


def built(asked: Problem) -> Plan:
    """Its plan, proven."""
    return build(asked, profile_sha256=HASH)


@pytest.mark.parametrize("policy", ["gantry", "hydra"])
def test_tasks_keep_to_their_node(policy: Policy) -> None:
    """Three tasks on two nodes of two devices, of which no work can be shared out evenly."""
    asked = replace(problem(Nodes(2, 2), 5), layout=Layout(((1,),)) if policy == "gantry" else None)
    plan = build(asked, profile_sha256=HASH, policy=policy)
    nodes: dict[str, set[int]] = {}
    for segment in plan.segments:
        nodes.setdefault(segment.program, set()).update(nodes_of(plan, segment))
    assert sorted(map(len, nodes.values())) == [1] * 5
    assert set.union(*nodes.values()) == {0, 1}


def test_a_task_is_shared_out_to_the_devices_of_its_node() -> None:
    """Six equal tasks on two nodes of two devices: each node's three are longer whole."""
    plan = built(replace(problem(Nodes(2, 2), 6), layout=Layout(((1,),))))
    assert len(plan.segments) > 6
    assert plan.prediction.makespan_us < 1.1 * plan.prediction.configuration_us


def test_a_pipeline_over_two_nodes_has_its_states_there() -> None:
    """Stages update where they are."""
    plan = built(replace(problem(Nodes(2, 1), 1, steps=4), layout=Layout(((1, 1),))))
    assert {nodes_of(plan, segment) for segment in plan.segments} == {(0, 1)}
    assert run_harm(plan) is None


@pytest.mark.parametrize("layout", [Layout(((2, 2),)), Layout(((4,),))])
def test_what_trains_on_several_nodes_is_evaluated_there(layout: Layout) -> None:
    """Each pass where it trains, with the parameters of the node that has the shard's state."""
    plan = built(replace(problem(Nodes(2, 2), 1, every=10), layout=layout))
    programs = {program.name: program for program in plan.programs}
    assert {programs[one.program].evaluates for one in plan.segments} == {True, False}
    assert {nodes_of(plan, segment) for segment in plan.segments} == {(0, 0, 1, 1)}
    assert plans.violations(plan) == []


def test_replicas_on_several_nodes_get_what_their_home_wrote() -> None:
    """Their segments begin with the parameters of the ones before, over the network."""
    asked = problem(Nodes(2, 2), 1, steps=4)
    asked = replace(asked, layout=Layout(((4,),)), segment_steps=2)
    plan = built(asked)
    assert {nodes_of(plan, segment) for segment in plan.segments} == {(0, 0, 1, 1)}
    enter = [op.id.split(".")[2][0] for op in plan.programs[0].enter]
    assert enter.count("X") == 2 * len(plan.tasks[0].shards)
    assert plans.violations(plan) == []
    assert run_harm(plan) is None


def test_a_program_is_on_one_node_or_on_whole_ones() -> None:
    """Gangs of two on three nodes of two."""
    plan = built(replace(problem(Nodes(3, 2), 4), layout=Layout(((1, 1),))))
    assert all(len(set(nodes_of(plan, segment))) == 1 for segment in plan.segments)


def test_every_node_has_memory_for_its_own_tasks() -> None:
    """Four tasks on two nodes, either of which has room for two."""
    asked = replace(problem(Nodes(2, 1), 4), layout=Layout(((1,),)))
    most = max(store_bytes(built(asked)))
    plan = built(replace(asked, host_bytes=most))
    assert plan.host.bytes > most >= max(store_bytes(plan))
    with pytest.raises(Infeasible, match="smallest --host-memory that would do"):
        built(replace(asked, host_bytes=most // 3))
