"""A bound by patterns, what one pipeline can hold: close where pipelines hold few sequences each.

Until Z a pipeline of a type holds some sequences of each class of lengths, as many as there is room
for beside the longest of them. A linear program asks for so many pipelines of each pattern that all
sequences are held; patterns are found by need, by a dynamic program over times in ticks, rounded
down. Each sequence is as long as the shortest of its class; those of short classes may be divided.
If even so the pipelines do not hold them all, whatever the prices, nothing is done by Z.
"""

import time
from typing import Any, NamedTuple, cast

import highspy
import numpy as np

from planner.dispatch import PipelineType, Pool
from planner.dispatch.pipes import Array, Floats

_CLOSE = 3e-3  # of the bound, to which it is found
_WIDTH = 0.01  # of a length: its class
_TICKS = 4_000  # of Z
_DIVIDED = 30  # of these sequences are less than Z
_TINY = 1e-9

Pattern = dict[int, float]
"""How many of which class."""


class _Held(NamedTuple):
    """What a type can hold: the time of one of each class in ticks, the room beside it as the
    longest, and how many classes are divided; those that do not fit have no room."""

    type: PipelineType
    times: Floats
    room: Floats
    divided: int


def held_us(pool: Pool, lengths: Array, low: int, high: int, seconds: float = 20) -> int:
    """The least time from low (a bound) to high (a dispatch) that patterns do not rule out.

    seconds: of the processor for each time that is tried; one that takes longer is not ruled out.
    """
    while high - low > max(1, _CLOSE * low):
        middle = (low + high) // 2
        if _ruled_out(pool, lengths, middle, seconds):
            low = middle + 1
        else:
            high = middle
    return low


def _classes(lengths: Array) -> tuple[Array, Array]:
    """The shortest of each class, and how many it has."""
    begins, counts = list[int](), list[int]()
    for length, many in zip(*np.unique(lengths, return_counts=True), strict=True):
        if begins and length < begins[-1] * (1 + _WIDTH):
            counts[-1] += int(many)
        else:
            begins.append(int(length))
            counts.append(int(many))
    return np.array(begins), np.array(counts)


def _ruled_out(pool: Pool, lengths: Array, Z: int, seconds: float) -> bool:
    """True if prices of the classes prove that nothing is done by Z."""
    begins, counts = _classes(lengths)
    types = [_held(one, begins, Z, pool) for one in pool.types]
    if not all(any(one.room[own] > 0 for one in types) for own in range(len(begins))):
        return True
    program, until = _Program(types, counts), time.process_time() + seconds
    kept, most = None, -np.inf
    while time.process_time() < until:
        over, prices, worths = program.solved()
        if over < _TINY * len(lengths):
            return False
        added = False
        for tried in (prices,) if kept is None else (0.4 * prices + 0.6 * kept, prices):
            found = [_best(one, tried, counts) for one in types]
            worth = sum(one.type.count * us for one, (us, _) in zip(types, found, strict=True))
            if (spare := float(tried @ counts) - worth) > 1e-6 * float(tried @ counts):
                return True
            if spare > most:
                kept, most = tried, spare
            for at, (_, pattern) in enumerate(found):
                if sum(prices[own] * n for own, n in pattern.items()) > worths[at] + _TINY:
                    program.add(at, pattern)
                    added = True
            if added:
                break
        if not added:
            return False
    return False


def _held(one: PipelineType, begins: Array, Z: int, pool: Pool) -> _Held:
    times = one.curve.us(begins)
    fits = (begins <= one.longest) & (one.depth * (times + one.curve.fixed) <= Z)
    room = np.maximum(times, np.vectorize(one.room_us)(Z, times))
    slowest = np.max([each.curve.us(begins) for each in pool.types], axis=0)
    divided = int((slowest < Z / _DIVIDED).sum())
    ticks: Floats = np.asarray(times * (_TICKS / Z), np.float64)
    ticks[divided:] = np.floor(ticks[divided:] * (1 - _TINY))
    inside: Floats = np.asarray(np.where(fits, room * (_TICKS / Z), 0.0), np.float64)
    return _Held(one, ticks, inside, divided)


