"""Plan books: one plan for each number of devices, all of the same training."""

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from planner.builder import build
from planner.errors import Infeasible
from planner.inputs import Nodes, Options, Problem, read_problem
from plans import Book, Plan, prove_book
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
    make: Callable[[Problem], Plan] = build,
) -> Book:
    """Plans for these sizes. The largest chooses the microbatches, which all have: with others they
    would train something else. Infeasible where one size has no plan with them."""
    found: dict[Size, Plan] = {}
    for size in sorted({*sizes}, key=_total, reverse=True):
        problem = read_problem(profile, _asking(asked, size, found))
        if problem.lengths:
            raise FormatError(
                f"{next(iter(problem.lengths))}: its samples have lengths, whose microbatches "
                "follow the devices; a book has no such tasks, build a plan for each size"
            )
        if problem.segment_steps is None:
            most = max(task.steps for task in problem.tasks)
            problem = replace(problem, segment_steps=max(1, most // _KEPT))
        print(f"planning for {_words(size)}", file=sys.stderr)
        try:
            found[size] = make(problem)
        except Infeasible as error:
            raise Infeasible(f"{_words(size)}: {error.message}", error.smallest) from None
    made = Book(plans=tuple(sorted(found.values(), key=lambda p: (node_count(p), len(p.devices)))))
    prove_book(made)
    return made


def _total(size: Size) -> int:
    return size if isinstance(size, int) else size.total


def _words(size: Size) -> str:
    return f"{size} device(s)" if isinstance(size, int) else f"{size} devices"


def _asking(asked: Options, size: Size, found: Mapping[Size, Plan]) -> Options:
    """The options for this size, with the microbatches of the plans that were found."""
    which: dict[str, Any] = {"devices": size, "nodes": None}
    if isinstance(size, Nodes) and size.count == 1:  # there is no network
        which |= {"devices": size.devices, "net": None, "net_latency": None}
    elif isinstance(size, Nodes):
        which = {"devices": None, "nodes": size}
    tasks = [task for plan in found.values() for task in plan.tasks]
    if tasks:
        which["microbatch"] = {task.name: task.microbatch for task in tasks}
    return replace(asked, **which)
