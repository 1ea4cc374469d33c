"""The checker on plans of at most 1 MB that are meant to hurt: it answers shortly, and soon."""

import gc
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count

import msgspec
import pytest
from msgspec.structs import replace
from support.edits import with_task
from support.handmade import PLANS
from support.hostile import HOSTILE, MOST_BYTES

import plans
from plans.checker.check import findings, violations
from profiles.errors import FormatError
from profiles.findings import MOST, Findings
from profiles.schema import Evaluation

SLOW = {"missing_ops"}  # some seconds
SECONDS = 60  # of processor time, at most, for a plan of 1 MB

# Of these a part of 1 MB does, in as much of the time: what grows faster than the file is late too.
PARTS = {"many_kinds": 4, "many_runs": 4, "many_programs": 4, "many_ways": 8, "many_nodes": 4}


@pytest.mark.parametrize("name", [name for name in HOSTILE if name not in SLOW])
def test_a_hostile_plan_is_refused_in_few_lines(name: str) -> None:
    """At most 100 of a kind are listed; neither the answer nor the work grows beyond bounds."""
    part = PARTS.get(name, 1)
    most = {"most": MOST_BYTES // part} if part > 1 else {}
    data = msgspec.json.encode(HOSTILE[name](**most))
    assert len(data) <= MOST_BYTES // part
    with within(SECONDS // part):
        try:
            found = findings(plans.loads(data))
        except FormatError:
            return
    lines = found.lines()
    assert found.total > 0
    assert len(lines) < 13 * (MOST + 1)
    assert all(len(line) < 3000 for line in lines)


@contextmanager
def within(seconds: int) -> Iterator[None]:
    """The test fails once this process has computed for so long; a limit of the system would end
    the process, and with it the run of all tests. What tests before have left counts nothing: going
    through all of it for garbage takes seconds."""

    def late(*_: object) -> None:
        raise AssertionError(f"more than {seconds} s of processor time")

    gc.freeze()
    before = signal.signal(signal.SIGPROF, late)
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)
        gc.unfreeze()


def test_the_work_is_limited() -> None:
    """The limit counts what this process computes, and fails the test alone."""
    with pytest.raises(AssertionError, match="processor time"), within(1):
        any(False for _ in count())


def test_violations_of_a_kind_are_listed_up_to_100() -> None:
    """The others are counted, each line is told once, and a kind does not hide another."""
    found = Findings()
    assert found.add("ops", (f"line {n}" for n in range(250)))
    assert not found.add("times", iter(()))
    assert found.add("times", ["late", "late"], " [program 'p']")
    assert found.total == 251
    assert found.lines() == [
        *(f"line {n}" for n in range(100)),
        "late [program 'p']",
        "ops: 150 more like these",
    ]


def test_an_invalid_plan_tells_how_much_is_wrong() -> None:
    """The message names the first violations and counts all, listed or not."""
    plan = PLANS["resident"]()
    strange = tuple(f"t{n}" for n in range(500))
    program = replace(plan.programs[0], tasks=(*plan.programs[0].tasks, *strange))
    with pytest.raises(plans.InvalidPlan) as caught:
        plans.prove(replace(plan, programs=(program,)))
    assert str(caught.value).startswith("the plan breaks 500 rule(s); build it again:\n")
    assert str(caught.value).endswith("… and 480 more")
    assert len(caught.value.violations) == MOST + 1


@pytest.mark.parametrize(
    ("steps", "said"),
    [
        (4, "a: is never evaluated after step 4"),
        (10**7, "a: is never evaluated after step 2, 4, 6, ... 10000000 (5000000 of them)"),
        (
            1 << 50,
            "a: is never evaluated after step 2, 4, 6, ... 1125899906842624 (5629499534",
        ),
    ],
)
def test_missing_evaluations_are_counted_not_listed(steps: int, said: str) -> None:
    """However many there are, a task has one line for those behind its last segment."""
    plan = with_task(PLANS["resident"](), steps=steps, evaluation=Evaluation(2, 1))
    if steps > 4:  # the segment trains 4
        plan = replace(plan, segments=(replace(plan.segments[0], rounds=1),))
    assert any(line.startswith(said) for line in violations(plan)), violations(plan)
