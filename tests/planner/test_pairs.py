"""Two tasks in one segment."""

import time
from functools import partial

import pytest
from msgspec import structs

from planner.answers import Answer, found
from planner.bounds import lower_bounds
from planner.builder import assemble
from planner.choice import Choice
from planner.costs import Links, TaskCosts
from planner.improve import resettled
from planner.joint import Pair
from planner.modes import Mode
from planner.names import renamed
from planner.pairs import Together, together
from planner.problem import Effort, Problem
from planner.rounds import Round
from planner.search import Found
from plans.check import violations
from plans.metrics import duration_us
from plans.schema import Bound, Joint, Segment
from profiles import synthetic
from profiles.schema import Task


def streamed(task: Task, links: Links) -> Round:
    """Every layer a shard, everything streamed, updated on the host."""
    costs, count = TaskCosts(task, task.batch), len(task.layers)
    modes = (Mode(),) * count
    choice = resettled(Choice(costs, tuple(range(count + 1)), modes, count - 1))
    return Round(choice, links, 0)


@pytest.mark.parametrize("norms", [(False, False), (True, False), (True, True)])
def test_two_tasks_in_one_round_are_sound_and_faster(norms: tuple[bool, bool]) -> None:
    """One task that computes beside one that streams, their updates waiting for norms or not: the
    checker proves their common program, and a round of it is shorter than one of each."""
    chain = partial(synthetic.task, layers=5, batch=1, steps=9)
    one = chain("a", forward_us=4_000, param_bytes=1 << 18, norms=norms[0])
    other = chain("b", forward_us=200, param_bytes=4 << 20, norms=norms[1])
    made = synthetic.profile(one, other, usable_bytes=1 << 28, bytes_per_s=2_000_000_000)
    asked = Problem.of(made, devices=1, device_bytes=None, host_bytes=None)
    rounds = [streamed(task, Links.of(asked.device)) for task in (one, other)]
    pair = Pair(*rounds)
    program = pair.program()
    assert program.period_us == pair.period_us
    assert program.period_us < 0.9 * sum(each.period_us for each in rounds)
    found = {
        each.choice.costs.task.name: Found(each.choice, each.program(), 1, True) for each in rounds
    }
    joint = Joint(program.name, duration_us(program, 9), 10**9)
    plan = assemble(
        asked,
        [Answer(f.choice, f.program, 1, True) for f in found.values()],
        [Together(found, program, None, 9, 0, joint)],
        [Segment(program.name, (0,), 9, 0, duration_us(program, 9))],
        (Bound("none", 0),),
        "0" * 64,
        "gantry",
        0,
    )
    assert violations(plan) == []
    assert [p.name for p in plan.programs] == ["a+b"]
    assert plan.solver.joint == (joint,)


def test_pairs_of_the_same_shapes_have_the_same_programs() -> None:
    """Two devices with two such tasks each: their common programs differ in names only, what is
    left of the longer task as well, and all are proven."""
    chain = partial(synthetic.task, layers=5, batch=1)
    made = [
        chain("a", forward_us=4_000, param_bytes=1 << 18, steps=4_000),
        chain("b", forward_us=200, param_bytes=4 << 20, steps=5_000),
    ]
    tasks = [structs.replace(task, name=f"{task.name}{i}") for i in (0, 1) for task in made]
    profile = synthetic.profile(*tasks, usable_bytes=30 << 20, bytes_per_s=2_000_000_000)
    asked = Problem.of(profile, devices=2, device_bytes=None, host_bytes=1 << 40)
    effort = Effort(time.monotonic() + 60, 0)
    answers = found(asked, effort, 1)
    programs = {one.program.name: one.program for one in answers}
    segments = []
    for index, task in enumerate(tasks):
        us = duration_us(programs[task.name], task.steps)
        begin = segments[-1].end_us if index % 2 else 0
        segments.append(Segment(task.name, (index // 2,), task.steps, begin, begin + us))
    pairs, lines = together(asked, programs, segments, effort)
    assert [pair.program.name for pair in pairs] == ["a0+b0", "a1+b1"]
    assert renamed(pairs[0].program, {"a0": "a1", "b0": "b1"}) == pairs[1].program
    of = {name: Answer(f.choice, f.program, 1, True) for p in pairs for name, f in p.found.items()}
    bounds = lower_bounds(asked, effort, phased=False)
    joined = [of[task.name] for task in tasks]
    plan = assemble(asked, joined, pairs, lines, bounds, "0" * 64, "gantry", 0)
    assert violations(plan) == []
