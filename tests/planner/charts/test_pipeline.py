"""Pictures of programs on several devices: what is drawn, and where."""

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace
from support import handmade, sketched, timetables
from support.cli import planner_cli, succeeded
from support.parts import pipeline_part, resident_part
from support.pictures import arrows, drawn, words
from support.pictures import bars as boxes

import plans
from planner.charts import bars, gantt
from planner.charts.rows import TONE, op_rows
from plans import timing
from plans.schema import Plan

SHAPES = [
    {},
    {"chunks": 2},
    {"split": True},
    {"depth": 2, "replicas": 2},
    {"depth": 2, "replicas": [3, 1]},
    {"host": True},
]


def _whole(plan: Plan, *, copies: bool = False) -> Any:
    """All ops of a plan's run."""
    window = (0, plan.prediction.makespan_us)
    panel = op_rows(plan, copies=copies).panel(timing.op_bars(plan), window, "", large=True)
    return drawn(panel, plan)


@pytest.mark.parametrize("shape", SHAPES)
def test_every_compute_op_is_a_box_in_the_row_of_its_device(shape: dict[str, Any]) -> None:
    """Passes and updates once each, at their times; sends are no boxes."""
    plan = sketched.plan(rounds=1, **shape)
    rows = op_rows(plan).rows
    ops = [one for one in timing.timeline(plan) if one.stream in rows]
    assert {one.op.name.kind for one in ops} >= {"F", "U"}
    expected = sorted((one.start_us, one.end_us, rows[one.stream].low) for one in ops)
    assert boxes(_whole(plan)) == pytest.approx(np.array(expected))
    assert not [stream for stream in rows if "p2p" in stream]


@pytest.mark.parametrize("shape", SHAPES)
def test_every_send_is_an_arrow_from_its_device_to_the_one_that_receives(
    shape: dict[str, Any],
) -> None:
    """From the sender's row when it begins to the receiver's, as the buffer's space says, when it
    is over; between the edges that face each other."""
    plan = sketched.plan(rounds=2, **shape)
    rows = op_rows(plan).rows
    spaces = {buffer.name: buffer.space for buffer in plan.programs[0].buffers}
    sends = [one for one in timing.timeline(plan) if one.op.name.kind == "X"]
    assert sends
    expected = []
    for one in sends:
        here = rows[f"{one.stream[0]}.compute"]
        there = rows[f"{spaces[next(iter(one.op.writes.values()))]}.compute"]
        down = here.low > there.low
        y = (here.low, there.low + there.height) if down else (here.low + here.height, there.low)
        expected.append((one.start_us, y[0], one.end_us, y[1]))
    assert sorted(arrows(_whole(plan))) == pytest.approx(np.array(sorted(expected)))


def test_boxes_carry_their_microbatches_until_they_are_too_narrow() -> None:
    """Each number once in F and once in B; of many microbatches only what has room; then none."""
    told = words(_whole(sketched.plan(rounds=1)).texts)
    assert sorted(told) == sorted([str(m) for m in range(8)] * 8 + ["U"] * 4)
    some = words(_whole(sketched.plan(microbatches=48, rounds=1)).texts)
    assert 0 < len(some) < 4 * 2 * 48
    assert not _whole(sketched.plan(microbatches=200, rounds=1)).texts


def test_shards_of_a_device_differ_in_tone_and_wide_boxes_name_them() -> None:
    """Interleaving: two tones for the forwards of a device, two others for its backwards."""
    plan = sketched.plan(2, 2, chunks=2, rounds=1)
    found = op_rows(plan)
    looks = {
        (op.shard, op.kind): bars.color(0, op.kind, found.tone(op))
        for op in timing.op_bars(plan)
        if op.stream == "0.compute" and op.kind in "FB"
    }
    assert set(looks) == {(0, "F"), (2, "F"), (0, "B"), (2, "B")}
    assert len(set(looks.values())) == 4
    assert sum(looks[2, "F"]) > sum(looks[0, "F"])
    assert {"s0.F1", "s2.F0"} <= set(words(_whole(plan).texts))


def test_kinds_and_tasks_differ_in_look() -> None:
    """F, B, I and W, and what is grey, in hue; two tasks never share a shade of F or B."""
    assert len({bars.color(0, kind, TONE) for kind in "FBIWU"}) == 5
    assert len({bars.color(task, kind) for task in range(6) for kind in "FB"}) == 12


def test_rows_are_named_by_device_and_shards() -> None:
    plan = sketched.plan(chunks=2)
    names = words(_whole(plan).get_yticklabels())
    assert names == ["0  s0, s4", "1  s1, s5", "2  s2, s6", "3  s3, s7"]


def _mixed() -> Plan:
    """A pipeline on devices 2 and 0, beside and before another task."""
    a, b = pipeline_part("a"), resident_part("b", steps=8)
    programs = [handmade.program("a", 2, [a]), handmade.program("b", 1, [b])]
    runs = [("a", (2, 0), 4), ("b", (1,), 4), ("b", (2,), 4)]
    return handmade.assemble([a, b], programs, runs)


