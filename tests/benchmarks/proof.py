"""A bound by an integer program, where sequences may be divided but pipelines may not: closer than
`bound_us` by some percent, and slower by seconds.

Pipelines of a type are told apart by the class of their longest sequence. Those that have it in a
class have, until Z, (depth - 1) x its time less for all sequences, none of them longer. A type has
a whole number of pipelines of each; sequences are divided at will, those that are one of their
class not beyond the pipelines that may have them. If there is no such division, then there is no
dispatch by Z.

In a second program the pipelines of small types are on their own and have the longest sequences
whole: it says more where few long sequences do not pack on few pipelines.
"""

from collections.abc import Iterator
from itertools import count
from typing import Any, NamedTuple

import numpy as np

from planner.dispatch import PipelineType, Pool
from planner.dispatch.pipes import Array
from planner.lp import Status, minimise, solve, total
from tests.support.step_bounds import class_begins

_CLOSE = 5e-3  # of the bound, to which it is found
_SMALL = 8  # pipelines of a type that are told apart
_WHOLE = 14  # sequences that are whole

_SPARE = 1e-6  # of Z, that the solver may be off


Term = tuple[float, Any]


class _Class(NamedTuple):
    """Sequences of about the same length; `one`: there is one only."""

    lengths: Array
    one: bool


class _Group(NamedTuple):
    """Equal pipelines that are not told apart."""

    type: PipelineType
    pipelines: int


def proven_us(pool: Pool, lengths: Array, low: int, high: int, seconds: float = 5) -> int:
    """The least time from low (a bound) to high (a dispatch) that the programs do not rule out.

    seconds: for each program; one that takes longer rules out nothing.
    """
    classes = _classes(lengths)
    for single in (False, True):
        groups = list(_groups(pool, single))
        top = high
        while top - low > max(1, _CLOSE * low):
            middle = (low + top) // 2
            if _ruled_out(groups, classes, middle, single, seconds):
                low = middle + 1
            else:
                top = middle
    return low


def _classes(lengths: Array) -> list[_Class]:
    """The classes of lengths that are not empty, longest first."""
    of = np.searchsorted(class_begins(lengths), lengths, side="right")
    held = [lengths[of == number] for number in np.unique(of)[::-1]]
    return [_Class(own, len(own) == 1) for own in held]


def _groups(pool: Pool, single: bool) -> Iterator[_Group]:
    for one in pool.types:
        if single and one.count <= _SMALL:
            yield from [_Group(one, 1)] * one.count
        else:
            yield _Group(one, one.count)


def _ruled_out(
    groups: list[_Group], classes: list[_Class], Z: int, whole: bool, seconds: float
) -> bool:
    """True if the program proves that no dispatch is done by Z."""
    program = _Program(classes, Z, whole)
    for group in groups:
        program.add(group)
    return program.infeasible(seconds)


class _Program:
    """The program for a time Z, to which groups are added."""

    def __init__(self, classes: list[_Class], Z: int, whole: bool) -> None:
        self._classes, self._Z, self._whole = classes, Z, whole
        self._model = minimise("dispatch")
        self._model += total([])  # any solution will do
        self._parts: list[list[Any]] = [[] for _ in classes]  # of each class, one for a group
        self._last: tuple[_Group | None, dict[int, Any]] = None, {}
        self._names = count()

    def infeasible(self, seconds: float) -> bool:
        """True if the sequences do not fit into the groups, which is proven in time."""
        if not all(self._parts):
            return True
        for own in self._parts:
            self._model += total((1, part) for part in own) == 1
        return solve(self._model, seconds=seconds, seed=0) is Status.INFEASIBLE

    def add(self, group: _Group) -> None:
        """Add what a group takes of each class; and how many of its pipelines have their longest
        sequence there or before, no more than an equal group that was added last."""
        one, Z = group.type, self._Z
        before = self._last[1] if self._last[0] is group else {}
        used, room, longest = list[Term](), list[Term](), dict[int, Any]()
        last: Any = 0.0
        for number, (lengths, single) in enumerate(self._classes):
            least = int(one.curve.us(lengths).min())
            if lengths.min() > one.longest or one.depth * (least + one.curve.fixed) > Z:
                continue
            whole = self._whole and single and group.pipelines == 1 and number < _WHOLE
            part = self._column(1, "Binary" if whole else "Continuous")
            self._parts[number].append(part)
            # A part is of tokens: each takes at least as long as in the class's best sequence.
            work = int(lengths.sum()) * float((one.curve.us(lengths) / lengths).min())
            used.append((work / Z, part))
            if one.depth == 1:
                continue
            now = longest[number] = self._column(group.pipelines, "Integer")
            left = one.room_us(Z, least) / Z
            room += [(-left, now), (left, last)]
            self._model += now >= last
            self._model += total([*used, *room]) <= _SPARE
            if single or group.pipelines == 1:
                self._model += part <= now
            if number in before:
                self._model += now <= before[number]
            last = now
        if used and one.depth == 1:
            self._model += total(used) <= group.pipelines + _SPARE
        self._last = group, longest

    def _column(self, most: int, kind: str) -> Any:
        return self._model.add_variable(f"x{next(self._names)}", 0, most, kind)
