"""A report as one HTML file: its tables are plain HTML; a script draws the timeline."""

import re
from collections.abc import Mapping, Sequence
from html import escape
from importlib.resources import files
from itertools import pairwise

from planner.curves import Curve
from planner.report.host import Steps
from planner.report.packed import packed
from planner.report.report import AGAIN, BESIDE, COMPUTE, Report, Second, Table
from plans.schema import Plan
from profiles.units import show_bytes, show_us

_PLACES = 400  # points of a curve
_WIDE, _HIGH = 420, 120
_COLOURS = 4  # of lines
_MOST = 200  # rows of a table
_UNIT = re.compile(r"(\d) (?=[%smhµ])")
_NUMBER = re.compile(r"[-+]?\d*\.?\d*( ?([%smhµ]|[mµ]s|[KMGT]?i?B)|)$")

_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>{title}</title>
<style>{style}</style></head>
<body>
<header><h1>{title}</h1><p class="verdict">{verdict}</p></header>
<section id="timeline" hidden>
<div id="tools"></div>
<div id="chart"><canvas id="canvas" tabindex="0" role="img"
 aria-label="timeline of all ops"></canvas><i id="cursor" hidden></i></div>
<pre id="tip" hidden></pre>
<div id="detail" aria-live="polite"></div>
</section>
<noscript><p class="note">The timeline needs JavaScript; all else is below.</p></noscript>
{body}
<script type="text/plain" id="data">{data}</script>
<script>{script}</script>
</body></html>
"""


def page(report: Report) -> bytes:
    """The whole page."""
    parts = [
        _seconds(report.seconds),
        *map(_table, report.tables),
        _curves(report.curves),
        _host(report.host, report.timeline.plan),
        f"<section><h2>The plan in words</h2><details><summary>as <code>show</code> says it"
        f"</summary><pre>{escape(report.words)}</pre></details></section>",
        "<section><h2>To make it again</h2><pre>"
        + escape("\n".join(report.commands))
        + "</pre></section>",
    ]
    return _PAGE.format(
        title=escape(report.title),
        verdict=_UNIT.sub(r"\1&nbsp;", escape(report.verdict)),
        style=_own("report.css"),
        script=_own("report.js"),
        data=packed(report.timeline),
        body="\n".join(parts),
    ).encode()


def _own(name: str) -> str:
    return files("planner.report").joinpath(name).read_text()


def _table(table: Table, above: str = "", *, keyed: bool = False) -> str:
    """Columns of numbers to the right; `keyed`: each but the first has a colour."""
    head, *rows = table.rows
    sides = ["" if all(map(_NUMBER.match, cells)) else "w" for cells in zip(*rows, strict=True)]
    lines = [_row("th", head, sides, keyed=keyed), "</thead><tbody>"]
    lines += [_row("td", row, sides) for row in rows[:_MOST]]
    left = len(rows) - _MOST
    notes = [table.note, f"… and {left} more" if left > 0 else ""]
    below = "".join(f'<p class="note">{escape(note)}</p>' for note in notes if note)
    return (
        f"<section><h2>{escape(table.title)}</h2>{above}<div class=scroll><table><thead>"
        + "".join(lines)
        + f"</tbody></table></div>{below}</section>"
    )


def _row(tag: str, cells: Sequence[str], sides: Sequence[str], *, keyed: bool = False) -> str:
    told = (
        f"<{tag}{side and ' class=w'}>{f'<i class=s{k - 1}></i>' * (keyed and k > 0)}"
        f"{escape(cell)}</{tag}>"
        for k, (cell, side) in enumerate(zip(cells, sides, strict=True))
    )
    return f"<tr>{''.join(told)}</tr>"


def _seconds(seconds: Sequence[Second]) -> str:
    """A bar for each device, and what its colours mean; the table says the same in numbers."""
    ends = (COMPUTE, AGAIN), (BESIDE,)
    waits = sorted({name for one in seconds for name in one.shares} - {*ends[0], *ends[1]})
    names = [*ends[0], *waits, *ends[1]]
    names = [name for name in names if any(one.shares.get(name, 0) >= 500 for one in seconds)]
    rows = [("device", *names)]
    rows += [
        (one.device, *(f"{one.shares.get(n, 0) / 1e4:.1f} %" for n in names)) for one in seconds
    ]
    bars = []
    for one in seconds:
        cells = "".join(
            f'<i class="s{place}" style="width:{one.shares.get(name, 0) / 1e4:.4f}%"'
            f' title="{escape(name)}"></i>'
            for place, name in enumerate(names)
        )
        bars.append(f"<div class=share><b>{escape(one.device)}</b><span>{cells}</span></div>")
    return _table(Table("Where each device's second goes", rows), "".join(bars[:_MOST]), keyed=True)


def _host(steps: Steps, plan: Plan) -> str:
    """The host store in use over the planned time, under its budget."""
    end, budget = max(plan.prediction.makespan_us, 1), plan.host.budget_bytes
    most = max((size for _, size in steps), default=0)
    if not most:
        return ""
    points = [(0, 0), *((us, size) for us, size in steps)]
    corners = [at for (_, size), (us, more) in pairwise(points) for at in ((us, size), (us, more))]
    line = " ".join(
        f"{us / end * _WIDE:.1f},{(1 - size / most) * _HIGH:.1f}" for us, size in corners
    )
    return (
        "<section><h2>Host memory over the planned time</h2>"
        f'<figure><svg viewBox="-3 -3 {_WIDE + 6} {_HIGH + 6}" role="img">'
        f'<polyline class=l0 points="{line}"/></svg><figcaption>0 to {show_us(end)}; at most '
        f"{show_bytes(most)} in use, of {show_bytes(plan.host.bytes)} that the plan takes and "
        f"{show_bytes(budget)} that it may take</figcaption></figure></section>"
    )


def _curves(runs: Mapping[str, Mapping[str, Curve]]) -> str:
    """A small picture of each value of a task by step, with the lines of all runs."""
    every = [curves for curves in runs.values() if curves]
    drawn = [
        _lines(f"{name} of {task}", {run: _points(own, task, name) for run, own in runs.items()})
        for task in dict.fromkeys(task for curves in every for task in curves)
        for name in dict.fromkeys(
            name for curves in every for p in curves.get(task, {}).values() for name in p.values
        )
    ]
    return f"<section><h2>Losses and metrics</h2>{''.join(drawn)}</section>" if every else ""


def _points(curves: Mapping[str, Curve], task: str, name: str) -> list[tuple[int, float]]:
    known = ((step, point.values.get(name)) for step, point in curves.get(task, {}).items())
    return [(step, value) for step, value in known if value is not None]


def _lines(title: str, runs: Mapping[str, list[tuple[int, float]]]) -> str:
    """Lines on the same axes, and for each its first, last, least and largest value."""
    runs = {run: points for run, points in runs.items() if points}
    every = [point for points in runs.values() for point in points]
    if not every:
        return ""
    steps, values = zip(*every, strict=True)
    left, top, wide, high = min(steps), max(values), max(steps), min(values)
    x, y = _WIDE / max(wide - left, 1), _HIGH / ((top - high) or 1.0)
    lines, words = [], []
    for place, (run, points) in enumerate(runs.items()):
        told = points[:: -(-len(points) // _PLACES)]
        told = told if told[-1] == points[-1] else [*told, points[-1]]
        at = " ".join(f"{(step - left) * x:.1f},{(top - value) * y:.1f}" for step, value in told)
        lines.append(f'<polyline class="l{place % _COLOURS}" points="{at}"/>')
        own, (last, latest) = [value for _, value in points], points[-1]
        named = f"<b class=l{place % _COLOURS}>{escape(run)}</b> " if len(runs) > 1 else ""
        words.append(
            f"{named}{own[0]:.4g} at step {points[0][0]}, {latest:.4g} at step {last}, "
            f"least {min(own):.4g}, most {max(own):.4g}"
        )
    return (
        f'<figure><svg viewBox="-3 -3 {_WIDE + 6} {_HIGH + 6}" role="img">{"".join(lines)}</svg>'
        f"<figcaption>{escape(title)}: {'; '.join(words)}</figcaption></figure>"
    )
