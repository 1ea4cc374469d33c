"""Perfetto traces of plans and runs."""

import json
from collections import defaultdict
from itertools import pairwise
from typing import Any

import msgspec
import pytest
from support import handmade, timetables
from support.kinded import kinded, with_kind

from plans import timing
from plans import trace as module
from plans.schema import Plan
from plans.trace import happened, trace

replace = msgspec.structs.replace


def _events(data: bytes, phase: str) -> list[dict[str, Any]]:
    return [event for event in json.loads(data)["traceEvents"] if event["ph"] == phase]


@pytest.mark.parametrize(
    "plan",
    [timetables.plan(), handmade.fleet(), handmade.pipeline(), handmade.parallel()],
    ids=["tasks", "fleet", "pipeline", "parallel"],
)
def test_every_op_is_a_slice_at_its_planned_time(plan: Plan) -> None:
    """The slices of the planned processes are the plan's timeline, no more and no less."""
    slices = sorted((e["name"], e["ts"], e["dur"]) for e in _events(trace(plan), "X"))
    planned = sorted((p.op.id, p.start_us, p.end_us - p.start_us) for p in timing.timeline(plan))
    assert slices == planned


def test_slices_of_a_track_do_not_overlap_even_when_the_log_does() -> None:
    """Perfetto refuses overlapping slices on a thread, so a log's overlap is cut off."""
    plan = timetables.plan()
    log = timetables.log(plan)
    late = tuple(replace(op, end_us=op.end_us + 50) for op in log.ops)
    tracks = defaultdict(list)
    for event in _events(trace(plan, replace(log, ops=late)), "X"):
        tracks[event["pid"], event["tid"]].append((event["ts"], event["ts"] + event["dur"]))
    assert len(tracks) == 2 * 2 * 4  # planned and actual, two devices, four streams
    for spans in tracks.values():
        spans.sort()
        assert all(a[1] <= b[0] for a, b in pairwise(spans))


def test_plan_and_run_are_separate_named_processes() -> None:
    """Each device is one process as planned and one as it ran, and says when it is emulated."""
    plan = timetables.plan(emulated=True)
    names = [
        e["args"]["name"]
        for e in _events(trace(plan, timetables.log(plan)), "M")
        if e["name"] == "process_name"
    ]
    assert names == [
        "planned device 0, emulated",
        "actual device 0, emulated",
        "planned device 1, emulated",
        "actual device 1, emulated",
    ]


def test_arrows_follow_the_edges_between_streams() -> None:
    """The four ops of the tiny plan are on four streams, so its three edges are three arrows."""
    data = trace(timetables.tiny())
    starts = {e["id"]: e["ts"] for e in _events(data, "s")}
    ends = {e["id"]: e["ts"] for e in _events(data, "f")}
    assert sorted(ends.values()) == [40, 140, 170]
    assert all(starts[number] == ends[number] - 1 for number in ends)


def test_arrows_of_plan_and_run_have_different_ids() -> None:
    """An id ties one start to one end; were it used twice, arrows would cross processes."""
    plan = timetables.plan()
    data = trace(plan, timetables.log(plan))
    starts = [e["id"] for e in _events(data, "s")]
    assert len(set(starts)) == len(starts)
    assert sorted(starts) == sorted(e["id"] for e in _events(data, "f"))


def test_trace_is_deterministic() -> None:
    """The same plan and log give the same bytes."""
    plan, again = timetables.plan(), timetables.plan()
    assert trace(plan, timetables.log(plan)) == trace(again, timetables.log(again))


def test_long_plans_show_their_first_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    """A trace of a plan beyond the limit holds the first rounds and says how many."""
    monkeypatch.setattr(module, "MOST_OPS", 300)
    plan = timetables.plan(rounds=200)
    body = json.loads(trace(plan))
    shown = body["otherData"]["rounds_shown"]
    sizes = {program.name: len(program.round) for program in plan.programs}
    assert shown == [100 // sizes[segment.program] for segment in plan.segments]
    assert body["otherData"]["rounds"] == [200, 200, 200]
    rounds = [e["args"]["round"] for e in body["traceEvents"] if e["ph"] == "X"]
    assert max(rounds) == max(shown) - 1


def test_ops_of_a_log_are_those_of_their_rounds_kind() -> None:
    """What they were to take follows from the kind of the round that the log names."""
    plan = kinded("resident", [[512, 512], [256]], ((1, 1), (0, 2)))
    slow = plan.programs[0].kinds[0].ops[0]
    longer = replace(slow, end_us=slow.end_us + 7)
    plan = with_kind(plan, 1, (longer, *plan.programs[0].kinds[0].ops[1:]))
    found = happened(plan, timetables.log(plan))
    told = {(p.round, p.predicted_us) for p in found if p.op.id == slow.id}
    us = slow.end_us - slow.start_us
    assert told == {(0, us + 7), (1, us), (2, us)}
