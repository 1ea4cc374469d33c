"""Gantt charts: what is drawn, and that much of it stays cheap."""

import sys
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from support import pictures, timetables
from support.pictures import words

from planner.charts import bars, gantt, panels
from planner.charts.rows import op_rows
from planner.views.focus import focus
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


def test_coverage_of_repeated_bars_is_that_of_the_same_bars_one_by_one() -> None:
    """The closed form for rounds agrees with adding up single bars."""
    edges = np.linspace(0, 1000, 37)
    repeated = [bars.Bar(bars.Row(0, 1), "a", "F", (), 30, 7, 11, 60)]
    single = [bars.Bar(bars.Row(0, 1), "a", "F", (), 30 + 11 * r, 7) for r in range(60)]
    assert bars.coverage(repeated, edges) == pytest.approx(bars.coverage(single, edges))


@pytest.mark.timeout(20)
@pytest.mark.parametrize("rounds", [4, 40, 10_000_000])
def test_artists_stay_few_however_many_rounds(rounds: int) -> None:
    """One artist per row, task and kind, not one per op: ten million rounds are drawn at once."""
    plan = timetables.plan()
    program = plan.programs[0]
    segment = replace(plan.segments[0], rounds=rounds, end_us=timing.duration_us(program, rounds))
    prediction = replace(plan.prediction, makespan_us=segment.end_us)
    fig = gantt.figure(replace(plan, segments=(segment,), prediction=prediction))
    assert all(len(ax.collections) + len(ax.patches) < 40 for ax in fig.axes)


def test_a_round_is_drawn_with_what_runs_beside_it() -> None:
    """All ops of its devices from its first op to its last, those of other rounds included: white
    is idle."""
    plan = timetables.plan(rounds=6)
    chosen = focus(plan, "a", 3)
    assert chosen
    ops = [p for p in timing.timeline(plan) if p.segment == 0]
    mine = [p for p in ops if p.round == 3]
    start, end = min(p.start_us for p in mine), max(p.end_us for p in mine)
    assert chosen.window == (start, end)
    below = gantt.figure(plan, task="a", step=3).axes[1]
    assert (
        len(pictures.bars(below))
        == sum(p.start_us < end and p.end_us > start for p in ops)
        > len(mine)
    )
    assert "b.s2.B0" in words(below.texts)


def test_names_of_marks_stay_clear_of_the_title() -> None:
    """However long the title, and however close the marks: they have a line of their own."""
    marks = [panels.Mark(us, "x" * 20, False) for us in (10, 12, 190)]
    fig = panels.figure([panels.Panel(2.0, [bars.Row(0, 1)], [], (0, 200), "y" * 150, marks)], [])
    fig.draw_without_rendering()
    (ax,) = fig.axes
    title, names = ax._left_title, ax.get_legend()
    assert words(names.get_texts()) == ["x" * 20] * 3
    assert names.get_window_extent().y1 <= title.get_window_extent().y0


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


def test_drawing_leaves_pyplot_alone() -> None:
    """No global figure state: pyplot is not even imported."""
    before = "matplotlib.pyplot" in sys.modules
    gantt.figure(timetables.tiny())
    assert ("matplotlib.pyplot" in sys.modules) is before
