"""All ways to put a few items into groups, as an oracle."""

from collections.abc import Iterator


def partitions(items: list[int]) -> Iterator[list[list[int]]]:
    """Every way to divide the items into groups, none of them empty."""
    if not items:
        yield []
        return
    first, rest = items[0], items[1:]
    for groups in partitions(rest):
        yield [[first], *groups]
        for at, group in enumerate(groups):
            yield [*groups[:at], [first, *group], *groups[at + 1 :]]
