"""Transfers between nodes: states are where they are read, as a walk of its own says."""

from dataclasses import replace
from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs
from support import synthetic
from support.astray import astray

import plans
from planner import Infeasible, Problem, build
from planner.inputs import Layout, Nodes, on_nodes
from planner.storage.transfers import networked
from plans.order import laid_out, nodes_of, store_bytes
from plans.schema import Plan
from profiles.schema import Evaluation, Link, Rate

pytestmark = pytest.mark.usefixtures("quick")

HASH = "0" * 64


def problem(
    nodes: Nodes, tasks: int, *, steps: int = 40, rate: int = 10**9, every: int | None = None
) -> Problem:
    """Tasks on nodes with a network of so many bytes per second; evaluated every so many steps."""
    made = [synthetic.task(f"t{number}", layers=4, steps=steps, batch=4) for number in range(tasks)]
    if every:
        own = Evaluation(every=every, batches=2)
        made = [structs.replace(task, evaluation=own) for task in made]
    profile = synthetic.profile(*made, usable_bytes=64 << 20)
    asked = Problem.of(profile, devices=nodes.total, device_bytes=None, host_bytes=None)
    net = Link("net", Rate(rate, 20), Rate(rate, 20))
    device = structs.replace(asked.device, links=(*asked.device.links, net))
    return on_nodes(asked.alike(device=device), nodes)


def built(asked: Problem) -> Plan:
    """Its plan, proven."""
    return build(asked, profile_sha256=HASH)


def test_tasks_that_change_nodes_take_their_state_along() -> None:
    """Three tasks on two nodes of one device each: one is trained on both."""
    plan = built(problem(Nodes(2, 1), 3))
    assert plan.net
    assert plan.net.transfers
    assert astray(plan) == []
    moved = structs.replace(plan, net=None)
    assert any("reads an old" in one for one in astray(moved))


def test_tasks_stay_on_their_node_where_the_network_is_slow() -> None:
    """Then whole tasks are shorter than split ones."""
    plan = built(replace(problem(Nodes(2, 1), 3, rate=10**4)))
    assert plan.net is None
    assert astray(plan) == []


def test_a_pipeline_over_two_nodes_has_its_states_there() -> None:
    """Stages update where they are; an evaluation reads them all on one."""
    asked = replace(problem(Nodes(2, 1), 1, every=10), layout=Layout((1, 1)))
    plan = built(asked)
    assert plan.net
    assert {one.target for one in plan.net.transfers} == {0}
    assert astray(plan) == []


def test_replicas_on_several_nodes_get_what_their_home_wrote() -> None:
    """Their segments begin with the parameters of the ones before."""
    asked = replace(problem(Nodes(2, 1), 1), layout=Layout((2,)), segment_steps=10)
    plan = built(asked)
    assert plan.net
    assert {nodes_of(plan, segment) for segment in plan.segments} == {(0, 1)}
    assert astray(plan) == []
    assert plans.violations(plan) == []


def test_a_program_is_on_one_node_or_on_whole_ones() -> None:
    """Gangs of two on three nodes of two."""
    asked = replace(problem(Nodes(3, 2), 4), layout=Layout((1, 1)))
    plan = built(asked)
    assert all(len(set(nodes_of(plan, segment))) == 1 for segment in plan.segments)
    assert astray(plan) == []


@cache
def whole() -> tuple[Problem, Plan]:
    """Three tasks on two nodes of two devices, and a plan without transfers."""
    asked = replace(problem(Nodes(2, 2), 3), layout=Layout((1,)))
    return asked, structs.replace(built(asked), net=None)


@settings(max_examples=60)
@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 3)), min_size=1, max_size=10))
def test_any_segments_get_the_transfers_that_they_need(
    asked: list[tuple[int, int]],
) -> None:
    """Of any tasks on any devices, in any order; none goes where its task is."""
    problem, plan = whole()
    runs = [(plan.programs[n], (device,), 5, 0, ()) for n, device in asked]
    told = networked(problem, structs.replace(plan, segments=tuple(laid_out(runs))))
    assert astray(told) == []
    before, changes = dict[int, int](), 0
    for n, device in asked:
        changes += before.get(n, device // 2) != device // 2
        before[n] = device // 2
    assert len(told.net.transfers if told.net else ()) == changes


def test_every_node_has_memory_for_its_own_tasks() -> None:
    """Four tasks on two nodes, either of which has room for two."""
    asked = replace(problem(Nodes(2, 1), 4), layout=Layout((1,)))
    most = max(store_bytes(built(asked)))
    plan = built(replace(asked, host_bytes=most))
    assert plan.host.bytes > most >= max(store_bytes(plan))
    with pytest.raises(Infeasible, match="smallest --host-memory that would do"):
        built(replace(asked, host_bytes=most // 3))
