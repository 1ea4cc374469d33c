"""Ways to train a task on several devices that the search looked at, and why it left them; tasks of
one base that train apart."""

from planner.views.focus import known_task
from planner.views.words import listed, more
from plans.prediction import Alternative
from plans.schema import Plan, Task
from plans.view import base_owners
from profiles.units import show_bytes, show_us

_MOST = 60  # of a task
_MOST_GROUPS = 12  # also names of one
ALTERNATIVE = (
    *("devices", "layout", "order", "microbatch", "recomputed"),
    *("period", "bound", "peak", "why not"),
)


def describe_alternatives(plan: Plan, task: str | None = None) -> str:
    """A table for each task, or for one of them, what is in the plan first, then by period, then
    what was left for its bound."""
    sections, looked_at = [], plan.solver.looked_at
    for name in [one.name for one in plan.tasks] if task is None else [task]:
        if mine := ranked_alternatives(plan, name):
            count = len(mine)
            head = f"{name}: {count} of {looked_at.get(name, count)} way(s) to train it"
            rows = listed(ALTERNATIVE, list(map(alternative_row, mine)), _MOST, "; --json has all")
            sections.append("\n".join([head, *rows]))
    if not sections:
        which = f"task {task} was not" if task else "no task was"
        return (
            f"{which} looked at on several devices: there is one, or nothing seemed to be gained; "
            "build with a --layout to see what that takes"
        )
    return "\n\n".join(sections)


def ranked_alternatives(plan: Plan, task: str | None = None) -> list[Alternative]:
    """Those of all tasks, or of one: the one that was taken, then the simulated ones by period,
    then the others by bound."""
    known_task(plan, task)
    return sorted(
        (one for one in plan.solver.alternatives if task in (None, one.task)),
        key=lambda one: (one.why_not != "", not one.period_us, one.period_us or one.bound_us),
    )


def alternative_row(one: Alternative) -> tuple[str, ...]:
    """Its cells, in the columns of `ALTERNATIVE`."""
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


def bases(plan: Plan) -> list[str]:
    """A line for each group of tasks that does not train with others of its base; nothing where all
    of a base train together."""
    owners, groups = base_owners(plan), plan.solver.groups
    places: dict[str, set[str]] = {}
    for group in groups:
        own = places.setdefault(group.base, set())
        own.update(owners.get(name, f"{name} alone") for name in group.tasks)
    lines = []
    for group in groups[:_MOST_GROUPS]:
        names = [*group.tasks[:_MOST_GROUPS], *more("", len(group.tasks) - _MOST_GROUPS)]
        size, times = _frozen(plan.task(group.base)), len(places[group.base])
        held = f"{times} times, {show_bytes(size)} each" if times > 1 else "once"
        lines.append(
            f"  {', '.join(names)}: apart from others on the base of {group.base}, which lies in "
            f"host memory {held}; {group.why}"
        )
    return [*lines, *more("  ", len(groups) - _MOST_GROUPS, " groups")]


def _frozen(task: Task) -> int:
    """The bytes of a task's base, within its parameters or apart."""
    return sum(s.base_bytes if task.base else s.param_bytes - s.grad_bytes for s in task.shards)
