"""What runs at a moment of the predicted run."""

import json
from dataclasses import asdict

import msgspec
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from support import handmade, timetables
from support.unrolled import duration, periodic, unrolled

from planner.views.focus import focus, place
from planner.views.moments import TaskStep, describe_moment, moment
from plans import timing
from plans.op_words import meaning
from plans.schema import Op, Plan, Program, Segment
from profiles.errors import FormatError

replace = msgspec.structs.replace
STREAMS = ["0.compute", "0.h2d", "0.d2h", "host.0"]


@st.composite
def rounds(draw: st.DrawFn) -> list[Op]:
    """Random ops on up to four streams; some wait for one before them, in this round or the one
    before."""
    entries: list[Op] = []
    for i in range(draw(st.integers(1, 8))):
        after = draw(st.lists(st.integers(0, i - 1), max_size=2, unique=True)) if i else []
        late = draw(st.lists(st.integers(0, i), max_size=1))
        names = [f"a.s0.P{k}" for k in after] + [f"a.s0.P{k}@-1" for k in late]
        stream, took = draw(st.sampled_from(STREAMS)), draw(st.integers(0, 20))
        entries.append(Op(f"a.s0.P{i}", stream, 0, took, tuple(names)))
    return entries


def _plan(entries: list[Op], count: int) -> Plan:
    """One segment of so many of these rounds on device 2, loading for 7 µs from 5 µs on."""
    phase = periodic(entries)
    load = Op("a.s0.P1000", "0.h2d", 0, 7)
    whole = ("a",), 7, phase.period_us, phase.span_us, 3
    store = Op("a.s0.S1000", "0.d2h", 0, 3)
    program = Program(
        "a", timetables.tiny().programs[0].memory, *whole, (), (load,), phase.ops, (store,)
    )
    end = 5 + timing.duration_us(program, count)
    segment = Segment("a", (2,), count, 5, end)
    return timetables.assemble((timetables.task("a", 1, 1, count),), (program,), (segment,))


Spans = dict[tuple[str, str, int], tuple[int, int]]  # of (stream, op, round)


def _agree(plan: Plan, us: int, spans: Spans) -> None:
    """Each stream's running op contains the moment, none runs where none is named, and what
    follows is the next to start; an op of no length is over when it begins."""
    for one in moment(plan, us).segments:
        for stream in one.streams:
            name, running, following = stream.stream, stream.running, stream.next
            mine = {op: span for op, span in spans.items() if op[0] == name}
            now = [op for op, (start, end) in mine.items() if start <= us < end]
            assert now == ([] if running is None else [(name, running.op, running.round)])
            later = [span for span in mine.values() if span[0] >= us and span[1] > us]
            if running is None:
                found = None if following is None else (following.start_us, following.end_us)
                assert found == min(later, default=None)
            else:
                assert (running.start_us, running.end_us) == mine[now[0]]


@given(rounds(), st.integers(1, 9), st.integers(0, 10_000))
def test_the_named_op_contains_the_moment_when_rounds_are_simulated_one_by_one(
    entries: list[Op], count: int, where: int
) -> None:
    """In rounds that a plain simulation finds as regular as the plan says, op by op."""
    plan = _plan(entries, count)
    program = plan.programs[0]
    starts = unrolled(entries, count)
    closed = [
        {op.id: op.start_us + r * program.period_us for op in program.round} for r in range(count)
    ]
    assume(starts == closed)
    spans: Spans = {
        (timing.plan_stream(e.stream, (2,)), e.id, r): (start, start + duration(e))
        for r in range(count)
        for e in entries
        for start in [12 + starts[r][e.id]]
    }
    end = plan.segments[0].end_us
    spans |= {("2.h2d", "a.s0.P1000", 0): (5, 12), ("2.d2h", "a.s0.S1000", 0): (end - 3, end)}
    _agree(plan, where % plan.prediction.makespan_us, spans)


@given(st.integers(1, 6), st.floats(0, 1, exclude_max=True))
def test_the_named_op_is_that_of_the_listed_timeline(count: int, where: float) -> None:
    """With several tasks, devices and segments, and rounds that reach into each other."""
    plan = timetables.plan(rounds=count)
    spans = {(p.stream, p.op.id, p.round): (p.start_us, p.end_us) for p in timing.timeline(plan)}
    _agree(plan, int(where * plan.prediction.makespan_us), spans)


