"""A report as one HTML file: its tables are plain HTML; a script draws the timeline."""

import re
from collections.abc import Iterable, Iterator, Sequence
from html import escape
from importlib.resources import files

from planner.curves import Curve
from planner.report.packed import packed
from planner.report.report import AGAIN, BESIDE, COMPUTE, Report, Second, Table

_PLACES = 400  # points of a curve
_WIDE, _HIGH = 420, 120
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
 aria-label="timeline of all ops"></canvas></div>
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
        _curves(report.curves.items()),
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


def _curves(curves: Iterable[tuple[str, Curve]]) -> str:
    drawn = [_curve(task, curve) for task, curve in curves if curve]
    return f"<section><h2>Losses and metrics</h2>{''.join(drawn)}</section>" if drawn else ""


def _curve(task: str, curve: Curve) -> str:
    """A small picture of each value of a task by step, with its first, last and least value."""
    names = list(dict.fromkeys(name for point in curve.values() for name in point.values))
    return "".join(_line(task, name, list(_points(curve, name))) for name in names)


def _points(curve: Curve, name: str) -> Iterator[tuple[int, float]]:
    for step, point in curve.items():
        value = point.values.get(name)
        if value is not None:
            yield step, value


def _line(task: str, name: str, points: list[tuple[int, float]]) -> str:
    if not points:
        return ""
    told = points[:: -(-len(points) // _PLACES)]
    told = told if told[-1] == points[-1] else [*told, points[-1]]
    steps, values = [step for step, _ in points], [value for _, value in points]
    low, high = min(values), max(values)
    x, y = max(steps[-1] - steps[0], 1), high - low or 1.0
    line = " ".join(
        f"{(step - steps[0]) / x * _WIDE:.1f},{(high - value) / y * _HIGH:.1f}"
        for step, value in told
    )
    words = f"{name} of {task}: {values[0]:.4g} at step {steps[0]}, {values[-1]:.4g} at step "
    words += f"{steps[-1]}, least {low:.4g}, most {high:.4g}"
    return (
        f'<figure><svg viewBox="-3 -3 {_WIDE + 6} {_HIGH + 6}" role="img">'
        f'<polyline points="{line}"/></svg><figcaption>{escape(words)}</figcaption></figure>'
    )
