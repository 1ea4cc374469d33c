"""Two tasks in one segment."""

import time
from functools import partial

import pytest
from msgspec import structs

from planner.answers import Answer, found
from planner.builder import assemble, build
from planner.costs import Links, TaskCosts
from planner.improve import resettled
from planner.joint import Pair
from planner.modes import Mode
from planner.names import renamed
from planner.pairs import Together
from planner.problem import Effort, Problem
from planner.rounds import Round
from planner.search import Found
from planner.strategy import Strategy
from plans.check import violations
from plans.metrics import duration_us
from plans.schema import Bound, Joint, Segment
from profiles import synthetic
from profiles.schema import Task

pytestmark = pytest.mark.usefixtures("quick")


def effort() -> Effort:
    return Effort(time.monotonic() + 60, 0)


def streamed(task: Task, links: Links) -> Round:
    """Every layer a shard, everything streamed, updated on the host."""
    costs, count = TaskCosts(task, task.batch), len(task.layers)
    modes = (Mode(),) * count
    choice = resettled(Strategy(costs, tuple(range(count + 1)), modes, count - 1))
    return Round(choice, links, 0)


@pytest.mark.parametrize("norms", [(False, False), (True, False), (True, True)])
def test_two_tasks_in_one_round_are_sound_and_faster(norms: tuple[bool, bool]) -> None:
    """One task that computes beside one that streams, their updates waiting for norms or not: the
    checker proves their common program, and a round of it is shorter than one of each."""
    one = chain("a", steps=9, forward_us=4_000, param_bytes=1 << 18, norms=norms[0])
    other = chain("b", steps=9, forward_us=200, param_bytes=4 << 20, norms=norms[1])
    made = synthetic.profile(one, other, usable_bytes=1 << 28, bytes_per_s=2_000_000_000)
    asked = Problem.of(made, devices=1, device_bytes=None, host_bytes=None)
    rounds = [streamed(task, Links.of(asked.device)) for task in (one, other)]
    pair = Pair(*rounds)
    program = pair.program()
    assert program.period_us == pair.period_us
    assert program.period_us < 0.9 * sum(each.period_us for each in rounds)
    each_found = {
        each.choice.costs.task.name: Found(each.choice, each.program(), 1, True) for each in rounds
    }
    joint = Joint(program.name, duration_us(program, 9), 10**9)
    plan = assemble(
        asked,
        [Answer(f.choice, f.program, 1, True) for f in each_found.values()],
        [Together(each_found, program, 0, joint)],
        [Segment(program.name, (0,), 9, 0, duration_us(program, 9))],
        (Bound("none", 0),),
        "0" * 64,
        "gantry",
        0,
    )
    assert violations(plan) == []
    assert [p.name for p in plan.programs] == ["a+b"]
    assert plan.solver.joint == (joint,)


def beside(*tasks: Task, devices: int) -> Problem:
    """Devices with too little memory for such tasks' state."""
    profile = synthetic.profile(*tasks, usable_bytes=30 << 20, bytes_per_s=2_000_000_000)
    return Problem.of(profile, devices=devices, device_bytes=None, host_bytes=1 << 40)


chain = partial(synthetic.task, layers=5, batch=1)


def test_pairs_of_the_same_shapes_have_the_same_programs() -> None:
    """Two devices and two tasks of each of two shapes: their common programs differ in names only,
    what is left of the longer tasks as well, and all are proven."""
    made = [
        chain("a", forward_us=4_000, param_bytes=1 << 18, steps=4_000),
        chain("b", forward_us=200, param_bytes=4 << 20, steps=5_000),
    ]
    tasks = [structs.replace(task, name=f"{task.name}{i}") for i in (0, 1) for task in made]
    plan = build(beside(*tasks, devices=2), profile_sha256="0" * 64)
    assert violations(plan) == []
    programs = {program.name: program for program in plan.programs}
    one, other = (programs[joint.program] for joint in plan.solver.joint)
    first, second = (sorted(program.tasks) for program in (one, other))
    assert [name[0] for name in first] == ["a", "b"]
    again = renamed(one, dict(zip(first, second, strict=True)))
    assert structs.replace(again, name=other.name) == other
    assert renamed(programs["b0"], {"b0": "b1"}) == programs["b1"]


def test_a_pair_ends_sooner_than_its_tasks_one_after_the_other() -> None:
    """What computes and what copies, on one device."""
    tasks = [
        chain("a", forward_us=4_000, param_bytes=1 << 18, steps=4_000),
        chain("b", forward_us=200, param_bytes=4 << 20, steps=5_000),
    ]
    asked = beside(*tasks, devices=1)
    alone_us = sum(
        duration_us(answer.program, task.steps)
        for answer, task in zip(found(asked, effort(), 1), tasks, strict=True)
    )
    plan = build(asked, profile_sha256="0" * 64)
    assert [joint.program for joint in plan.solver.joint] == ["a+b"]
    assert plan.prediction.makespan_us < alone_us


def test_a_task_shares_its_device_with_one_after_the_other() -> None:
    """Two tasks that compute take turns beside one that copies for longer than both."""
    tasks = [
        chain("a", forward_us=4_000, param_bytes=1 << 18, steps=2_000),
        chain("b", forward_us=200, param_bytes=4 << 20, steps=5_000),
        chain("c", forward_us=3_000, param_bytes=1 << 18, steps=2_000),
    ]
    plan = build(beside(*tasks, devices=1), profile_sha256="0" * 64)
    assert violations(plan) == []
    shared = [set(joint.program.split("+")) for joint in plan.solver.joint]
    assert {"a", "b"} in shared
    assert {"b", "c"} in shared
