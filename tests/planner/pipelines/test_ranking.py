"""Ways to train a task are ranked within a time."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from planner.inputs import Effort
from planner.pipelines.ranking import Estimate, rank_ways


class Ticking(Effort):
    """Time passes by estimates."""

    asked = 0

    @property
    def left(self) -> float:
        return self.deadline - type(self).asked


@dataclass(frozen=True)
class Rounds:
    """As long as they turned out."""

    period_us: int
    entries: Sequence[int] = field(default_factory=list)


@dataclass(frozen=True)
class Rising:
    """A way whose rounds seem longer with each of four estimates, each of which takes a while."""

    us: int

    def estimates(self) -> Iterator[Estimate]:
        for level in range(4):
            Ticking.asked += level > 0
            yield Estimate(self.us + 100 * level, self.us, "is longer", last=level == 3)

    def made(self, shortest: int) -> Rounds:
        return Rounds(self.us + 300)


def rounds(ways: int, time: int) -> list[int]:
    """The periods of the rounds that are made of so many ways in so much time."""
    Ticking.asked = 0
    found = rank_ways([Rising(n) for n in range(ways)], Ticking(time, 0))
    return [made.period_us for _, made in found if not isinstance(made, str)]


def test_the_shortest_is_made_where_there_is_time_for_all_estimates() -> None:
    """And no other, if none can be shorter."""
    assert min(rounds(5, 1000)) == 300


def test_the_most_promising_way_gets_rounds_where_time_ends_before_most_estimates() -> None:
    """Else all would be known by their bounds, and only the one that needs least memory made."""
    for time in (8, 20, 40):
        assert min(rounds(20, time)) == 300
