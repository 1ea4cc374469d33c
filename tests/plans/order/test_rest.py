"""Segments in order, nodes, and the rest of a plan: what is done and what is left are the whole."""

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from support import handmade
from support.noded import NODED, taken
from support.retime import retimed

import plans
from plans.checker.check import violations
from plans.order import (
    Reached,
    Run,
    due_of,
    laid_out,
    node_count,
    nodes_of,
    predecessors,
    rest,
    spans,
    store_bytes,
)
from plans.schema import Plan
from profiles.errors import FormatError

FOLDER = Path(plans.__file__).parent
PLANS = {name: plans.load(FOLDER / f"{name}.json") for name in ("sample", "sample-many")}
PLANS |= {"fleet": handmade.fleet(), "gang": handmade.gang(), "relay": handmade.relay()}


def told(plan: Plan, task: str) -> str:
    """A letter for each round of the task in turn: it trains, or it evaluates."""
    programs = [plan.program(segment.program) for segment in plan.segments]
    return "".join(
        segment.rounds * ("e" if program.evaluates else "t")
        for segment, program in zip(plan.segments, programs, strict=True)
        if task in program.tasks
    )


def compact(plan: Plan) -> Plan:
    """A plan of only what is left, as one that was made for it."""
    segments = tuple(segment for segment in plan.segments if segment.rounds)
    used = {segment.program for segment in segments}
    made = replace(
        plan,
        tasks=tuple(task for task in plan.tasks if told(plan, task.name)),
        programs=tuple(program for program in plan.programs if program.name in used),
        segments=segments,
        prediction=replace(plan.prediction, configuration_us=0),
    )
    return retimed(made)


@st.composite
def reached(draw: st.DrawFn) -> tuple[str, Reached]:
    """Some plan, and points that its tasks have come to."""
    name = draw(st.sampled_from(sorted(PLANS)))
    plan = PLANS[name]
    done = {t.name: t.done + draw(st.integers(0, t.steps)) for t in plan.tasks}
    due = [task.name for task in plan.tasks if done[task.name] in due_of(task)]
    return name, Reached(done, tuple(name for name in due if draw(st.booleans())))


@given(reached())
def test_what_is_left_follows_what_is_done(case: tuple[str, Reached]) -> None:
    """Of each task the rounds from its point on, in their order."""
    plan, point = PLANS[case[0]], case[1]
    left = rest(plan, point)
    for task in plan.tasks:
        whole, steps = told(plan, task.name), point.done[task.name] - task.done
        places = [place for place, letter in enumerate(whole) if letter == "t"]
        at = places[steps - 1] + 1 if steps else 0
        if task.name not in point.owed:
            at += len(whole[at:]) - len(whole[at:].lstrip("e"))
        assert told(left, task.name) == whole[at:]
        assert left.task(task.name).steps == len(places) - steps


@settings(max_examples=8)
@given(reached())
def test_the_rest_of_a_sound_plan_is_sound(case: tuple[str, Reached]) -> None:
    plan, point = PLANS[case[0]], case[1]
    left = rest(plan, point)
    if any(segment.rounds for segment in left.segments):
        assert violations(compact(left)) == []


def test_tasks_of_one_segment_have_to_be_at_one_point() -> None:
    plan = handmade.shared()
    with pytest.raises(
        FormatError, match=r"segment 0 has tasks .*: b after step 1, a after step 2"
    ):
        rest(plan, Reached({"a": 2, "b": 1}))


def test_each_waits_for_the_latest_that_claims_the_same() -> None:
    assert predecessors([["a", 0], ["b", 1], ["a", 1], ["a", 0]]) == [set(), set(), {0, 1}, {0, 2}]


def test_segments_begin_when_devices_and_tasks_are_free() -> None:
    plan = handmade.fleet()
    one = plan.programs[0]
    runs = [Run(one, (0,), 2), Run(one, (1,), 1), Run(one, (0,), 1, 10**9)]
    first, second, third = laid_out(runs)
    assert (first.start_us, second.start_us, third.start_us) == (0, first.end_us, 10**9)


def test_the_nodes_of_a_segment_are_those_of_its_devices() -> None:
    plan = NODED["mixed"]()
    assert node_count(plan) == 2
    every = [nodes_of(plan, one) for one in plan.segments]
    assert every == [(0, 1), (1,), (0, 1), (1,), (0, 1), (1,)]


@pytest.mark.parametrize("name", NODED)
def test_a_node_takes_memory_for_what_it_uses(name: str) -> None:
    """Byte by byte, where no update has anything beside it."""
    plan = NODED[name]()
    nodes = range(node_count(plan))
    assert store_bytes(plan) == [taken(plan, node) for node in nodes]
    assert store_bytes(plan) == [sum(b - a for a, b in own) for own in spans(plan)]
