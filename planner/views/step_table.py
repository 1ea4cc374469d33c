"""Steps of samples with lengths, in words and figures: how long they are, and at least."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from planner.sequences import Step
from profiles.console import columns
from profiles.units import show_us

_WORST = 5
_HEAD = ("step", "kind", "samples", "longest", "tokens", "time", "of its kind", "at least", "gap")


def steps_json(steps: Sequence[Step]) -> dict[str, Any]:
    """Sums over all steps, and a row for each."""
    us, kind_us, bound_us = _sums(steps)
    rows = [one._asdict() | {"gap": round(one.gap, 6)} for one in steps]
    whole = {"us": us, "kind_us": kind_us, "bound_us": bound_us, "gap": round(1 - bound_us / us, 6)}
    return whole | {"steps": rows}


def describe_steps(task: str, steps: Sequence[Step]) -> str:
    """All steps together, the median and the tenth of them that is worst, and those with the
    largest gaps."""
    us, kind_us, bound_us = _sums(steps)
    head = [
        f"{task}: {len(steps)} steps, {show_us(us)} as their pipelines compute their own tokens",
        f"  gap {1 - bound_us / us:.2%}: by the same curves no dispatch to these pipelines takes "
        f"less than {show_us(bound_us)}",
        f"  {show_us(kind_us)} as rounds of their kinds, which overlap, with updates and copies",
    ]
    rows: list[tuple[str, ...]] = [("", "median", "p90", "most")]
    for name, own in (
        ("time", [one.us for one in steps]),
        ("at least", [one.bound_us for one in steps]),
        ("of its kind", [one.kind_us for one in steps]),
    ):
        rows.append((name, *(show_us(round(q)) for q in np.percentile(own, (50, 90, 100)))))
    gaps = np.percentile([one.gap for one in steps], (50, 90, 100))
    rows.append(("gap", *(f"{gap:.2%}" for gap in gaps)))
    worst = sorted(steps, key=lambda one: -one.gap)[:_WORST]
    told = columns([_HEAD, *map(_row, worst)], numbers=True)
    few = "the steps with the largest gaps" if len(steps) > _WORST else "all steps"
    lines = [*head, *_indented(columns(rows, numbers=True)), few, *_indented(told)]
    return "\n".join(lines)


def _row(one: Step) -> tuple[str, ...]:
    counts = (one.step, one.kind, one.samples, one.longest, one.tokens)
    times = (one.us, one.kind_us, one.bound_us)
    return (*map(str, counts), *map(show_us, times), f"{one.gap:.2%}")


def _sums(steps: Sequence[Step]) -> tuple[int, int, int]:
    return (
        sum(one.us for one in steps),
        sum(one.kind_us for one in steps),
        sum(one.bound_us for one in steps),
    )


def _indented(lines: Sequence[str]) -> list[str]:
    return ["  " + line for line in lines]
