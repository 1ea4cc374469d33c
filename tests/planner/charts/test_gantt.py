"""Gantt charts: what is drawn, and that much of it stays cheap."""

from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from matplotlib.figure import Figure
from support import handmade, pictures, sketched, timetables
from support.cli import planner_cli, succeeded
from support.parts import pipeline_part, resident_part
from support.pictures import arrows, drawn, words
from support.pictures import bars as boxes
from support.stored import as_stored

import plans
from planner.charts import gantt
from planner.charts.rows import op_rows
from plans import timing
from plans.schema import Plan

replace = msgspec.structs.replace


def _whole(plan: Plan) -> Any:
    """All ops of a plan over its run."""
    return gantt.figure(plan, timetables.log(plan)).axes[0]


def _ops(plan: Plan, window: tuple[int, int], *devices: int) -> Any:
    """The ops of segments on these devices, or of all, within a window."""
    shown = [one for one in plan.segments if not devices or set(one.devices) & set(devices)]
    panel = op_rows(plan, shown).panel(timing.op_bars(plan), window, "")
    return pictures.drawn(panel, plan)


def test_every_op_is_a_bar_in_the_row_of_its_stream() -> None:
    """The bars of a small plan are its timeline, each at the height of its stream's row."""
    plan = timetables.plan(rounds=2)
    rows = op_rows(plan).rows
    drawn = pictures.bars(_whole(plan))
    expected = sorted((p.start_us, p.end_us, rows[p.stream].low) for p in timing.timeline(plan))
    assert drawn == pytest.approx(np.array(expected))


def test_crowded_rows_show_shares_that_add_up_to_the_busy_time() -> None:
    """In a run of 2,000 rounds the filled area of a compute row is the device's compute time."""
    plan = timetables.plan(rounds=2_000)
    ax = _ops(plan, (0, plan.prediction.makespan_us))
    row = op_rows(plan).rows["0.compute"]
    area = 0.0
    for patch in ax.patches:
        values, edges, floor = getattr(patch, "get_data", lambda: (None, None, None))()
        if values is not None and row.low <= min(floor) and max(values) <= row.low + row.height:
            area += float(((values - floor) * np.diff(edges)).sum()) / row.height
    counts = {s.program: s.rounds for s in plan.segments if s.devices == (0,)}
    busy = sum(
        (op.end_us - op.start_us) * counts[program.name]
        for program in plan.programs
        if program.name in counts
        for op in program.round
        if op.stream == "0.compute"
    )
    assert area == pytest.approx(busy, rel=1e-9)


@pytest.mark.timeout(20)
@pytest.mark.parametrize("rounds", [4, 10_000_000])
def test_artists_stay_few_however_many_rounds(rounds: int) -> None:
    """One artist per row, task and kind, not one per op: ten million rounds are drawn at once."""
    plan = timetables.plan()
    program = plan.programs[0]
    segment = replace(plan.segments[0], rounds=rounds, end_us=timing.duration_us(program, rounds))
    prediction = replace(plan.prediction, makespan_us=segment.end_us)
    fig = gantt.figure(replace(plan, segments=(segment,), prediction=prediction))
    assert all(len(ax.collections) + len(ax.patches) < 40 for ax in fig.axes)


def test_planned_and_actual_share_the_time_scale() -> None:
    """Both axes span the later of the two ends, and the lower one shows the log's times."""
    plan = timetables.plan(rounds=2)
    log = timetables.log(plan, percent=150)
    above, below, *_ = gantt.figure(plan, log).axes
    assert above.get_xlim() == below.get_xlim()
    assert above.get_xlim()[1] >= 1.5 * plan.prediction.makespan_us
    assert "+50.0 %" in below.get_title(loc="left")
    assert pictures.bars(below)[-1][1] == pytest.approx(max(op.end_us for op in log.ops), rel=0.01)


def test_log_killed_before_the_zoomed_rounds_is_still_drawn() -> None:
    """The close-up of rounds that never ran is an empty panel, not an error."""
    plan = timetables.plan(rounds=6)
    log = timetables.log(plan)
    short = replace(log, ops=log.ops[:5], end=None)
    assert len(gantt.figure(plan, short).axes) == 4


@pytest.mark.parametrize("suffix", [".png", ".svg"])
def test_saved_picture_is_whole_and_alone(tmp_path: Path, suffix: str) -> None:
    """The file has the content of its kind, and no temporary is left beside it."""
    path = tmp_path / f"plan{suffix}"
    gantt.save(gantt.figure(timetables.tiny()), path)
    assert (b"PNG" if suffix == ".png" else b"<svg") in path.read_bytes()[:1000]
    assert list(tmp_path.iterdir()) == [path]


SHAPES = [
    {},
    {"chunks": 2},
    {"split": True},
    {"depth": 2, "replicas": 2},
    {"depth": 2, "replicas": [3, 1]},
    {"host": True},
]


def _large(plan: Plan, *, copies: bool = False) -> Any:
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
    assert boxes(_large(plan)) == pytest.approx(np.array(expected))
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
    assert sorted(arrows(_large(plan))) == pytest.approx(np.array(sorted(expected)))


def _mixed() -> Plan:
    """A pipeline on devices 2 and 0, beside and before another task."""
    a, b = pipeline_part("a"), resident_part("b", steps=8)
    programs = [handmade.program("a", 2, [a]), handmade.program("b", 1, [b])]
    runs = [("a", (2, 0), 4), ("b", (1,), 4), ("b", (2,), 4)]
    return handmade.assemble([a, b], programs, runs)


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
    path, pictures = tmp_path / "plan.json", [tmp_path / "few.svg", tmp_path / "all.svg"]
    plans.save(path, _mixed())
    succeeded(planner_cli("show", path, "--gantt", pictures[0]))
    succeeded(planner_cli("show", path, "--gantt", pictures[1], "--copies"))
    few, every = (picture.read_text() for picture in pictures)
    assert "2.p2p" not in few
    assert "2.p2p" in every
