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


def _marks(ax: Any) -> list[str]:
    """The names of the marked moments."""
    legend = ax.get_legend()
    return words(legend.get_texts()) if legend else []


def test_every_op_is_a_bar_in_the_row_of_its_stream() -> None:
    """The bars of a small plan are its timeline, each at the height of its stream's row."""
    plan = timetables.plan(rounds=2)
    rows = op_rows(plan).rows
    drawn = pictures.bars(_whole(plan))
    expected = sorted((p.start_us, p.end_us, rows[p.stream].low) for p in timing.timeline(plan))
    assert drawn == pytest.approx(np.array(expected))


def test_rows_are_devices_from_the_top_with_tall_compute() -> None:
    """Compute before copies before the host, and twice as tall as a copy or more."""
    rows = op_rows(timetables.plan()).rows
    names = ["compute", "h2d", "d2h"]
    assert list(rows) == [
        *(f"0.{n}" for n in names),
        "host.0",
        *(f"1.{n}" for n in names),
        "host.1",
    ]
    lows = [row.low for row in rows.values()]
    assert lows == sorted(lows, reverse=True)
    assert rows["0.compute"].height >= 2 * rows["0.h2d"].height


def test_wide_bars_carry_their_names_and_narrow_ones_none() -> None:
    """Four ops are named, with their task where a row has several; in a whole run of hundreds no
    bar has room."""
    assert set(words(_whole(timetables.tiny()).texts)) == {"s0.P0", "s0.B0", "s0.S0", "s0.U0"}
    shared = _ops(timetables.plan(rounds=2), (8_000, 12_000), 0)
    assert {"a.s0.P4", "a.s2.U0"} <= set(words(shared.texts))
    assert words(_whole(timetables.plan(rounds=6)).texts) == []


def test_title_and_lines_give_makespan_bound_and_gap() -> None:
    """The bound is a dashed line at its time with its name, the makespan a solid one."""
    ax = _whole(timetables.tiny())
    assert ax.get_title(loc="left") == "planned: makespan 200 µs, link bound 180 µs, gap 10.00 %"
    lines = {line.get_xdata()[0]: line.is_dashed() for line in ax.lines}
    assert lines == {180: True, 200: False}
    assert _marks(ax) == ["link bound", "makespan"]


def test_window_shows_only_what_reaches_into_it() -> None:
    """Bars outside the window are not drawn, those across its edge are."""
    plan = timetables.plan(rounds=4)
    drawn = pictures.bars(_ops(plan, (20_000, 30_000)))
    expected = [p for p in timing.timeline(plan) if p.end_us > 20_000 and p.start_us < 30_000]
    assert len(drawn) == len(expected)


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


def test_figure_has_all_segments_above_and_a_steady_round_below() -> None:
    """The lower panel is one round of the longest segment; of a run of few rounds it has all."""
    plan = timetables.plan(rounds=6)
    above, below = gantt.figure(plan).axes
    assert above.get_xlim()[1] == pytest.approx(plan.prediction.makespan_us, rel=0.01)
    start, end = below.get_xlim()
    assert end - start == pytest.approx(plan.programs[0].round_us, rel=0.01)
    assert below.get_title(loc="left").startswith("round 2 of 0 to 5 of ab on device 0, every ")
    assert gantt.figure(timetables.tiny()).axes[1].get_title(loc="left") == "all ops, planned"


def test_every_segment_is_a_bar_in_the_row_of_its_device() -> None:
    """From its first round to its last in full height, the tasks of one segment above each other,
    and named at the left."""
    plan = timetables.plan(rounds=40)
    ax = gantt.figure(plan).axes[0]
    programs = {program.name: program for program in plan.programs}
    expected = []
    for segment in plan.segments:
        program = programs[segment.program]
        _, first, leave = (phase.start_us for phase in timing.phases(program, segment))
        expected += [(first, leave, -segment.devices[0])] * len(program.tasks)
    drawn = [bar for bar in pictures.bars(ax) if bar[1] - bar[0] > 1_000]  # no enter, no leave
    middle = ax.get_yticks()  # of each device's row
    rows = [(start, end, -np.abs(middle - low).argmin()) for start, end, low in drawn]
    assert sorted(set(rows)) == sorted(set(expected))
    lows = [low for start, _, low in drawn if start == expected[0][0]]
    assert len(set(lows)) == 3  # a above b, and d
    period = plan.programs[2].period_us / 1000
    assert f"d: 40 rounds of {period:.1f} ms" in words(ax.texts)


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


def test_only_the_devices_of_the_segment_are_drawn_large() -> None:
    """A close-up of device 1 has its four rows."""
    plan = timetables.plan(rounds=6)
    below = gantt.figure(plan, task="d").axes[1]
    names = words(below.get_yticklabels())
    assert names == ["1.compute", "1.h2d", "1.d2h", "host.1"]


def test_names_of_marks_stay_clear_of_the_title() -> None:
    """However long the title, and however close the marks: they have a line of their own."""
    marks = [panels.Mark(us, "x" * 20, False) for us in (10, 12, 190)]
    fig = panels.figure([panels.Panel(2.0, [bars.Row(0, 1)], [], (0, 200), "y" * 150, marks)], [])
    fig.draw_without_rendering()
    (ax,) = fig.axes
    title, names = ax._left_title, ax.get_legend()
    assert words(names.get_texts()) == ["x" * 20] * 3
    assert names.get_window_extent().y1 <= title.get_window_extent().y0


def test_legend_names_tasks_and_kinds() -> None:
    """Every task and every kind that occurs is explained once."""
    legend = gantt.figure(timetables.plan()).legends[0]
    names = words(legend.get_texts())
    assert names == ["a", "b", "c", "d", "forward", "backward", "update", "copy"]


def test_planned_and_actual_share_the_time_scale() -> None:
    """Both axes span the later of the two ends, and the lower one shows the log's times."""
    plan = timetables.plan(rounds=2)
    log = timetables.log(plan, percent=150)
    above, below, *_ = gantt.figure(plan, log).axes
    assert above.get_xlim() == below.get_xlim()
    assert above.get_xlim()[1] >= 1.5 * plan.prediction.makespan_us
    assert "+50.0 %" in below.get_title(loc="left")
    assert pictures.bars(below)[-1][1] == pytest.approx(max(op.end_us for op in log.ops), rel=0.01)


def test_figure_with_a_log_aligns_the_same_rounds() -> None:
    """Planned and actual close-ups are as long as each other and begin with the same round."""
    plan = timetables.plan(rounds=6)
    log = timetables.log(plan, percent=200)
    _, _, planned, actual = (ax.get_xlim() for ax in gantt.figure(plan, log).axes)
    assert actual[1] - actual[0] == pytest.approx(planned[1] - planned[0])
    assert actual[0] == pytest.approx(2 * planned[0], rel=0.01)


def test_log_killed_before_the_zoomed_rounds_is_still_drawn() -> None:
    """The close-up of rounds that never ran is an empty panel, not an error."""
    plan = timetables.plan(rounds=6)
    log = timetables.log(plan)
    short = replace(log, ops=log.ops[:5], end=None)
    assert len(gantt.figure(plan, short).axes) == 4


@pytest.mark.parametrize("emulated", [False, True])
def test_emulated_times_are_called_so(emulated: bool) -> None:
    """Each panel's title says emulated when and only when devices are paced."""
    plan = timetables.plan(rounds=6, emulated=emulated)
    titles = [ax.get_title(loc="left") for ax in gantt.figure(plan, timetables.log(plan)).axes]
    assert ["emulated" in title for title in titles] == [emulated] * 4


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