def test_rounds_and_steps_are_those_of_the_moment() -> None:
    """In the middle of round 3 it is round 3; the rounds before and the steps trained before the
    plan count as steps."""
    plan = timetables.plan(rounds=6)
    first, program = plan.segments[0], plan.programs[0]
    again = replace(first, start_us=first.end_us, end_us=2 * first.end_us)
    tasks = tuple(replace(task, done=10) for task in plan.tasks[:2])
    plan = timetables.assemble(tasks, (program,), (first, again))
    us = again.start_us + program.enter_us + 3 * program.period_us + program.period_us // 2
    (one,) = moment(plan, us).segments
    assert (one.segment, one.phase, one.begun_round) == (1, "round", 3)
    assert one.round in (2, 3)
    assert one.tasks[0] == TaskStep("a", 10 + 6 + one.round, 10 + 6)


def test_a_round_counts_until_its_last_op_has_ended() -> None:
    """Where rounds reach into each other both are named."""
    plan = timetables.plan(rounds=6)
    program = plan.programs[0]
    assert program.round_us > program.period_us
    start = program.enter_us + 3 * program.period_us
    found = [place(program, plan.segments[0], start + us)[1:] for us in (-1, 0)]
    late = start - program.period_us + program.round_us
    found += [place(program, plan.segments[0], us)[1:] for us in (late - 1, late)]
    assert found == [(2, 2), (2, 3), (2, 3), (3, 3)]


@pytest.mark.parametrize(("us", "phase", "number"), [(0, "enter", 0), (-1, "leave", 5)])
def test_loading_and_writing_back_are_named(us: int, phase: str, number: int) -> None:
    """Before round 0 and after the last one, counted from the segment's two ends."""
    plan = timetables.plan(rounds=6)
    (one,) = moment(plan, us % plan.segments[0].end_us, "a").segments
    assert (one.phase, one.round) == (phase, number)


def test_a_task_alone_is_looked_for_on_its_devices() -> None:
    """Task d runs on device 1; what device 0 does is left out."""
    plan = timetables.plan()
    (one,) = moment(plan, 5_000, "d").segments
    assert [stream.stream for stream in one.streams] == ["1.compute", "1.h2d", "1.d2h", "host.1"]


def test_who_does_not_run_is_told_when_it_will() -> None:
    """Task c begins after a and b, which have then ended, as has device 1."""
    plan = timetables.plan()
    start = plan.segments[2].start_us
    assert describe_moment(plan, moment(plan, 0, "c")).endswith(
        f"c waits for segment 2: c on device 0 at 0:00:00.{start:06}"
    )
    assert describe_moment(plan, moment(plan, start, "a")).endswith("\n\na has ended")
    last = describe_moment(plan, moment(plan, plan.prediction.makespan_us - 1))
    assert last.endswith("\n\ndevice 1: has nothing left to do")


def test_words_name_the_op_or_the_next_one() -> None:
    """After 50 of 200 µs backward runs, the copy to the host and the update are awaited."""
    plan = timetables.tiny()
    rows = [line.split("  ") for line in describe_moment(plan, moment(plan, 50)).splitlines()[5:]]
    cells = [[cell.strip() for cell in row if cell] for row in rows]
    what = "forward, loss and backward of shard 0, microbatch 0"
    assert cells == [
        ["0.compute", "a.s0.B0", what, "0", "0:00:00.000040", "0:00:00.000140"],
        ["0.h2d", "idle to the end"],
        ["0.d2h", "idle until a.s0.S0", "spill shard 0", "0", "0:00:00.000140", "0:00:00.000170"],
        [
            *("host.0", "idle until a.s0.U0", "update of shard 0 on the host"),
            *("0", "0:00:00.000170", "0:00:00.000200"),
        ],
    ]


