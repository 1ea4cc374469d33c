"""Plan books hold plans of one training, and give the one for the devices that there are."""

from pathlib import Path

import pytest
from msgspec.structs import replace

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
