"""Two tasks in one segment."""

from functools import partial

import pytest

from planner.builder import Answer, assemble
from planner.choice import Choice
from planner.costs import Links, TaskCosts
from planner.improve import resettled
from planner.joint import Pair
from planner.modes import Mode
from planner.pairs import Together
from planner.problem import Problem
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
