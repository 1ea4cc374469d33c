"""Pictures of programs on several devices: what is drawn, and where."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.figure import Figure
from support import handmade, sketched, timetables
from support.cli import planner_cli, succeeded
from support.parts import pipeline_part, resident_part
from support.pictures import arrows, drawn, words
from support.pictures import bars as boxes
from support.stored import as_stored

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


def test_kinds_and_tasks_differ_in_look() -> None:
    """F, B, I and W, and what is grey, in hue; two tasks never share a shade of F or B."""
    assert len({bars.color(0, kind, TONE) for kind in "FBIWU"}) == 5
    assert len({bars.color(task, kind) for task in range(6) for kind in "FB"}) == 12


def _mixed() -> Plan:
    """A pipeline on devices 2 and 0, beside and before another task."""
    a, b = pipeline_part("a"), resident_part("b", steps=8)
    programs = [handmade.program("a", 2, [a]), handmade.program("b", 1, [b])]
    runs = [("a", (2, 0), 4), ("b", (1,), 4), ("b", (2,), 4)]
    return handmade.assemble([a, b], programs, runs)


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


def written(fig: Figure) -> str:
    """All words of a picture: of each of its axes the span, title, rows, marks, arrows and what
    stands in its bars; then what its legend explains."""
    lines = []
    for ax in fig.axes:
        start, end = ax.get_xlim()
        lines += [f"{start:.0f} to {end:.0f}: {ax.get_title(loc='left')}"]
        lines += [f"  rows {', '.join(words(ax.get_yticklabels()))}"]
        if marks := ax.get_legend():
            lines += [f"  marks {', '.join(words(marks.get_texts()))}"]
        lines += [f"  {len(boxes(ax))} bars, {len(arrows(ax))} arrows"]
        lines += [f"  {' '.join(words(ax.texts))}".rstrip()]
    lines += [f"legend {', '.join(words(one.get_texts()))}" for one in fig.legends]
    return "\n".join(lines)


def _logged(plan: Plan, **options: Any) -> Figure:
    return gantt.figure(plan, timetables.log(plan, percent=150), **options)


PICTURES = {
    "tasks": lambda: _logged(timetables.plan(rounds=6, emulated=True)),
    "one task": lambda: gantt.figure(timetables.plan(rounds=6), task="d", step=4),
    "tiny": lambda: gantt.figure(timetables.tiny()),
    "pipeline": lambda: _logged(sketched.plan(2, 2, chunks=2, rounds=6)),
    "halves, replicas": lambda: gantt.figure(sketched.plan(2, replicas=[3, 1], split=True)),
    "mixed": lambda: gantt.figure(_mixed(), copies=True),
    "mixed, without copies": lambda: gantt.figure(_mixed()),
    "many devices": lambda: gantt.figure(sketched.plan(32, 64)),
    "parallel": lambda: gantt.figure(handmade.parallel()),
}


@pytest.mark.parametrize("name", PICTURES)
def test_words_of_pictures(name: str) -> None:
    """What its rows, marks and wide bars are called, in each of its parts."""
    as_stored(f"picture, {name}", written(PICTURES[name]()))


def test_the_command_draws_it(tmp_path: Path) -> None:
    """With rows for copies the picture is another one."""
    path, pictures = tmp_path / "plan.json", [tmp_path / "few.svg", tmp_path / "all.svg"]
    plans.save(path, _mixed())
    succeeded(planner_cli("show", path, "--gantt", pictures[0]))
    succeeded(planner_cli("show", path, "--gantt", pictures[1], "--copies"))
    few, every = (picture.read_text() for picture in pictures)
    assert "2.p2p" not in few
    assert "2.p2p" in every