def test_rows_and_boxes_of_several_tasks_tell_them_apart() -> None:
    """A device that trains both has no shards in its name, and wide boxes have the task's; a round
    of the pipeline alone is of one task."""
    plan = _mixed()
    found = op_rows(plan)
    assert [row.name for row in found.rows.values()] == ["0  s1", "1  s0", "2"]
    op = next(op for op in timing.op_bars(plan) if op.segment == 2 and ".B1" in op.op.id)
    assert found.names(op) == ("b.s0.B1", "s0.B1", "1")
    close = gantt.figure(plan).axes[1]
    assert words(close.get_yticklabels()) == ["0  s1", "2  s0"]
    assert {"0", "1", "U"} == set(words(close.texts))
    assert len(arrows(close)) == 6


def test_copies_have_rows_only_when_asked_for() -> None:
    """Thin ones, of streams that are in use, and every op is drawn then."""
    plan = sketched.plan(rounds=1)
    rows = op_rows(plan, copies=True).rows
    assert set(rows) == set(timing.streams(plan)) > set(op_rows(plan).rows)
    assert rows["0.p2p"].height < rows["0.compute"].height / 2
    assert len(boxes(_whole(plan, copies=True))) == len(plan.programs[0].round)


@pytest.mark.parametrize(
    ("made", "piped"),
    [(handmade.pipeline, True), (handmade.parallel, True), (handmade.fleet, False)],
)
def test_programs_on_several_devices_choose_this_view(made: Any, piped: bool) -> None:
    """The legend has the hues of kinds then, and copies have no rows; else all streams have."""
    fig = gantt.figure(made())
    names = words(fig.axes[1].get_yticklabels())
    assert any("h2d" in name for name in names) is not piped
    assert bool(arrows(fig.axes[1])) is piped


def test_a_round_says_its_bubble_and_is_drawn_with_what_overlaps_it() -> None:
    """The mean over devices of what they do not compute."""
    plan = sketched.plan()
    program = plan.programs[0]
    below = gantt.figure(plan).axes[1]
    busy = sum(op.end_us - op.start_us for op in program.round if op.stream.endswith("compute"))
    bubble = 100 - 100 * busy / (4 * program.period_us)
    assert f"bubble {bubble:.1f}%" in below.get_title(loc="left")
    assert "on devices 0-3, every " in below.get_title(loc="left")


def test_planned_and_actual_are_drawn_alike() -> None:
    """With a log: boxes and arrows of the rounds as they happened, at the log's times."""
    plan = sketched.plan(rounds=40)
    log = timetables.log(plan, percent=125)
    *_, planned, happened = gantt.figure(plan, log).axes
    (start, end), scale = planned.get_xlim(), 1.25
    first = min(box[0] for box in boxes(happened) if box[0] >= happened.get_xlim()[0])
    assert first == pytest.approx(scale * start, rel=0.01)
    seen = [box for box in boxes(happened) if box[1] > happened.get_xlim()[0]]
    widths = {round(stop - begin) for begin, stop, _ in seen}
    assert widths >= {1250, 2500}
    assert len(arrows(happened)) == pytest.approx(2 * 2 * 3 * 8, abs=3)
    assert end > start


def test_crowded_rows_have_noarrows() -> None:
    """Where rows show shares there is nothing to point from."""
    plan = sketched.plan(rounds=200)
    assert not arrows(_whole(plan))
    assert not words(_whole(plan).texts)


def test_many_devices_and_microbatches_take_few_artists_and_fit_a_page() -> None:
    """32 devices and 64 microbatches: one artist per row and kind, one for all arrows."""
    plan = sketched.plan(32, 64)
    fig = gantt.figure(plan)
    assert len(fig.axes[1].collections) == 32 * 3 + 1
    assert fig.get_figheight() < 20


def test_a_send_to_the_host_or_beyond_the_rows_is_no_arrow() -> None:
    """Devices that are not drawn have no rows to point to."""
    plan = sketched.plan(rounds=1)
    every = op_rows(plan)
    few = {stream: row for stream, row in every.rows.items() if stream[0] in "01"}
    found = dataclasses.replace(every, rows=few)
    arrows = [bar for bar in found.bars(timing.op_bars(plan)) if bar.to]
    assert len(arrows) == 2 * 8
    unknown = replace(plan, programs=(replace(plan.programs[0], buffers=()),))
    assert not any(bar.to for bar in op_rows(unknown).bars(timing.op_bars(unknown)))


def test_the_legend_explains_what_is_drawn() -> None:
    """Kinds in their hues and sends; copies only where they have rows, and no single task."""

    def names(plan: Plan, *, copies: bool = False) -> list[str]:
        (legend,) = gantt.figure(plan, copies=copies).legends
        return words(legend.get_texts())

    halves = ["forward", "input gradients", "weight gradients", "update", "send"]
    assert names(sketched.plan(split=True)) == halves
    whole = ["forward", "backward", "update"]
    assert names(handmade.pipeline(), copies=True) == [*whole, "copy", "send"]
    assert names(handmade.parallel()) == ["backward", "update", "reduce", "send"]


def test_the_command_draws_it(tmp_path: Path) -> None:
    """With rows for copies the picture is another one."""
    path, pictures = tmp_path / "plan.json", [tmp_path / "few.svg", tmp_path / "all.svg"]
    plans.save(path, _mixed())
    succeeded(planner_cli("show", path, "--gantt", pictures[0]))
    succeeded(planner_cli("show", path, "--gantt", pictures[1], "--copies"))
    few, every = (picture.read_text() for picture in pictures)
    assert "2.p2p" not in few
    assert "2.p2p" in every
