"""Two plans, set side by side: what differs, and where the time of the slower one goes."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from typing import NamedTuple

from planner.views.layout import bubble, layout, stages
from planner.views.stalls import parts_of_round
from planner.views.summary import mean_completion_us
from planner.views.words import few, more
from plans.order import waiting
from plans.schema import Plan, Program
from plans.timing import device_times
from profiles.console import columns
from profiles.units import show_bytes, show_us

_MOST = 6  # groups of tasks, parts of a round


class Difference(NamedTuple):
    """Something that two plans do not have in common, in words. of: tasks, none of the whole."""

    of: tuple[str, ...]
    what: str
    first: str
    second: str


def differences(first: Plan, second: Plan) -> list[Difference]:
    """The differences, of the whole first, then of tasks, those that differ alike together."""
    whole = [Difference((), *row) for row in _rows(_whole(first), _whole(second))]
    names = list(dict.fromkeys(task.name for plan in (first, second) for task in plan.tasks))
    alike: dict[tuple[tuple[str, str, str], ...], list[str]] = {}
    for name in names:
        rows = _rows(_task(first, name), _task(second, name))
        alike.setdefault(tuple(rows), []).append(name)
    tasks = (Difference(tuple(own), *row) for rows, own in alike.items() for row in rows)
    return [*whole, *tasks]


def reasons(first: Plan, second: Plan) -> list[str]:
    """A sentence about the faster plan, then for tasks the parts of their rounds that differ."""
    a, b = first.prediction.makespan_us, second.prediction.makespan_us
    if a == b:
        lines = [f"both take {show_us(a)}"]
    else:
        word, less = ("second", 1 - b / a) if b < a else ("first", 1 - a / b)
        lines = [f"the {word} is faster: {show_us(min(a, b))}, {less:.1%} less"]
    told: dict[str, list[str]] = {}
    for name in (task.name for task in first.tasks):
        one, other = _program(first, name), _program(second, name)
        if one and other and (said := _parts(first, one, second, other)):
            told.setdefault(said, []).append(name)
    return [*lines, *(f"{few(names)}: {said}" for said, names in list(told.items())[:_MOST])]


def describe_differences(first: Plan, second: Plan, names: tuple[str, str]) -> str:
    """Both as text; `names` of the two files."""
    found, title = differences(first, second), f"first {names[0]}, second {names[1]}"
    if not found:
        return f"{title}: nothing that counts differs"
    groups = [(of, list(own)) for of, own in groupby(found, key=lambda one: one.of)]
    rows = [("", "", "first", "second")]
    for of, own in groups[: _MOST + 1]:
        heads = [few(of) if of else "plan", *[""] * len(own)]
        rows += [(h, o.what, o.first, o.second) for h, o in zip(heads, own, strict=False)]
    left = more("", len(groups) - _MOST - 1, " groups of tasks")
    return "\n".join([title, *columns(rows), *left, "", *reasons(first, second)])


def _rows(a: Mapping[str, str], b: Mapping[str, str]) -> list[tuple[str, str, str]]:
    names = dict.fromkeys([*a, *b])
    return [(n, a.get(n, "-"), b.get(n, "-")) for n in names if a.get(n) != b.get(n)]


def _whole(plan: Plan) -> dict[str, str]:
    p, used = plan.prediction, device_times(plan)
    mean = max(p.makespan_us, 1) * len(used)
    budgets = Counter(show_bytes(device.budget_bytes) for device in plan.devices)
    return {
        "devices": ", ".join(f"{count} of {size}" for size, count in budgets.items()),
        "made by": f"{plan.solver.policy}, seed {plan.solver.seed}, {plan.solver.status}",
        "makespan": show_us(p.makespan_us),
        "lower bound": f"{show_us(p.lower_bound_us)}, {p.lower_bound_name}",
        "gap": f"{p.gap_ppm / 1e4:.2f} %",
        "mean completion": show_us(mean_completion_us(plan)),
        "compute busy": f"{sum(d.compute_us for d in used) / mean:.1%}",
        "exposed copies": show_us(sum(d.exposed_copy_us for d in used)),
        "peak of a device": show_bytes(max(d.peak_bytes for d in used)),
        "host store": show_bytes(plan.host.bytes),
        "segments": str(len(plan.segments)),
        "wait on disk": ", ".join(waiting(plan)) or "none",
    }


def _task(plan: Plan, name: str) -> dict[str, str]:
    """A plan's words on a task; nothing of one that it does not have."""
    task = next((task for task in plan.tasks if task.name == name), None)
    if task is None:
        return {}
    program = _program(plan, name)
    told = {
        "workload": f"{task.workload.ref} {task.workload.sha256[:12]}…",
        "steps": str(task.steps),
        "microbatches": f"up to {task.microbatches} x {task.microbatch}"
        if task.lengths
        else f"{task.microbatches} x {task.microbatch}",
        "cuts at layers": _cuts([shard.first_layer for shard in task.shards[1:]]),
        "resident": f"{sum(s.resident for s in task.shards)} of {len(task.shards)} shards",
        "updates": _counted(shard.update for shard in task.shards),
        "activations": _counted(shard.activations for shard in task.shards),
    }
    if program:
        told |= {
            "layout": layout(stages(program, name)),
            "placed": _cuts([len(stage.shards) for stage in stages(program, name)])
            + " shards a stage",
            "with": ", ".join(one for one in program.tasks if one != name) or "no other task",
            "round every": show_us(program.period_us),
            "bubble": f"{bubble(program):.1%}",
            "memory": show_bytes(max(m.bytes for m in program.memory)),
        }
    return told


def _program(plan: Plan, task: str) -> Program | None:
    """The program with most rounds of a task."""
    rounds: Counter[str] = Counter()
    for segment in plan.segments:
        program = plan.program(segment.program)
        if task in program.tasks and not program.evaluates:
            rounds[segment.program] += segment.rounds
    return plan.program(rounds.most_common(1)[0][0]) if rounds else None


def _cuts(numbers: Sequence[int]) -> str:
    shown = ", ".join(map(str, numbers[: _MOST * 2]))
    return (shown or "none") + (", ..." if len(numbers) > _MOST * 2 else "")


def _counted(kinds: Iterable[str]) -> str:
    return ", ".join(f"{kind} {count}" for kind, count in sorted(Counter(kinds).items()))


def _parts(one: Plan, a: Program, other: Plan, b: Program) -> str:
    """The parts of a round that take other times, the largest difference first."""
    changed = Counter(parts_of_round(other, b))
    changed.subtract(parts_of_round(one, a))
    ranked = sorted(changed.items(), key=lambda item: (-abs(item[1]), item[0]))
    told = "; ".join(f"{name} {_signed(us)}" for name, us in ranked[:_MOST] if us)
    return f"a round {_signed(b.period_us - a.period_us)}: {told}" if told else ""


def _signed(us: int) -> str:
    return f"{'-' if us < 0 else '+'}{show_us(abs(us))}"
