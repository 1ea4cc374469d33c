"""Plan books: one plan for each number of devices, all of the same training."""

import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from planner.builder import draft
from planner.errors import Infeasible
from planner.inputs import Nodes, Options, Problem, read_problem
from planner.processes import in_order
from plans import Book, Plan, prove, prove_alike
from plans.order import node_count
from profiles.errors import FormatError

_KEPT = 20
"""So often, by default, a run keeps its states: who loses a device goes on from there."""

Size = int | Nodes
"""A number of devices, or nodes of several devices."""


def make_book(
    profile: str | Sequence[str],
    sizes: Sequence[Size],
    asked: Options,
    make: Callable[[Problem], Plan] = draft,
    jobs: int = 1,
) -> Book:
    """Plans for these sizes that `make` makes, proven. The largest chooses the microbatches, which
    all have: with others they would train something else. The others are planned in so many
    processes, one of which meanwhile proves the first. Infeasible where one size has no plan with
    these microbatches."""
    largest, *others = sorted({*sizes}, key=_total, reverse=True)
    first = _planned(profile, asked, make, largest)
    microbatch = {task.name: task.microbatch for task in first.tasks}
    proven = partial(_proven, profile, replace(asked, microbatch=microbatch), make)
    work = [*others[:1], first, *others[1:]]
    found = [first, *filter(None, in_order(proven, work, min(jobs, len(work))))]
    made = Book(plans=tuple(sorted(found, key=lambda p: (node_count(p), len(p.devices)))))
    prove_alike(made)
    return made


def _proven(
    profile: str | Sequence[str], asked: Options, make: Callable[[Problem], Plan], one: Size | Plan
) -> Plan | None:
    """The plan for a size, proven; None for a plan, which is proven."""
    plan = one if isinstance(one, Plan) else _planned(profile, asked, make, one)
    prove(plan)
    return plan if plan is not one else None


def _planned(
    profile: str | Sequence[str], asked: Options, make: Callable[[Problem], Plan], size: Size
) -> Plan:
    """The plan for this size."""
    problem = read_problem(profile, _asking(asked, size))
    if problem.lengths:
        raise FormatError(
            f"{next(iter(problem.lengths))}: its samples have lengths, whose microbatches "
            "follow the devices; a book has no such tasks, build a plan for each size"
        )
    if problem.segment_steps is None:
        most = max(task.steps for task in problem.tasks)
        problem = replace(problem, segment_steps=max(1, most // _KEPT))
    print(f"planning for {_words(size)}", file=sys.stderr, flush=True)
    try:
        return make(problem)
    except Infeasible as error:
        raise Infeasible(f"{_words(size)}: {error.message}", error.smallest) from None


def _total(size: Size) -> int:
    return size if isinstance(size, int) else size.total


def _words(size: Size) -> str:
    return f"{size} device(s)" if isinstance(size, int) else f"{size} devices"


def _asking(asked: Options, size: Size) -> Options:
    """The options for this size."""
    which: dict[str, Any] = {"devices": size, "nodes": None}
    if isinstance(size, Nodes) and size.count == 1:  # there is no network
        which |= {"devices": size.devices, "net": None, "net_latency": None}
    elif isinstance(size, Nodes):
        which = {"devices": None, "nodes": size}
    return replace(asked, **which)
