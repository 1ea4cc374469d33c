"""A plan book for people: how fast the training is on how many devices."""

from collections.abc import Iterator
from math import isinf
from typing import Any

from planner.views.summary import summary
from plans import Book, Plan, size_of
from plans.order import fastest, node_count, pays_from_us
from plans.timing import step_us
from profiles.console import columns
from profiles.units import show_us

START_US = 10_000_000
"""What a start is taken to last where nobody says."""

_HEAD = ("devices", "step", "whole run", "kept every", "gap", "speed", "a loss", "joined for")


def describe_book(book: Book, start_us: int = START_US, source: str = "assumed; --start") -> str:
    """A line for each plan; speed: against the first one. source: of the start's time."""
    first, rows = book.plans[0].prediction.makespan_us, [_HEAD]
    for plan in book.plans:
        whole, gap = plan.prediction.makespan_us, plan.prediction.gap_ppm
        times = (show_us(step_us(plan)), show_us(whole), show_us(_kept_us(plan)))
        costs = (show_us(_loss_us(plan, start_us)), _joined(book, plan, start_us))
        rows.append((size_of(plan), *times, f"{gap / 1e4:.1f} %", f"{first / whole:.2f}x", *costs))
    names = ", ".join(task.name for task in book.plans[0].tasks)
    marks = [book.plans[0].emulated, "estimated, not measured" * book.plans[0].estimated]
    return "\n".join(
        [
            f"book of {len(book.plans)} plan(s), which train the same: {names}"
            + "".join(f" ({mark})" for mark in marks if mark),
            *columns(rows, numbers=True),
            "a loss: of a device, on average: half of what lies between two kept states, and a "
            f"start of {show_us(start_us)} ({source})",
            "joined for: so much has to be left, on the devices of the line above, for more to "
            "save what a start takes",
            *_idle(book),
        ]
    )


def _kept_us(plan: Plan) -> int:
    """The longest between two times that states are kept."""
    return max(segment.end_us - segment.start_us for segment in plan.segments)


def _loss_us(plan: Plan, start_us: int) -> int:
    """The time that the loss of a device costs on average."""
    return _kept_us(plan) // 2 + start_us


def _joined(book: Book, plan: Plan, start_us: int) -> str:
    """The time that has to be left for a change to this plan to pay, from the fastest plan on the
    devices of the line above."""
    at = book.plans.index(plan)
    if not at:
        return "-"
    before = book.plans[at - 1]
    before = fastest(book, len(before.devices), node_count(before)) or before
    slow_us, fast_us = before.prediction.makespan_us, plan.prediction.makespan_us
    left_us = pays_from_us(slow_us, fast_us, start_us)
    return "never" if isinf(left_us) else show_us(int(left_us))


def _idle(book: Book) -> Iterator[str]:
    """A line for each size of which devices have nothing to do in the plan that is run on them."""
    for plan in book.plans:
        best = fastest(book, len(plan.devices), node_count(plan)) or plan
        used = {device for segment in best.segments for device in segment.devices}
        if idle := len(plan.devices) - len(used):
            why = f"; {size_of(best)} are no slower" * (best is not plan)
            yield f"{size_of(plan)}: {idle} idle{why}"


def book_summary(book: Book, start_us: int = START_US) -> list[dict[str, Any]]:
    """The figures of each plan, see `summary`, and what the loss of a device costs on average."""
    return [
        {"size": size_of(plan), **summary(plan), "loss_us": _loss_us(plan, start_us)}
        for plan in book.plans
    ]
