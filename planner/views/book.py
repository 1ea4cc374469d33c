"""A plan book for people: how fast the training is on how many devices."""

from collections.abc import Iterator
from typing import Any

from planner.views.summary import summary
from plans import Book, size_of
from plans.order import fastest, node_count
from plans.timing import step_us
from profiles.console import columns
from profiles.units import show_us

_HEAD = ("devices", "step", "whole run", "kept every", "gap", "speed")


def describe_book(book: Book) -> str:
    """A line for each plan; speed: against the first one."""
    first, rows = book.plans[0].prediction.makespan_us, [_HEAD]
    for plan in book.plans:
        whole, gap = plan.prediction.makespan_us, plan.prediction.gap_ppm
        longest = max(segment.end_us - segment.start_us for segment in plan.segments)
        times = (show_us(step_us(plan)), show_us(whole), show_us(longest))
        rows.append((size_of(plan), *times, f"{gap / 1e4:.1f} %", f"{first / whole:.2f}x"))
    names = ", ".join(task.name for task in book.plans[0].tasks)
    marks = [book.plans[0].emulated, "estimated, not measured" * book.plans[0].estimated]
    return "\n".join(
        [
            f"book of {len(book.plans)} plan(s), which train the same: {names}"
            + "".join(f" ({mark})" for mark in marks if mark),
            *columns(rows, numbers=True),
            *_idle(book),
        ]
    )


def _idle(book: Book) -> Iterator[str]:
    """A line for each size of which devices have nothing to do in the plan that is run on them."""
    for plan in book.plans:
        best = fastest(book, len(plan.devices), node_count(plan)) or plan
        used = {device for segment in best.segments for device in segment.devices}
        if idle := len(plan.devices) - len(used):
            why = f"; {size_of(best)} are no slower" * (best is not plan)
            yield f"{size_of(plan)}: {idle} idle{why}"


def book_summary(book: Book) -> list[dict[str, Any]]:
    """The figures of each plan, see `summary`."""
    return [{"size": size_of(plan), **summary(plan)} for plan in book.plans]
