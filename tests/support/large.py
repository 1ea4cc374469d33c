"""A valid plan with a round as long as wanted, for benchmarks of the checker."""

from itertools import pairwise

from msgspec import structs

from planner.builder import Planned, assemble
from planner.choice import Choice
from planner.costs import Links, TaskCosts
from planner.problem import Problem
from planner.rounds import program
from plans.schema import Bound, Plan, Segment
from profiles import synthetic


def large_plan(ops: int) -> Plan:
    """One task of many single-layer shards and microbatches, all streamed through three slots."""
    layers, batch = 150, 32
    task = synthetic.task("a", layers=layers, steps=5, batch=batch, param_bytes=1 << 16)
    profile = synthetic.profile(task, usable_bytes=1 << 30)
    asked = Problem.of(profile, devices=1, device_bytes=None, host_bytes=None)
    cuts = tuple(range(layers + 1))
    assert all(a < b for a, b in pairwise(cuts))
    choice = Choice(TaskCosts(task, 1), cuts, frozenset(), 3, 2)
    timed = program(choice, Links.of(asked.device))
    assert len(timed.round) >= ops or ops > 10_000, len(timed.round)
    end = timed.enter_us + 4 * timed.period_us + timed.round_us + timed.leave_us
    planned = [Planned(choice, timed, 1, True)]
    segment = Segment("a", (0,), 5, 0, end)
    plan = assemble(asked, planned, [segment], (Bound("compute", 0),), "0" * 64, "gantry", 0)
    return structs.replace(plan, provenance={})
