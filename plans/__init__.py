"""The plan format and its run log, and the checker that trusts neither planner nor executor."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from plans.checker import findings, violations
from plans.checker.lengths import tables
from plans.order import Book, book_from, fastest, is_book, plan_for, size_of, unlike
from plans.schema import VERSION, Plan
from profiles.codec import decode, pretty, read_bytes, sha256, write_atomic
from profiles.errors import FormatError, GantryError
from profiles.findings import Findings

__all__ = [
    "Book",
    "FormatError",
    "InvalidPlan",
    "Plan",
    "book_from",
    "fastest",
    "is_book",
    "load",
    "loads",
    "plan_for",
    "prove",
    "prove_alike",
    "prove_book",
    "prove_tables",
    "save",
    "sha256",
    "size_of",
    "violations",
]


_SHOWN = 20


class InvalidPlan(GantryError):
    """The checker found violations; `violations` are those it lists, the message the first few."""

    def __init__(self, found: Findings) -> None:
        self.violations = found.lines()
        shown = "\n".join(f"  {line}" for line in self.violations[:_SHOWN])
        more = f"\n  … and {found.total - _SHOWN} more" if found.total > _SHOWN else ""
        super().__init__(f"the plan breaks {found.total} rule(s); build it again:\n{shown}{more}")


def loads(data: bytes, where: str = "plan") -> Plan:
    """A plan from bytes, schema-checked only; `prove` it before use."""
    return decode(data, Plan, version=VERSION, where=where)


def load(path: str | Path) -> Plan:
    """A plan from a file, schema-checked only; `prove` it before use."""
    return loads(read_bytes(path), str(path))


def prove(plan: Plan) -> None:
    """Raise InvalidPlan with every violation, or return: the plan is sound."""
    found = findings(plan)
    if found.total:
        raise InvalidPlan(found)


def prove_book(book: Book) -> None:
    """Raise InvalidPlan with every violation, or return: each plan is sound, and all of them train
    the same."""
    found = Findings()
    for plan in book.plans:
        size = size_of(plan)
        found.add(size, (f"{size}: {line}" for line in violations(plan)))
    found.add("book", unlike(book))
    if found.total:
        raise InvalidPlan(found)


def prove_alike(book: Book) -> None:
    """Raise InvalidPlan, or return: all of these plans, each of which is proven, train the same."""
    found = Findings()
    found.add("book", unlike(book))
    if found.total:
        raise InvalidPlan(found)


def prove_tables(
    plan: Plan, path: str | Path, lengths: Mapping[str, NDArray[Any]] | None = None
) -> None:
    """Raise InvalidPlan, or return: the tables beside the file of this sound plan, as it is in the
    file, give every sample of every step a microbatch. With the lengths of a task's samples also
    that no microbatch has more tokens than it may. FormatError where a table cannot be read."""
    found = Findings()
    found.add("tables", tables(plan, path, lengths))
    if found.total:
        raise InvalidPlan(found)


def save(path: str | Path, plan: Plan | Book) -> None:
    """Write a plan, or a book, whole or not at all; FormatError when that fails."""
    write_atomic(path, pretty(plan))
