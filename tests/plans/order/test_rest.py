"""The rest of a plan: what is done of it, and what is left, are the whole of it."""

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from support import handmade
from support.retime import retimed

import plans
from plans.checker.check import violations
from plans.order import Reached, due_of, rest
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
    """By the checker, whatever is left of it."""
    plan, point = PLANS[case[0]], case[1]
    left = rest(plan, point)
    if any(segment.rounds for segment in left.segments):
        assert violations(compact(left)) == []


def test_tasks_of_one_segment_have_to_be_at_one_point() -> None:
    """Otherwise nobody can go on with it."""
    plan = handmade.shared()
    with pytest.raises(
        FormatError, match=r"segment 0 has tasks .*: b after step 1, a after step 2"
    ):
        rest(plan, Reached({"a": 2, "b": 1}))
