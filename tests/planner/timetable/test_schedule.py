"""When tasks run, as `build` and its options have it."""

from pathlib import Path

import pytest
from msgspec import structs
from support import synthetic
from support.cli import planner_cli, refused, succeeded

import plans
import profiles
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
    answer = planner_cli("build", "p.json", "-o", "late.json", "--deadline", "c=1ms")
    named = answer.err.split("give it --deadline ")[1].split(",")[0]
    built("--deadline", named)


@pytest.mark.parametrize("options", [(), ("--segment-steps", 40)])
def test_a_task_begins_no_sooner_than_asked(options: tuple[object, ...]) -> None:
    """The device waits for it if there is nothing else to do; runs find the start in the plan."""
    plan = built("--devices", 3, "--start", "a=1h", *options)
    starts = [segment.start_us for segment in plan.segments if segment.program == "a"]
    assert min(starts) == plan.task("a").start_us == 3_600_000_000
    assert plan.prediction.configuration_us <= plan.prediction.makespan_us
    assert "not before 1.00 h" in succeeded(planner_cli("show", "plan.json")).out


def test_show_tells_the_bound_of_these_programs() -> None:
    built("--devices", 2)
    shown = succeeded(planner_cli("show", "plan.json")).out
    assert "of these programs" in shown
    assert "mean completion" in shown