class _Program:
    """As many pipelines of each pattern as hold most; what they do not hold costs its time."""

    def __init__(self, types: list[_Held], counts: Array) -> None:
        self._many, self._solver = len(counts), cast("Any", highspy.Highs())  # type: ignore[no-untyped-call]
        self._solver.setOptionValue("output_flag", False)
        self._solver.setOptionValue("threads", 1)
        for count in counts.tolist():
            self._solver.addRow(float(count), highspy.kHighsInf, 0, [], [])
        for one in types:
            self._solver.addRow(-highspy.kHighsInf, float(one.type.count), 0, [], [])
        for own, count in enumerate(counts.tolist()):
            cost = min(float(one.times[own]) for one in types if one.room[own] > 0)
            self._solver.addCol(max(1.0, cost), 0, highspy.kHighsInf, 1, [own], [1.0])
            for at, one in enumerate(types):
                fit = one.room[own] / max(1.0, one.times[own])
                if fit > 0:
                    self.add(at, {own: fit if own < one.divided else min(count, int(fit))})

    def add(self, at: int, pattern: Pattern) -> None:
        """A pattern of the type with this number."""
        rows, values = [*pattern, self._many + at], [*map(float, pattern.values()), 1.0]
        self._solver.addCol(0.0, 0, highspy.kHighsInf, len(rows), rows, values)

    def solved(self) -> tuple[float, Floats, Floats]:
        """What is not held, prices of the classes, and what a pipeline of each type is worth."""
        self._solver.run()
        duals = np.array(self._solver.getSolution().row_dual)
        over = float(self._solver.getInfo().objective_function_value)
        return over, np.maximum(duals[: self._many], 0.0), -duals[self._many :]


def _best(one: _Held, prices: Floats, counts: Array) -> tuple[float, Pattern]:
    """The pattern of a type that is worth most at these prices."""
    best, pattern = 0.0, Pattern()
    fits = one.room > 0
    rate = np.where(fits, prices / np.maximum(one.times, _TINY), 0.0)[: one.divided]
    top = int(rate.argmax()) if one.divided else -1
    rest = float(rate[top]) if one.divided else 0.0  # what a tick is worth that is left over
    if one.divided:
        worths = np.maximum.accumulate(rate) * one.room[: one.divided]
        own = int(worths.argmax())
        first = int(rate[: own + 1].argmax())
        best, pattern = float(worths[own]), {first: one.room[own] / one.times[first]}
    held, tried = np.full(_TICKS + 1, -np.inf), list[tuple[int, int, int, Floats]]()
    held[0] = 0.0
    left_over = rest * np.arange(_TICKS + 1)
    for own in range(one.divided, len(prices)):
        if not fits[own]:
            break
        ticks, room = max(1, int(one.times[own])), min(_TICKS, int(one.room[own] + _TINY))
        left, many = min(int(counts[own]), room // ticks), 1
        while left > 0 and prices[own] > rest * ticks:
            many = min(many, left)
            left -= many
            more = held.copy()
            np.maximum(
                more[ticks * many :],
                held[: _TICKS + 1 - ticks * many] + prices[own] * many,
                out=more[ticks * many :],
            )
            tried.append((own, many, ticks * many, held))
            held, many = more, 2 * many
        values = held[: room + 1] - left_over[: room + 1]
        used = int(values.argmax())
        if (worth := float(values[used]) + rest * one.room[own]) > best + _TINY:
            spare = {top: (one.room[own] - used) / one.times[top]} if rest > 0 else {}
            best, pattern = worth, {**_traced(tried, held, used), **spare}
    return best, pattern


def _traced(tried: list[tuple[int, int, int, Floats]], held: Floats, used: int) -> Pattern:
    """What makes up the best that takes so many ticks."""
    pattern, value = Pattern(), held[used]
    for own, many, ticks, before in reversed(tried):
        if before[used] < value - _TINY * max(1.0, abs(value)):
            pattern[own] = pattern.get(own, 0) + many
            used -= ticks
            value = before[used]
    return pattern
