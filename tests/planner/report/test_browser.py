"""The page in a real browser, where there is one: keys, wheel, clicks, and what they show."""

from pathlib import Path

import pytest
from msgspec.structs import replace
from support import handmade, timetables
from support.browser import driven
from support.timetables import PLAN_SHA256 as SHA

from planner.report import page, report
from plans.timing import device_times, timeline

PLAN = timetables.plan(rounds=4)
PAGE = page(report(PLAN, SHA, [timetables.log(PLAN, percent=110)]))


def test_hands_and_keys_move_the_view(tmp_path: Path) -> None:
    """The wheel zooms about the pointer, dragging pans, 0 shows all again; nothing goes wrong."""
    found = driven(
        PAGE,
        """
        const { view, x } = report, whole = view.dt, t = view.t + 400 * view.dt;
        point("wheel", 92 + 400, 40, { deltaY: -600 });
        const zoomed = view.dt, still = x(t), from = view.t;
        point("pointerdown", 600, 40); point("pointermove", 500, 40); point("pointerup", 500, 40);
        const dragged = (view.t - from) / view.dt;
        press("+"); const closer = view.dt;
        press("0"); await frame();
        return { whole, zoomed, still, dragged, closer, last: view.dt };
        """,
        tmp_path,
    )
    assert found["troubles"] == []
    assert found["closer"] < found["zoomed"] < found["whole"] == found["last"]
    assert abs(found["still"] - 492) < 1
    assert abs(found["dragged"] - 100) < 1


def test_bars_are_the_plans_and_the_runs(tmp_path: Path) -> None:
    """Every op, planned and actual, at its time."""
    found = driven(
        PAGE,
        """
        const all = (side) => report.model.rows.flatMap((row) =>
          Array.from({ length: row[side].n }, (_, i) => [row[side].start(i), row[side].end(i)]));
        return { planned: all("planned"), actual: all("actual") };
        """,
        tmp_path,
    )
    planned = sorted([one.start_us, one.end_us] for one in timeline(PLAN))
    log = timetables.log(PLAN, percent=110)
    assert sorted(found["planned"]) == planned
    assert sorted(found["actual"]) == sorted([one.start_us, one.end_us] for one in log.ops)


def test_a_click_tells_of_an_op(tmp_path: Path) -> None:
    """Its name, times, what it waited for; the critical path leads back to the begin."""
    found = driven(
        PAGE,
        """
        const { model, view, rows, x, name } = report, place = rows[0];
        const bar = { row: place.row, side: "planned", i: 3 };
        const px = x((bar.row.planned.start(3) + bar.row.planned.end(3)) / 2);
        const py = place.y + 5 - report.offset();
        point("pointermove", px, py);
        const tip = document.getElementById("tip").textContent;
        point("pointerdown", px, py); point("pointerup", px, py);
        const path = view.path;
        return { name: name(model, bar), tip, detail: document.getElementById("detail").textContent,
          chosen: name(model, view.chosen), begins: path.at(-1).row.planned.start(path.at(-1).i),
          sound: path.slice(1).every((one, k) => report.endOf(one) <= report.startOf(path[k])) };
        """,
        tmp_path,
    )
    assert found["troubles"] == []
    assert found["chosen"] == found["name"]
    assert found["tip"].startswith(found["name"])
    assert "waits for" in found["detail"]
    assert "why then: it began as" in found["detail"]
    assert found["sound"]
    assert found["begins"] == 0


def test_the_next_late_op_is_the_one_that_lost_time(tmp_path: Path) -> None:
    """Of a run in which one op takes ten times as long, n goes there; p as well."""
    log = timetables.log(PLAN, percent=100)
    slow = max(log.ops, key=lambda op: (op.op.endswith("B0"), op.round == 2, op.op))
    us = 10 * (slow.end_us - slow.start_us)
    ops = tuple(
        replace(op, end_us=op.end_us + us)
        if op is slow
        else replace(op, start_us=op.start_us + us, end_us=op.end_us + us)
        if op.segment == slow.segment and op.start_us >= slow.end_us
        else op
        for op in log.ops
    )
    late = page(report(PLAN, SHA, [replace(log, ops=ops)]))
    found = driven(
        late,
        """
        press("n"); const first = report.name(report.model, report.view.chosen);
        press("p"); const same = report.name(report.model, report.view.chosen);
        return { first, same, count: report.late().length };
        """,
        tmp_path,
    )
    assert found == {"first": slow.op, "same": slow.op, "count": 1, "troubles": []}


def test_memory_is_the_plans(tmp_path: Path) -> None:
    """The most that is alive is no more than the plan says, and the pointer names buffers."""
    plan = handmade.streamed()
    found = driven(
        page(report(plan, SHA)),
        """
        const { model, rows, x } = report, strip = rows.find((one) => one.device === 0);
        point("pointermove", x(model.end / 2), strip.y + 20 - report.offset());
        const most = model.memory.map((every) =>
          Math.max(...every.map((one) => report.curveOf(model, one).most)));
        return { most, tip: document.getElementById("tip").textContent };
        """,
        tmp_path,
    )
    assert found["troubles"] == []
    for most, device in zip(found["most"], device_times(plan), strict=True):
        assert 0.5 * device.peak_bytes < most <= device.peak_bytes
    assert "alive" in found["tip"]
    assert "a.batch.0" in found["tip"]


def test_crowded_rows_are_filled_as_far_as_they_are_busy(tmp_path: Path) -> None:
    """At a thousand ops a pixel column the area that is drawn is the time that compute takes."""
    plan = timetables.plan(rounds=20_000)
    found = driven(
        page(report(plan, SHA)),
        """
        const { model, view, rows, draw } = report, { row, y, high } = rows[0];
        press("0"); draw();
        const ctx = canvas.getContext("2d"), top = y - report.offset();
        const { data } = ctx.getImageData(92, top, view.wide, high);
        const blue = [[0x56, 0xb4, 0xe9], [0, 0x72, 0xb2]]; // forward and backward
        let area = 0;
        for (let at = 0; at < data.length; at += 4) {
          area += blue.some((color) => color.every((byte, k) => data[at + k] === byte));
        }
        return { busy: area / 12 * view.dt, ops: row.planned.n / view.wide };
        """,
        tmp_path,
    )
    assert found["troubles"] == []
    assert found["ops"] > 100
    assert found["busy"] == pytest.approx(device_times(plan)[0].compute_us, rel=0.05)


def test_an_op_that_is_gone_to_is_in_the_window(tmp_path: Path) -> None:
    """The page scrolls to its row; what the pointer told of before is told no longer."""
    found = driven(
        PAGE,
        """
        const { rows, choose, x } = report, { row, y } = rows[0];
        const tip = document.getElementById("tip");
        const bar = { row, side: "planned", i: 3 };
        point("pointermove", x((row.planned.start(3) + row.planned.end(3)) / 2), y + 5);
        const told = !tip.hidden;
        document.body.style.paddingTop = "2000px";
        choose(bar, true); await frame();
        const at = y - report.offset() + canvas.getBoundingClientRect().top;
        return { told, tells: !tip.hidden, seen: at > 0 && at < window.innerHeight };
        """,
        tmp_path,
    )
    assert found == {"told": True, "tells": False, "seen": True, "troubles": []}
