"""Steps that vary, in words: how long they are, and the ops that make them long."""

from collections import Counter
from collections.abc import Mapping
from typing import Any

from planner.jitter import Jitter
from plans.ops import parse_id
from plans.schema import Plan, Program
from profiles.console import columns
from profiles.units import show_us

_MOST_OPS = 10
_PERCENTS = (10, 50, 90, 95, 99)


def jitter_json(found: Mapping[str, Jitter]) -> dict[str, Any]:
    """Each program's planned period, quantiles of its steps, and the ops that make them longer."""
    return {
        name: {
            "period_us": one.planned_us,
            "mean_us": one.mean_us,
            **{f"p{percent}_us": one.quantile(percent) for percent in _PERCENTS},
            "samples": len(one.steps),
            "ops": [
                {"op": op, "on_path": runs / len(one.steps), "late_us": late // len(one.steps)}
                for op, (runs, late) in sorted(one.path.items(), key=lambda item: -item[1][1])
                if late
            ],
        }
        for name, one in found.items()
    }


def describe_jitter(plan: Plan, found: Mapping[str, Jitter]) -> str:
    """A line of quantiles for each program, and below it what steps wait for."""
    rows = [("program", "planned", "mean", *(f"p{percent}" for percent in _PERCENTS), "p95/plan")]
    for name, one in found.items():
        times = [one.planned_us, one.mean_us, *map(one.quantile, _PERCENTS)]
        ratio = one.quantile(95) / max(one.planned_us, 1)
        rows.append((name, *map(show_us, times), f"{ratio:.3f}"))
    samples = max(len(one.steps) for one in found.values())
    head = f"a step, from the end of a round to the end of the next, simulated {samples} times"
    sections = [[head, *("  " + line for line in columns(rows, numbers=True))]]
    sections += [_path(plan.program(name), one) for name, one in found.items()]
    return "\n\n".join("\n".join(lines) for lines in sections if lines)


def _path(program: Program, one: Jitter) -> list[str]:
    """The ops that steps wait for, by kind, shard and stream, those first that make steps longest;
    nothing where ops have no spread."""
    streams = {op.id: op.stream for op in program.round}
    count, late, ops = Counter[str](), Counter[str](), Counter[str]()
    for op, (runs, us) in one.path.items():
        name = parse_id(op)
        what = f"{name.kind} of {name.task}.{name.item}{name.number} on {streams[op]}"
        count[what], late[what] = max(count[what], runs), late[what] + us
        ops[what] += runs
    samples = len(one.steps)
    rows = [
        (what, f"{count[what] / samples:.0%}", f"{ops[what] / samples:.1f}", show_us(us // samples))
        for what, us in late.most_common(_MOST_OPS)
        if us >= samples
    ]
    if not rows:
        return []
    head = ("ops", "in steps", "a step", "longer by")
    lines = columns([head, *rows])
    return [f"what makes a step of {program.name} longer, on average", *("  " + x for x in lines)]
