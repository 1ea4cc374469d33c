"""The plan format and its run log, and the checker that trusts neither planner nor executor."""

from pathlib import Path

from plans.check import violations
from plans.schema import VERSION, Plan
from profiles.codec import decode, pretty, read_bytes, sha256, write_atomic
from profiles.errors import FormatError, GantryError

__all__ = [
    "FormatError",
    "InvalidPlan",
    "Plan",
    "load",
    "loads",
    "prove",
    "save",
    "sha256",
    "violations",
]


class InvalidPlan(GantryError):
    """The checker found violations; `violations` holds them all, the message the first few."""

    def __init__(self, found: list[str]) -> None:
        self.violations = found
        shown = "\n".join(f"  {line}" for line in found[:20])
        more = f"\n  … and {len(found) - 20} more" if len(found) > 20 else ""
        super().__init__(f"the plan breaks {len(found)} rule(s):\n{shown}{more}")


def loads(data: bytes, where: str = "plan") -> Plan:
    """A plan from bytes, schema-checked only; `prove` it before use."""
    return decode(data, Plan, version=VERSION, where=where)


def load(path: str | Path) -> Plan:
    """A plan from a file, schema-checked only; `prove` it before use."""
    return loads(read_bytes(path), str(path))


def prove(plan: Plan) -> None:
    """Raise InvalidPlan with every violation, or return: the plan is sound."""
    if found := violations(plan):
        raise InvalidPlan(found)


def save(path: str | Path, plan: Plan) -> None:
    write_atomic(path, pretty(plan))
