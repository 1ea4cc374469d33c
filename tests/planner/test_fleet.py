"""How many devices would do, if any shard could run on any: against policy hydra's own program."""

import json
from itertools import pairwise
from pathlib import Path

import pytest
from msgspec import structs
from support.cli import planner_cli, refused, succeeded

import profiles
from planner import Infeasible, hydra
from planner.costs import Links
from planner.fleet import fleet, step_of
from planner.problem import Kind
from profiles import synthetic
from profiles.schema import Task


def kind(*tasks: Task, usable_bytes: int = 12 << 20) -> Kind:
    profile = synthetic.profile(*tasks, usable_bytes=usable_bytes)
    return Kind.of("cpu", profile, 1, None)


@pytest.mark.parametrize("norm_bytes", [0, 64])
def test_a_step_computes_and_loads_what_hydra_does(norm_bytes: int) -> None:
    """All ops of its compute stream and all copies to its device but those of batches; with
    gradients that wait for their norms the norm is taken beside the update."""
    task = structs.replace(synthetic.task("t", layers=6, seed=1, batch=4), norm_bytes=norm_bytes)
    on = kind(task)
    links = Links.of(on.device)
    choice = hydra.choose(on.tasks[0], on.device_bytes, on.taken_bytes)
    made = hydra.program(choice, links)
    step = step_of(choice, links)
    compute = [op for op in made.round if op.stream == "0.compute"]
    loads = [op for op in made.round if op.stream == "0.h2d" and ".batch." not in op.id]
    assert len(choice.shards) > 1
    assert step.copies_us[-1] == sum(op.end_us - op.start_us for op in loads)
    assert norm_bytes or step.us == sum(op.end_us - op.start_us for op in compute)


def test_more_devices_are_never_slower_and_none_is_below_the_bound() -> None:
    """Of six tasks on one to seven devices."""
    tasks = [
        structs.replace(synthetic.task("t", layers=4, seed=n, batch=2), name=f"t{n}", steps=3 + n)
        for n in range(6)
    ]
    rows = fleet(kind(*tasks), range(1, 8))
    assert all(row.makespan_us >= row.least_us > 0 for row in rows)
    times = [row.makespan_us for row in rows]
    assert all(more <= few for few, more in pairwise(times))
    assert all(0 < row.busy <= 1 for row in rows)


def test_the_budget_named_does_for_all_tasks() -> None:
    """Not only for the first that does not fit."""
    sizes = [1 << 12, 1 << 14, 1 << 13]
    tasks = [synthetic.task(f"t{n}", layers=2, param_bytes=size) for n, size in enumerate(sizes)]
    with pytest.raises(Infeasible, match="t1") as caught:
        fleet(kind(*tasks, usable_bytes=1), [1])
    assert fleet(kind(*tasks, usable_bytes=caught.value.smallest), [1])


def test_a_part_of_many_steps_stands_for_all() -> None:
    """A thousand times the steps take a thousand times as long, to a few percent."""
    task = synthetic.task("t", layers=4, seed=1, batch=2)
    (few,), (many,) = (
        fleet(kind(*[structs.replace(task, name=n, steps=s) for n in "ab"]), [1])
        for s in (50, 50_000)
    )
    assert many.makespan_us == pytest.approx(1_000 * few.makespan_us, rel=0.03)


def test_the_command_prints_a_row_for_every_number(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For people and for scripts; links with unequal numbers of devices are refused."""
    monkeypatch.chdir(tmp_path)
    task = structs.replace(synthetic.task("t", layers=2, seed=1, batch=2), steps=5)
    profiles.save("p.json", synthetic.profile(task, usable_bytes=64 << 20))
    shown = succeeded(planner_cli("fleet", "p.json", "--devices", "1,2")).out
    assert shown.split()[0] == "devices"
    assert len(shown.splitlines()) == 3
    asked = ("fleet", "p.json", "--devices", "2,4", "--sharers", 2, "--json")
    rows = json.loads(succeeded(planner_cli(*asked)).out)
    assert [row["devices"] for row in rows] == [2, 4]
    refused(planner_cli("fleet", "p.json", "--devices", "3", "--sharers", 2), 2, "does not divide")
