"""The one search for a task on several devices: more and more is found out about how long the
rounds of each way to train it would be, always of the one that seems shortest, and the most
promising ones get their rounds.
"""

from collections.abc import Iterator, Sequence
from heapq import heapify, heappop, heappush
from typing import Any, NamedTuple, Protocol, TypeVar

from planner.inputs import Effort
from planner.pipelines.fitting import NO_ROOM

LATE = "time was up"
_RANKING = 2  # 1/n of the time is left for rounds
_SIMULATED = 64  # ways at most
_AFTER = 3  # ways that are gone on with when time is up and none has rounds
_NEVER = 1 << 62


class Estimate(NamedTuple):
    """About how long rounds are, and what none of them is thought to be shorter than; why they are
    not made where that is longer than others. last: no more is found out before they are."""

    us: int
    least_us: int
    why_not: str
    last: bool = False


class Made(Protocol):
    """Rounds that were made."""

    @property
    def period_us(self) -> int: ...

    @property
    def entries(self) -> Sequence[Any]: ...


M_co = TypeVar("M_co", bound=Made, covariant=True)
M = TypeVar("M", bound=Made)


class Way(Protocol[M_co]):
    """A way to train a task: estimates of its rounds, each closer than those before, and the
    rounds; or why there are none."""

    def estimates(self) -> Iterator[Estimate]: ...

    def made(self, shortest: int) -> M_co | str: ...


def rank_ways(ways: Sequence[Way[M]], effort: Effort) -> Iterator[tuple[int, M | str]]:
    """The number of every way, and its rounds, until the effort is used up, or why it has none.
    From half of the time on those come first of which most is estimated, and in its last quarter
    only those of which all is get rounds. Where time is up before any has, a few go on: what needs
    least memory would take as long to find, and its rounds longer."""
    short, left, shortest, known = effort.left / _RANKING, effort.limits.search_ops, _NEVER, False
    after = _AFTER
    more = [way.estimates() for way in ways]
    now = [next(own) for own in more]
    open_ = [(one.us, 0, n) for n, one in enumerate(now)]
    heapify(open_)
    while open_:
        if effort.left < short:
            open_.sort(key=lambda entry: (entry[1], -entry[0]))
            _, level, n = open_.pop()
        else:
            _, level, n = heappop(open_)
        one = now[n]
        late = effort.left <= 0 and (shortest < _NEVER or not after)
        if one.least_us >= shortest or left <= 0 or late:
            yield n, one.why_not
        elif known and not one.last and effort.left < short / 2:
            yield n, LATE
        elif one.last:
            made = ways[n].made(shortest)
            left -= effort.limits.search_least_ops if isinstance(made, str) else len(made.entries)
            left -= effort.limits.search_ops // _SIMULATED
            shortest = shortest if isinstance(made, str) else min(shortest, made.period_us)
            after -= isinstance(made, str) and effort.left <= 0
            yield n, made
        elif closer := next(more[n], None):
            now[n], known = closer, known or closer.last
            heappush(open_, (closer.us, level + 1, n))
        else:
            after -= effort.left <= 0
            yield n, NO_ROOM
