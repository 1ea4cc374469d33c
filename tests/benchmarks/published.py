"""Benchmarks of a file of published figures: a row per case, as a table or for scripts."""

import argparse
import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeVar


@dataclass(frozen=True)
class Judged:
    """A row that can fall short of what is published."""

    @property
    def short(self) -> bool:
        raise NotImplementedError


Row = TypeVar("Row", bound=Judged)


def compared(
    doc: str | None,
    wanted: str,
    rows: Callable[[Any], Iterable[Row]],
    table: Callable[[Sequence[Row]], Iterable[str]],
) -> int:
    """The command of such a benchmark: prints the rows of the file that it is given, which are none
    where it has nothing that is `wanted`. The exit code: 1 if a row falls short."""
    parser = argparse.ArgumentParser(description=doc.splitlines()[0] if doc else None)
    parser.add_argument("file", type=Path, metavar="FILE")
    parser.add_argument("--json", action="store_true", help="rows for scripts")
    args = parser.parse_args()
    found = list(rows(json.loads(args.file.read_text())))
    if not found:
        parser.error(f"{args.file} has no {wanted}; give a file that has")
    shown = [json.dumps([asdict(row) for row in found], indent=1)] if args.json else table(found)
    print("\n".join(shown))
    return int(any(row.short for row in found))
