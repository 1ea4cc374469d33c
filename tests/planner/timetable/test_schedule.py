"""When tasks run, as `build` and its options have it."""

from pathlib import Path

import pytest
from msgspec import structs
from support import synthetic
from support.cli import planner_cli, refused, succeeded
from support.time_indexed import alike

import plans
import profiles
from planner.timetable.jobs import makespan
from planner.timetable.list_schedule import list_schedule, longest_remaining
from plans.timing import task_spans
from profiles.units import show_clock

pytestmark = pytest.mark.usefixtures("quick")


@pytest.fixture(autouse=True)
def three_tasks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """p.json: three tasks of one shape that fit, of 100, 200 and 300 steps."""
    monkeypatch.chdir(tmp_path)
    task = synthetic.task("t", layers=2, seed=1, batch=2)
    tasks = [structs.replace(task, name=n, steps=100 * k) for k, n in enumerate("abc", 1)]
    profiles.save("p.json", synthetic.profile(*tasks, usable_bytes=64 << 20))


def built(*options: object) -> plans.Plan:
    """The plan that such a build writes, which must be sound."""
    succeeded(planner_cli("build", "p.json", "-o", "plan.json", *options))
    plan = plans.load("plan.json")
    plans.prove(plan)
    return plan


def ends(plan: plans.Plan) -> dict[str, int]:
    return {name: end_us for name, (_, end_us) in task_spans(plan).items()}


@pytest.mark.parametrize("policy", ["gantry", "hydra"])
def test_every_policy_makes_a_sound_plan(policy: str) -> None:
    """Whose makespan is not below the bound on schedules of its programs."""
    plan = built("--devices", 2, "--policy", policy)
    assert plan.solver.policy == policy
    assert 0 < plan.prediction.configuration_us <= plan.prediction.makespan_us


def test_the_first_of_a_list_goes_where_a_device_falls_free_first() -> None:
    """Whole jobs, in the order that is given."""
    jobs = [alike(f"t{n}", n, 0, 10) for n in (3, 1, 2)]
    made = list_schedule(jobs, (0, 2, 1), (0, 0))
    assert [(p.job, *p.devices) for p in made] == [("t3", 0), ("t2", 1), ("t1", 1)]


def test_the_longest_remaining_task_is_taken_again_and_again() -> None:
    """Three equal tasks on two devices take turns, and end at the even share but for a round."""
    jobs = [alike(f"t{n}", 160, 0, 10) for n in range(3)]
    made = longest_remaining(jobs, (0, 0))
    assert len(made) > 3
    assert makespan(made) <= 2400 + 10


def test_the_mean_completion_puts_short_tasks_first() -> None:
    """On one device in the order of their lengths, and the plan's provenance says why."""
    plan = built("--objective", "completion")
    assert [segment.program for segment in plan.segments] == ["a", "b", "c"]
    assert plan.provenance["objective"] == "completion"


def test_a_priority_puts_a_long_task_first() -> None:
    """What weighs ten times as much and takes three times as long."""
    plan = built("--objective", "completion", "--priority", "c=10")
    assert plan.segments[0].program == "c"


def test_a_deadline_is_kept() -> None:
    """The longest task is due first, to the µs."""
    last = ends(built("--objective", "completion"))
    us = last["c"] - last["b"]
    plan = built("--deadline", f"c={show_clock(us)}", "--objective", "completion")
    assert ends(plan)["c"] <= us
    assert plan.provenance["deadline c"] == f"{us} us"


def test_a_deadline_that_is_missed_is_told_with_both_numbers() -> None:
    """When the task ends, when it is due, and what would help; exit code 3."""
    answer = planner_cli("build", "p.json", "-o", "late.json", "--deadline", "c=1ms")
    refused(answer, 3, "is due at 1.0 ms (1000 µs); give it --deadline c=")
    assert not Path("late.json").exists()


def test_the_deadline_named_would_do() -> None:
    """Asked for it, the build ends in a plan."""
    answer = planner_cli("build", "p.json", "-o", "late.json", "--deadline", "c=1ms")
    named = answer.err.split("give it --deadline ")[1].split(",")[0]
    built("--deadline", named)


def test_a_task_begins_no_sooner_than_asked() -> None:
    """The device waits for it if there is nothing else to do."""
    plan = built("--devices", 3, "--start", "a=1h")
    (segment,) = [s for s in plan.segments if s.program == "a"]
    assert segment.start_us == 3_600_000_000
    assert plan.prediction.configuration_us == plan.prediction.makespan_us


def test_show_tells_the_bound_of_these_programs() -> None:
    """With its gap, beside the bounds of any plan."""
    built("--devices", 2)
    shown = succeeded(planner_cli("show", "plan.json")).out
    assert "of these programs" in shown
    assert "mean completion" in shown
