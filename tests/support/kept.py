"""Plans that several test files want, each built once in a run of all tests.

They lie in the folder that all processes of a run share; where two build the same at once, both
write the same file."""

from collections.abc import Callable
from pathlib import Path

import plans
from plans.schema import Plan

_folder: Path | None = None


def keep_in(folder: Path) -> None:
    """Keep plans there."""
    global _folder
    _folder = folder


def kept(key: str, make: Callable[[], Plan]) -> Plan:
    """The plan of this key, which says all that it depends on: made now, or earlier elsewhere."""
    if _folder is None:
        return make()
    file = _folder / f"{plans.sha256(key.encode())}.json"
    if not file.exists():
        plans.save(file, make())
    return plans.load(file)
