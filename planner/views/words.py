"""Parts of text that several views share: numbers in ranges, tables, long lists cut short."""

from collections.abc import Iterable, Sequence
from itertools import groupby

from profiles.console import columns

_MOST_ALONE = 16  # rows that stand by themselves; of more, those that are alike share one


def on_devices(devices: Sequence[int]) -> str:
    """`device 0`, `devices 0, 3`, or `devices 0-3, 6`."""
    return f"device{'s' if len(devices) > 1 else ''} {in_ranges(devices)}"


def in_ranges(devices: Sequence[int]) -> str:
    """`0-3, 6`."""
    parts = [f"{r[0]}-{r[-1]}" if len(r) > 2 else ", ".join(map(str, r)) for r in _runs(devices)]
    return ", ".join(parts)


def ranges(shards: Sequence[int]) -> str:
    """`s0-s3, s8` for ascending numbers."""
    return ", ".join(f"s{r[0]}" + f"-s{r[-1]}" * (len(r) > 1) for r in _runs(shards))


def _runs(numbers: Sequence[int]) -> list[list[int]]:
    """Numbers that follow each other together."""
    found = groupby(enumerate(numbers), key=lambda item: item[1] - item[0])
    return [[number for _, number in run] for _, run in found]


def indented(rows: Iterable[Sequence[str]]) -> list[str]:
    """Rows as aligned lines below a heading."""
    return ["  " + line for line in columns(rows)]


def more(indent: str, count: int, what: str = "") -> list[str]:
    """A line, or an item, on so many that are not listed; none if there are none."""
    return [f"{indent}… and {count} more{what}"] if count > 0 else []


def listed(head: Sequence[str], rows: Sequence[Sequence[str]], most: int, what: str) -> list[str]:
    """A table of up to so many rows, and a line on how many more there are."""
    return [*indented([head, *rows[:most]]), *more("  ", len(rows) - most, what)]


def few(names: Sequence[str]) -> str:
    """`a, b and 3 more`."""
    return ", ".join(names[:2]) + (f" and {len(names) - 2} more" if len(names) > 2 else "")


def folded(rows: Sequence[tuple[int, tuple[str, ...]]]) -> list[tuple[list[int], tuple[str, ...]]]:
    """Numbered rows, where there are many those that say the same taken together."""
    if len(rows) <= _MOST_ALONE:
        return [([number], row) for number, row in rows]
    found: dict[tuple[str, ...], list[int]] = {}
    for number, row in rows:
        found.setdefault(row, []).append(number)
    return [(numbers, row) for row, numbers in found.items()]
