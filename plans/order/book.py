"""Plan books: plans of one training for several numbers of devices, so that a run goes on when
devices are lost or come back.

All plans of a book train the same: tasks, data, batches, microbatches. A run that has come to some
steps by one of them goes on by another one from there (`order.rest`); what differs is the order in
which several devices add gradients, which the log says.
"""

from collections.abc import Iterator
from math import inf
from typing import Annotated, Literal

from msgspec import Meta

from plans.order.nodes import node_count
from plans.schema import Plan, Task
from profiles.codec import decode, head_format
from profiles.errors import FormatError
from profiles.schema import Struct

VERSION = 1


class Book(Struct, frozen=True, kw_only=True):
    """The plans of a book, fewest devices first."""

    format: Literal["book"] = "book"
    version: Literal[1] = 1
    plans: Annotated[tuple[Plan, ...], Meta(min_length=1)]


def is_book(data: bytes) -> bool:
    """True for the bytes of a book."""
    return bool(head_format(data) == "book")


def book_from(data: bytes, where: str) -> Book:
    """A book from bytes, schema-checked only; FormatError otherwise."""
    return decode(data, Book, version=VERSION, where=where)


def size_of(plan: Plan) -> str:
    """The devices of a plan in words, by which a book is searched."""
    nodes, count = node_count(plan), len(plan.devices)
    return f"{nodes} nodes of {count // nodes} devices" if nodes > 1 else f"{count} device(s)"


def fastest(book: Book, devices: int, nodes: int = 1) -> Plan | None:
    """The plan of the shortest run on at most so many devices of so many nodes, of equals that for
    the fewest; None where there is none. One for several nodes takes all devices of each."""
    local = devices // nodes

    def fits(plan: Plan) -> bool:
        own = node_count(plan)
        if own == 1:
            return len(plan.devices) <= local
        return own <= nodes and len(plan.devices) == own * local

    return min(
        filter(fits, book.plans),
        key=lambda p: (p.prediction.makespan_us, len(p.devices)),
        default=None,
    )


def pays_from_us(slow_us: float, fast_us: float, start_us: int) -> float:
    """The time that has to be left by a plan whose run takes `slow_us` for a change to one of
    `fast_us` to save as much as a start takes: it pays where there is more. Infinite where the
    other one is no faster."""
    return start_us * slow_us / (slow_us - fast_us) if fast_us < slow_us else inf


def plan_for(book: Book, devices: int, nodes: int, where: str) -> Plan:
    """The fastest plan for so many devices on so many nodes; FormatError where there is none."""
    found = fastest(book, devices, nodes)
    if found is None:
        known = ", ".join(map(size_of, book.plans))
        raise FormatError(
            f"{where}: has plans for {known}, and here are {devices} device(s) on {nodes} node(s); "
            "make it again with a plan for these: python -m planner book"
        )
    return found


def unlike(book: Book) -> Iterator[str]:
    """The reasons why the plans of a book are not one training, a line each; the same sizes twice,
    too."""
    first, *others = book.plans
    sizes = [(node_count(plan), len(plan.devices)) for plan in book.plans]
    if sizes != sorted(set(sizes)):
        yield "plans: not in the order of their nodes and devices, each size once"
    for plan in others:
        if [task.name for task in plan.tasks] != [task.name for task in first.tasks]:
            yield f"{size_of(plan)}: has other tasks than the plan for {size_of(first)}"
            continue
        if plan.inputs != first.inputs:
            yield f"{size_of(plan)}: is made from other files than the plan for {size_of(first)}"
        if plan.numerics != first.numerics:
            yield f"{size_of(plan)}: has other numerics than the plan for {size_of(first)}"
        for mine, other in zip(first.tasks, plan.tasks, strict=True):
            theirs = _training(other)
            for name, value in _training(mine).items():
                if theirs[name] != value:
                    yield (
                        f"{size_of(plan)}: {mine.name} has another {name} than in the plan for "
                        f"{size_of(first)}: {theirs[name]} and {value}"
                    )
    for task in first.tasks:
        if task.lengths or task.evaluation_lengths:
            yield f"{task.name}: its samples have lengths, whose microbatches follow the devices"


def _training(task: Task) -> dict[str, object]:
    """All that says what a task's steps are."""
    return {
        "workload": task.workload,
        "steps": (task.done, task.steps),
        "batch": task.batch,
        "microbatch": task.microbatch,
        "precision": task.precision,
        "evaluation": task.evaluation,
        "number of layers": task.shards[-1].end_layer,
    }
