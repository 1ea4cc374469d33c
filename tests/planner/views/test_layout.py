"""Where programs on several devices run what."""

from typing import Any

import pytest
from msgspec.structs import replace
from support import handmade, sketched

from planner.views import layout_words, stages, summary
from planner.views.layout import Stage, layout
from plans.schema import Plan
from plans.timing import round_compute_us, round_exposed_us, timeline


@pytest.mark.parametrize(
    ("shape", "words"),
    [
        ({}, "layout 4x1: s0 on 0; s1 on 1; s2 on 2; s3 on 3"),
        ({"depth": 2, "replicas": 2}, "layout 2x2: s0 on 0, 1; s1 on 2, 3"),
        ({"depth": 2, "chunks": 2}, "layout 2x1: s0, s2 on 0; s1, s3 on 1"),
        (
            {"depth": 2, "replicas": [3, 1], "split": True},
            "layout 3,1: s0 on 0, 1, 2 (3, 3, 2 microbatches); s1 on 3",
        ),
    ],
)
def test_a_layout_has_its_stages_replicas_and_shares(shape: dict[str, Any], words: str) -> None:
    """Microbatches are told where they are shared out unevenly."""
    (program,) = sketched.plan(**shape).programs
    assert layout_words(program, "a", range(4)) == words


def test_rounds_that_evaluate_count_their_forwards() -> None:
    """They have no backwards."""
    (program,) = sketched.plan(2, replicas=[2, 1]).programs
    forwards = tuple(op for op in program.round if ".F" in op.id)
    told = replace(program, round=forwards, evaluates=True)
    assert [stage.microbatches for stage in stages(told, "a")] == [(4, 4), (8,)]


def test_shards_with_other_shares_on_the_same_devices_are_one_stage_of_a_layout() -> None:
    """The same replicas; one takes more microbatches of the second shard."""
    found = [Stage((0, 1), (0,), (4, 4)), Stage((0, 1), (1,), (3, 5)), Stage((2, 3), (2,), (4, 4))]
    assert layout(found) == "2x2"


def test_a_device_in_several_stages_makes_a_layout_mixed() -> None:
    assert layout([Stage((0,), (0, 2), (8,)), Stage((0, 1), (1,), (4, 4))]) == "mixed"


def test_json_has_layout_stages_and_bubble() -> None:
    plan = sketched.plan(depth=2, replicas=[3, 1])
    told = summary(plan)["layouts"]["a"]
    assert told["a"]["layout"] == "3,1"
    assert told["a"]["stages"][0] == {
        "devices": (0, 1, 2),
        "shards": (0,),
        "microbatches": (3, 3, 2),
    }
    busy = sum(round_compute_us(plan.programs[0])) / (4 * plan.programs[0].period_us)
    assert told["bubble"] == pytest.approx(1 - busy)
    assert sum(stage.microbatches[0] for stage in stages(plan.programs[0], "a")) == 11


def _exposed(plan: Plan, device: int, start: int, end: int) -> int:
    """µs from start to end in which a device copies and does not compute, one by one."""
    busy: dict[bool, set[int]] = {True: set(), False: set()}
    for one in timeline(plan):
        number, _, kind = one.stream.partition(".")
        if number == str(device):
            span = range(max(start, one.start_us), min(end, one.end_us))
            busy[kind == "compute"] |= set(span)
    return len(busy[False] - busy[True])


@pytest.mark.parametrize("name", ["pipeline", "parallel"])
def test_exposed_copies_of_a_round_are_those_of_any_period_in_the_middle(name: str) -> None:
    plan = handmade.PLANS[name]()
    (program,) = plan.programs
    start = program.enter_us + 2 * program.period_us
    for device, us in enumerate(round_exposed_us(program)):
        assert us == _exposed(plan, device, start, start + program.period_us)