@pytest.mark.parametrize(
    ("op", "stream", "role", "words"),
    [
        ("a.s0.F1", "0.compute", "y", "forward of shard 0, microbatch 1"),
        (
            *("a.s0.B1", "0.compute", "grad"),
            "backward of shard 0, microbatch 1, after its forward again",
        ),
        ("a.s0.U0", "0.compute", "param", "update of shard 0 on the device"),
        ("a.s1.N0", "0.compute", "norm", "norms of the gradients of shard 1"),
        ("a.s1.P7", "0.h2d", "state", "prefetch optimizer state of shard 1"),
        ("a.batch.P1", "0.h2d", "batch", "prefetch batch, microbatch 1"),
        ("a.x1.S0", "0.d2h", "x", "spill boundary before shard 1, microbatch 0"),
        ("a.dx1.X0", "0.p2p", "dx", "send gradient of the boundary before shard 1, microbatch 0"),
        ("a.a1.P0", "0.h2d", "saved", "prefetch activations of shard 1, microbatch 0"),
        ("a.norm.S0", "0.d2h", "norm", "spill norms of the gradients"),
    ],
)
def test_ops_in_words(op: str, stream: str, role: str, words: str) -> None:
    """Kind, what it is about, and of which microbatch."""
    plan = timetables.plan()
    one = Op(op, stream, 0, 1, writes={role: "0/value"})  # type: ignore[dict-item]
    assert meaning(plan, one) == words


def test_json_has_what_runs_and_what_is_next() -> None:
    """Absolute times in µs, null where nothing runs or follows."""
    plan = timetables.tiny()
    found = json.loads(json.dumps(asdict(moment(plan, 50))))
    assert (found["at_us"], found["makespan_us"], found["waiting_devices"]) == (50, 200, [])
    (segment,) = found["segments"]
    assert segment["tasks"] == [{"task": "a", "step": 0, "steps": 1}]
    compute, load, store, _ = segment["streams"]
    assert compute["running"]["op"] == "a.s0.B0"
    assert (compute["running"]["start_us"], compute["running"]["end_us"]) == (40, 140)
    assert compute["next"] is load["running"] is load["next"] is store["running"] is None
    assert store["next"]["start_us"] == 140


def test_a_moment_after_the_end_is_refused_with_both_times() -> None:
    """The end itself is none: nothing runs there."""
    with pytest.raises(FormatError, match=r"0:00:00\.000200 is outside .* ends at 0:00:00\.000200"):
        moment(timetables.tiny(), 200)


def test_an_unknown_task_is_refused_with_those_there_are() -> None:
    """In words that name them all."""
    with pytest.raises(FormatError, match="no task 'e'; it has a, b, c, d"):
        moment(timetables.plan(), 0, "e")


def test_close_ups_are_chosen_by_step_by_moment_or_steady() -> None:
    """The middle of the longest segment unless something is asked for."""
    plan = timetables.plan(rounds=9)
    assert focus(plan) == focus(plan, "a") == focus(plan, "b", 4)
    last = focus(plan, "c", 8)
    assert last
    assert (last.segment, last.phase, last.round) == (2, "round", 8)
    assert focus(plan, "c", at=last.window[0] + 5_000) == last
    assert focus(plan, "c", at=0) == focus(plan, "c")
    with pytest.raises(FormatError, match="--round c:9: c has the rounds 0 to 8"):
        focus(plan, "c", 9)


def test_a_step_is_found_in_the_segment_that_trains_it() -> None:
    """Steps go on from segment to segment of a task."""
    plan = timetables.plan(rounds=6)
    first, program = plan.segments[0], plan.programs[0]
    again = replace(first, start_us=first.end_us, end_us=2 * first.end_us)
    plan = timetables.assemble(plan.tasks[:2], (program,), (first, again))
    found = [focus(plan, "b", step) for step in (5, 6)]
    assert [one and one[:3] for one in found] == [(0, "round", 5), (1, "round", 0)]


def test_a_send_says_where_it_goes() -> None:
    """By the plan's number of the device whose buffer it writes."""
    plan = handmade.pipeline()
    (program,) = plan.programs
    send = next(op for op in program.round if op.id == "a.x1.X0")
    (segment,) = moment(plan, program.enter_us + send.start_us).segments
    running = next(one.running for one in segment.streams if one.stream == "0.p2p")
    assert running
    assert (running.op, running.what) == (
        "a.x1.X0",
        "send boundary before shard 1, microbatch 0 to device 1",
    )
