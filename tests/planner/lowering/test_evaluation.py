"""Evaluations in plans: where they are, how long they take, and that the checker watches them."""

from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs
from support import synthetic
from support.mutations import mutants
from support.oracle import harm

from planner import Infeasible, Problem, build
from planner.inputs.problem import Policy
from planner.lowering.evaluation import evaluating
from planner.rounds.hydra import HydraStrategy
from planner.search.searches import baselines
from planner.shards.costs import microbatch_costs
from planner.shards.modes import Mode
from planner.shards.shard_cost import Links
from planner.timetable.assign_jobs import jobs_of
from plans import violations
from plans.schema import Plan
from plans.timing import duration_us
from profiles.errors import FormatError
from profiles.schema import Evaluation, Task

pytestmark = pytest.mark.usefixtures("quick")


def chain(name: str, steps: int, evaluation: Evaluation | None, seed: int = 0) -> Task:
    """A small chain of layers, in microbatches of one or more."""
    made = synthetic.task(
        name,
        layers=4,
        seed=seed,
        steps=steps,
        batch=4,
        param_bytes=4096,
        boundary_bytes=2048,
    )
    return structs.replace(made, evaluation=evaluation)


def asked(*tasks: Task, devices: int = 1, kib: int = 64) -> Problem:
    profile = synthetic.profile(*tasks, usable_bytes=kib << 10)
    return Problem.of(profile, devices=devices, device_bytes=None, host_bytes=None)


def planned(problem: Problem, policy: Policy = "gantry") -> Plan:
    return build(problem, profile_sha256="0" * 64, policy=policy, seconds=10)


def course(plan: Plan, task: str) -> list[tuple[bool, int]]:
    """Of a task's segments: whether they evaluate, and how many rounds."""
    programs = {program.name: program for program in plan.programs}
    own = [(programs[s.program], s.rounds) for s in plan.segments]
    return [(program.evaluates, rounds) for program, rounds in own if task in program.tasks]


@pytest.mark.parametrize("policy", ["gantry", "hydra"])
def test_an_evaluation_follows_every_so_many_steps(policy: Policy) -> None:
    """On the device of the segment before it; none follows the last steps, which are too few."""
    tasks = (chain("a", 7, Evaluation(3, 2)), chain("b", 4, None, seed=1))
    plan = planned(asked(*tasks), policy)
    pieces = course(plan, "a")
    told = "".join(rounds * ("e" if evaluates else "t") for evaluates, rounds in pieces)
    assert told == "tttee" + "tttee" + "t"
    assert sum(rounds for _, rounds in course(plan, "b")) == 4
    programs = {program.name: program for program in plan.programs}
    for segment in plan.segments:
        program = programs[segment.program]
        assert segment.end_us - segment.start_us == duration_us(program, segment.rounds)


def test_short_segments_and_evaluations_cut_alike() -> None:
    """Both bounds hold."""
    problem = asked(chain("a", 6, Evaluation(3, 2)))
    plan = planned(replace(problem, segment_steps=2))
    train, judge = (False, 2), (True, 2)
    assert course(plan, "a") == [train, (False, 1), judge, train, (False, 1), judge]


@pytest.mark.parametrize(
    ("steps", "every", "most"), [(10**7, 2, None), (1 << 50, 1 << 49, 3), (1 << 50, 2, None)]
)
def test_too_many_segments_are_refused(steps: int, every: int, most: int | None) -> None:
    """At once and with both numbers, before anything is listed."""
    problem = replace(asked(chain("a", steps, Evaluation(every, 1))), segment_steps=most)
    with pytest.raises(FormatError, match=r"^a: .* segments, a plan has 100000 at most; evaluate"):
        planned(problem)


def test_what_was_owed_comes_first() -> None:
    """A task that goes on after a step whose evaluation is missing begins with it."""
    problem = asked(chain("a", 5, Evaluation(3, 2, owed=True)))
    plan = planned(replace(problem, done={"a": 3}))
    assert course(plan, "a") == [(True, 2), (False, 3), (True, 2), (False, 2)]


def test_evaluations_leave_no_gaps() -> None:
    """On one device everything follows without a pause, exactly timed; and what the placement
    thinks of as a task's time is no less than what it takes."""
    tasks = (chain("a", 6, Evaluation(1, 4)), chain("b", 6, None, seed=1))
    problem = asked(*tasks)
    plan = planned(problem)
    times = sorted((segment.start_us, segment.end_us) for segment in plan.segments)
    assert [start for start, _ in times] == [0, *(end for _, end in times[:-1])]
    programs = {program.name: program for program in plan.programs}
    (a,), (b,) = baselines(problem).ways  # for their names
    a = replace(a, programs=(programs["a"],), evaluates=(programs["a.eval"],))
    works = jobs_of(problem, [a, replace(b, programs=(programs["b"],))])
    assert sum(work.us(0, work.rounds) for work in works) >= plan.prediction.makespan_us


@settings(max_examples=15)
@given(seed=st.integers(0, 50), kib=st.integers(12, 60), cuts=st.sets(st.integers(1, 3)))
def test_the_shortest_that_fits_is_sound(seed: int, kib: int, cuts: set[int]) -> None:
    """Whatever fits a device is a program within its bytes; the rest says what would do."""
    (costs, *_) = microbatch_costs(chain("a", 2, Evaluation(1, 2), seed))
    strategy = HydraStrategy(costs, (0, *sorted(cuts), 4), (Mode(),) * (len(cuts) + 1), 1)
    links = Links.of(synthetic.machine(usable_bytes=1 << 20).devices[0])
    try:
        program = evaluating(strategy, links, kib << 10)
    except Infeasible as error:
        program = evaluating(strategy, links, error.smallest)
        with pytest.raises(Infeasible):
            evaluating(strategy, links, error.smallest - 1)
        kib = error.smallest
    (memory,) = program.memory
    assert memory.slab_bytes + memory.reserve_bytes <= kib << 10
    assert program.evaluates
    assert not program.leave


@pytest.mark.parametrize("seed", range(3))
def test_what_can_be_trained_can_be_evaluated(seed: int) -> None:
    """Where batches are large too, of which training has one at a time on a small device."""
    task = chain("a", 2, Evaluation(1, 2), seed)
    batches = (structs.replace(size, batch_bytes=1 << 16) for size in task.batches)
    task = structs.replace(task, batches=tuple(batches))
    bare = structs.replace(task, evaluation=None)
    with pytest.raises(Infeasible) as caught:
        planned(asked(bare).alike(device_bytes=1))
    plan = planned(asked(task).alike(device_bytes=caught.value.smallest))
    assert {program.name for program in plan.programs} == {"a", "a.eval"}


def test_every_harmful_change_is_refused(record_property: Callable[[str, object], None]) -> None:
    """The oracle, which shares no code with the checker, says which changes do harm."""
    plan = planned(asked(chain("a", 4, Evaluation(2, 2)), kib=40))
    assert harm(plan, orders=3) is None
    harmful, missed = 0, []
    for mutant in mutants(plan, seed=1, limit=100):
        why = harm(mutant.plan)
        harmful += bool(why)
        if why and not violations(mutant.plan):
            missed.append(f"{mutant.name}: {why}")
    record_property("kill rate", f"{harmful - len(missed)}/{harmful}")
    assert harmful > 50
    assert not missed
