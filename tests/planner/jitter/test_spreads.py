"""How far ops spread, from what layers measured."""

import json
from math import sqrt
from pathlib import Path

import pytest
from msgspec.structs import replace
from support.cli import planner_cli, refused, succeeded

import plans
import profiles
from planner.jitter import Spread, jitter, spreads
from plans.ops import parse_id
from plans.schema import Plan
from profiles.schema import LayerCost, Time

ROOT = Path(__file__).parents[3]
PLAN, PROFILE = ROOT / "plans" / "sample.json", ROOT / "profiles" / "sample.json"


def _spreads(plan: Plan, profile: profiles.Profile, name: str) -> dict[str, Spread]:
    (task,) = (task for task in profile.tasks if task.name == name)
    return spreads(plan.program(name), {name: plan.task(name)}, {name: [task]})


def test_layers_vary_independently() -> None:
    """An op of several layers spreads by the root of their squares, in proportion to its time; I
    and W as the backward that they are halves of."""
    plan, profile = plans.load(PLAN), profiles.load(PROFILE)
    name = plan.tasks[0].name
    found = _spreads(plan, profile, name)
    (measured,) = (task for task in profile.tasks if task.name == name)
    op = next(op for op in plan.program(name).round if op.name.kind == "F")
    shard = plan.task(name).shards[op.name.number]
    layers = measured.layers[shard.first_layer : shard.end_layer]
    size = plan.task(name).microbatch
    times = [next(c for c in layer.costs if c.microbatch == size).forward for layer in layers]
    us, median = op.end_us - op.start_us, sum(time.median_us for time in times)
    low = sqrt(sum((t.median_us - t.p10_us) ** 2 for t in times)) * us / median
    high = sqrt(sum((t.p90_us - t.median_us) ** 2 for t in times)) * us / median
    assert found[op.id] == pytest.approx((low, high), abs=3)


def test_copies_and_steady_layers_have_no_spread() -> None:
    """Of what was measured alike each time there is nothing to tell."""
    plan, profile = plans.load(PLAN), profiles.load(PROFILE)
    name = plan.tasks[0].name
    kinds = {parse_id(op).kind for op in _spreads(plan, profile, name)}
    assert kinds == {"F", "B", "U"}

    def steady(time: Time) -> Time:
        return replace(time, p10_us=time.median_us, p90_us=time.median_us)

    def still(cost: LayerCost) -> LayerCost:
        both, alone = steady(cost.recompute_backward), steady(cost.backward)
        return replace(cost, forward=steady(cost.forward), recompute_backward=both, backward=alone)

    tasks = tuple(
        replace(
            task,
            layers=tuple(replace(x, costs=tuple(map(still, x.costs))) for x in task.layers),
        )
        for task in profile.tasks
    )
    found = _spreads(plan, replace(profile, tasks=tasks), name)
    assert {parse_id(op).kind for op in found} == {"U"}


def test_the_command_prints_what_the_function_finds() -> None:
    """Median and 95th percentile of every program, and what makes steps longer."""
    plan, profile = plans.load(PLAN), profiles.load(PROFILE)
    name = plan.tasks[0].name
    ask = ("show", PLAN, "--jitter", "--profile", PROFILE, "--task", name)
    told = json.loads(succeeded(planner_cli(*ask, "--json")).out)
    found = jitter(plan.program(name), _spreads(plan, profile, name), seed=plan.solver.seed)
    assert list(told) == [name]
    assert told[name]["p50_us"] == found.quantile(50)
    assert told[name]["p95_us"] == found.quantile(95) > found.planned_us
    text = succeeded(planner_cli(*ask)).out
    row = next(line for line in text.splitlines() if line.startswith(f"  {name} "))
    assert row.split()[-1] == f"{found.quantile(95) / found.planned_us:.3f}"
    assert f"F of {name}.s1 on 0.compute" in text


def test_another_profile_is_refused(tmp_path: Path) -> None:
    """Spreads of something else say nothing: both hashes, exit code 2."""
    other = tmp_path / "other.json"
    other.write_bytes(PROFILE.read_bytes() + b"\n")
    refused(
        planner_cli("show", PLAN, "--jitter", "--profile", other),
        2,
        "other.json: the plan was not made from this profile: its sha256 is ",
    )


@pytest.mark.parametrize("options", [("--jitter",), ("--profile", PROFILE)])
def test_jitter_and_profile_go_together(options: tuple[object, ...]) -> None:
    refused(planner_cli("show", PLAN, *options), 2, "give both or none")
