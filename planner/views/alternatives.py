"""Ways to train a task on several devices that the search looked at, and why it left them."""

from collections.abc import Iterable, Sequence

from plans.prediction import Alternative
from plans.schema import Plan
from profiles.console import columns
from profiles.units import show_bytes, show_us

_MOST = 60  # of a task
_HEAD = (
    "devices",
    "layout",
    "order",
    "microbatch",
    "recomputed",
    "period",
    "bound",
    "peak",
    "why not",
)


def describe_alternatives(plan: Plan) -> str:
    """A table for each task, what is in the plan first, then by period, then what was left for its
    bound."""
    told = plan.solver.alternatives
    if not told:
        return "this plan has no alternatives: none of its tasks could train on several devices"
    sections = []
    for task in plan.tasks:
        mine = ranked(one for one in told if one.task == task.name)
        if mine:
            head = f"{task.name}: {len(mine)} way(s) to train it on several devices, or on one"
            sections.append("\n".join([head, *_table(mine)]))
    return "\n\n".join(sections)


def ranked(alternatives: Iterable[Alternative]) -> list[Alternative]:
    """The one that was taken, then the simulated ones by period, then the others by bound."""
    return sorted(
        alternatives,
        key=lambda one: (one.why_not != "", not one.period_us, one.period_us or one.bound_us),
    )


def _table(mine: Sequence[Alternative]) -> list[str]:
    rows = [_HEAD, *map(_row, mine[:_MOST])]
    lines = ["  " + line for line in columns(rows)]
    left = len(mine) - _MOST
    return [*lines, f"  … and {left} more; --json has all"] if left > 0 else lines


def _row(one: Alternative) -> tuple[str, ...]:
    return (
        str(one.devices),
        one.layout,
        one.order,
        str(one.microbatch),
        str(one.recompute),
        show_us(one.period_us) if one.period_us else "-",
        show_us(one.bound_us),
        show_bytes(one.peak_bytes) if one.peak_bytes else "-",
        one.why_not or "in the plan",
    )
