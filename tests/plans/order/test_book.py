"""Plan books hold plans of one training, and give the one for the devices that there are."""

import re
from pathlib import Path

import pytest
from msgspec.structs import replace
from support import handmade
from support.cli import planner_cli, succeeded
from support.edits import Edit, change, drop, put, with_task

import plans
from plans import Book, InvalidPlan, Plan
from profiles.codec import pretty
from profiles.errors import FormatError

SAMPLE = plans.load(Path(plans.__file__).with_name("sample.json"))


def wider(plan: Plan, spare: int = 1) -> Plan:
    """The plan with so many devices more, which it leaves idle."""
    return replace(plan, devices=plan.devices + plan.devices[-1:] * spare)


def book(*others: Plan) -> Book:
    return Book(plans=(SAMPLE, *others))


def test_a_book_reads_back_as_it_was_written(tmp_path: Path) -> None:
    """And is told from a plan."""
    made, file = book(wider(SAMPLE)), tmp_path / "x.book"
    plans.save(file, made)
    data = file.read_bytes()
    assert plans.is_book(data)
    assert not plans.is_book(pretty(SAMPLE))
    assert not plans.is_book(b"{")
    assert plans.book_from(data, "x.book") == made
    with pytest.raises(FormatError, match="this is not a plan file"):
        plans.loads(data, "x.book")


def test_a_book_of_sound_plans_of_one_training_is_proven() -> None:
    """With however many devices."""
    plans.prove_book(book(wider(SAMPLE), wider(SAMPLE, 5)))


TASK = SAMPLE.tasks[0]
OTHER = {
    "another steps": replace(TASK, steps=TASK.steps + 1),
    "another batch": replace(TASK, batch=TASK.batch + 1),
    "another microbatch": replace(TASK, microbatch=TASK.microbatch + 1),
    "another precision": replace(TASK, precision="bf16"),
    "has other tasks": replace(TASK, name="other"),
    "another workload": replace(TASK, workload=replace(TASK.workload, sha256="0" * 64)),
}


@pytest.mark.parametrize("told", OTHER)
def test_plans_that_train_something_else_are_refused(told: str) -> None:
    """By what is not the same, and in which plan."""
    odd = replace(wider(SAMPLE), tasks=(OTHER[told], *SAMPLE.tasks[1:]))
    with pytest.raises(InvalidPlan) as caught:
        plans.prove_book(book(odd))
    wanted = f"{plans.size_of(odd)}: "
    lines = [line for line in caught.value.violations if line.startswith(wanted)]
    assert any(told in line for line in lines), caught.value.violations


def test_an_unsound_plan_is_refused_with_its_devices() -> None:
    """As `check` would say of it alone."""
    odd = replace(wider(SAMPLE), programs=())
    with pytest.raises(InvalidPlan) as caught:
        plans.prove_book(book(odd))
    assert all(line.startswith(plans.size_of(odd)) for line in caught.value.violations)


PIPELINE = handmade.pipeline()
SHARDS = PIPELINE.tasks[0].shards
MUTANTS: dict[str, Edit] = {
    "a.s0: begins at layer 2, expected 0": lambda p: with_task(p, shards=SHARDS[1:]),
    "a.s1.B0 round 0: reads param…expected a.s1 param version 0 but nothing was written to it": (
        lambda p: drop(p, "a.s1.P0")
    ),
    "a.s1: begins at layer 0, expected 2": lambda p: with_task(p, shards=SHARDS[:1] + SHARDS),
    "a.s0.U0: is missing from the round": lambda p: drop(p, "a.s0.U0"),
    "a.s1.state: after 2 rounds and leave the host store must hold a.s1 state version 2, but it "
    "holds a.s1 state version 0": lambda p: drop(p, "a.s1.S1"),
    "solo: slab 3584 + reserve 100 = 3684 bytes exceed the budget of device 1 'cpu1', 3683": (
        lambda p: put(p, ("devices", 1, "budget_bytes"), 3683)
    ),
    "node 0: takes 2816 bytes of the host store, but the host budget of a node is 2815": (
        lambda p: put(p, ("host", "budget_bytes"), 2815)
    ),
    "a.x1.X0: waits for itself in round, a deadlock: a.x1.X0 -> a.s1.B0 -> a.dx1.X0 -> a.s0.B0": (
        lambda p: change(p, "a.s0.F0", after=("a.s0.B0",))
    ),
    "is made from other files than the plan for 2 device(s)": (
        lambda p: replace(p, inputs={"profile": "0" * 64})
    ),
    "a has another workload than in the plan for 2 device(s)": (
        lambda p: put(p, ("tasks", 0, "workload", "sha256"), "9" * 64)
    ),
    "a has another microbatch than in the plan for 2 device(s): 4 and 2": (
        lambda p: with_task(p, microbatch=4)
    ),
}


@pytest.mark.parametrize("told", MUTANTS)
def test_an_entry_with_one_mistake_is_refused(told: str, tmp_path: Path) -> None:
    """A shard that is missing, not brought, there twice, not trained, handed on in a version that
    is stale; devices or a host too small; ops in a circle; another task or other microbatches.
    `check` names it in one line."""
    plans.save(file := tmp_path / "x.book", Book(plans=(PIPELINE, wider(PIPELINE))))
    succeeded(planner_cli("check", file))
    plans.save(file, Book(plans=(PIPELINE, MUTANTS[told](wider(PIPELINE)))))
    answer = planner_cli("check", file)
    assert answer.code == 1
    pattern = ".*".join(map(re.escape, f"3 device(s): {told}".split("…")))
    assert any(re.search(pattern, line) for line in answer.err.splitlines()), answer.err


def test_each_size_stands_once_and_in_its_place() -> None:
    """Two plans for as many devices would leave the choice open."""
    for others in ((SAMPLE,), (wider(SAMPLE, 2), wider(SAMPLE))):
        with pytest.raises(InvalidPlan, match="each size once"):
            plans.prove_book(book(*others))


def timed(plan: Plan, us: int) -> Plan:
    return replace(plan, prediction=replace(plan.prediction, makespan_us=us))


def test_the_fastest_plan_for_the_devices_that_there_are_is_chosen() -> None:
    """Also where it leaves some idle, and of two that are as fast that for fewer devices; where
    there are too few, the message says which would do."""
    count = len(SAMPLE.devices)
    sizes = [timed(wider(SAMPLE, more), us) for more, us in enumerate((9, 7, 7, 8, 5))]
    made = Book(plans=tuple(sizes))
    found = [plans.plan_for(made, count + more, 1, "x.book") for more in range(6)]
    assert [sizes.index(plan) for plan in found] == [0, 1, 1, 1, 4, 4]
    assert plans.plan_for(made, 2 * count, 2, "x.book") is sizes[0]  # the other node is idle
    for devices, nodes in ((count - 1, 1), (2 * count - 1, 2)):
        with pytest.raises(FormatError) as caught:
            plans.plan_for(made, devices, nodes, "x.book")
        assert f"x.book: has plans for {count} device(s), {count + 1} device(s)" in str(
            caught.value
        )
        assert f"here are {devices} device(s) on {nodes} node(s)" in str(caught.value)
