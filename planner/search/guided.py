"""Rounds made of the load program's solutions: what a search starts from.

Each solution is a guide: its parts become whole shards, are laid out, and where these take too much
it is asked for with less memory. The best guides are also followed with less memory and with the
block at other places.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from heapq import nsmallest
from itertools import islice

from planner.bounds import Solution, Terms, again, block_at, guides, rounded
from planner.inputs import Effort
from planner.lowering import DeviceRound, fitted, least_bytes
from planner.search.round_bound import round_bound_bytes, round_bound_us
from planner.search.starts import Starts
from planner.shards import PLENTY, Links, Strategy

_LESS = 24  # parts of the memory, one less of which a guide has each time
_PLACES = 48  # where the block may begin, of many items


@dataclass(eq=False)
class Rounds:
    """The rounds of a task's strategies on a device, each laid out once; lives as long as a search.
    host_bytes: what the task may have on the host, with all that is kept there."""

    links: Links
    device_bytes: int
    host_bytes: int = PLENTY
    known: dict[object, DeviceRound | None] = field(default_factory=dict, init=False)

    def fitting(self, strategy: Strategy) -> DeviceRound | None:
        """The strategy laid out, or None when it does not fit."""
        if round_bound_bytes(strategy) > self.device_bytes:
            return None
        made = self.made(strategy)
        return made if made and made.device_bytes <= self.device_bytes else None

    def made(self, strategy: Strategy) -> DeviceRound | None:
        """The strategy's round; None where the host has too little for it."""
        key = strategy.key, strategy.lumped
        if key not in self.known:
            fits = fitted(strategy, self.host_bytes)
            self.known[key] = DeviceRound(fits, self.links, self.device_bytes) if fits else None
        return self.known[key]


@dataclass(frozen=True)
class Guided:
    """The rounds that load programs lead to. periods: of those found, apart those that pack."""

    starts: Starts
    rounds: Rounds
    effort: Effort
    periods: dict[bool, list[int]] = field(default_factory=lambda: {False: [], True: []})

    @property
    def groups(self) -> int:
        return self.effort.limits.search_groups

    def every(self) -> Iterator[DeviceRound]:
        """Those of all sizes of microbatches and all cuts."""
        starts, limits = self.starts, self.effort.limits
        roots = [root for costs in starts.sizes for root in starts.programs(costs, limits)]
        if any(terms.host_bytes is not None for terms in roots):
            # What is best with more on the host may fit there, since its bytes change hands.
            yield from self._by([replace(terms, host_bytes=None) for terms in roots])
        yield from self._by(roots)

    def _by(self, roots: Sequence[Terms]) -> Iterator[DeviceRound]:
        """Those that pack nothing, then those that may: their rounds have more ops, and the best
        programs of one kind say little about the other."""
        for packs in (False, True):
            own = [terms for terms in roots if terms.offload == packs]
            if own:
                yield from self._alike(own)

    def _alike(self, roots: Sequence[Terms]) -> Iterator[DeviceRound]:
        limits = self.effort.limits
        programs = len(roots) + limits.search_divisions
        found = guides(roots, self.groups, programs, self.effort)
        for number, guide in enumerate(islice(found, limits.search_guides)):
            yield from self._roomier(guide)
            if guide.terms.microbatches == 1:
                # The block is the last shard. What is good with less memory is a start as well:
                # room that is left is filled later.
                for part in limits.search_less if not number else ():
                    if other := self._with_less(guide, part):
                        yield from self._realised(other)
            elif number < limits.search_blocks - guide.terms.offload:
                for way in (1, -1):
                    yield from self._along(guide, way)

    def _roomier(self, guide: Solution) -> Iterator[DeviceRound]:
        """Rounds of a guide, then of the same with ever less memory, as long as they get shorter:
        in bytes that nothing takes all round, copies come and go when they are wanted."""
        least, now = PLENTY, guide
        while True:
            made = list(self._realised(now))
            yield from made
            before, least = least, min((one.period_us for one in made), default=PLENTY)
            less = self._with_less(now, _LESS) if least < before else None
            if not less:
                return
            now = less

    def _with_less(self, guide: Solution, part: int) -> Solution | None:
        """The guide for an n-th of the device's memory less; None where nothing fits."""
        room = guide.terms.room_bytes - self.rounds.device_bytes // part
        less = replace(guide.terms, room_bytes=room)
        return again(guide, less, self.groups, self.effort)

    def _along(self, guide: Solution, way: int) -> Iterator[DeviceRound]:
        """Rounds with the block of a guide begun ever further up (1) or down (-1), until two places
        are no better: the program's best place need not be the best once rounds are laid out."""
        items = len(guide.terms.items)
        first, least, worse = guide.part.low, PLENTY, 0
        while worse < 2 and 0 <= (first := first + way * -(-items // _PLACES)) < items:
            other = again(block_at(guide, first), guide.terms, self.groups, self.effort)
            made = list(self._realised(other)) if other else []
            shortest = min((one.period_us for one in made), default=PLENTY)
            worse = 0 if shortest < least else worse + 1
            least = min(least, shortest)
            yield from made

    def _realised(self, guide: Solution) -> Iterator[DeviceRound]:
        """Whole shards of a guide; where they take too much, the program is solved for less."""
        groups, effort = self.groups, self.effort
        for _ in range(effort.limits.search_shrinks):
            overs = []
            for evened in (False, True):
                strategy = rounded(guide, groups, effort, even=evened)
                if not self._may_start(strategy):
                    continue
                fits = self.rounds.made(strategy)
                missing = 0 if fits else least_bytes(strategy) - self.rounds.host_bytes
                made = fits or DeviceRound(strategy, self.rounds.links, self.rounds.device_bytes)
                over = made.device_bytes - self.rounds.device_bytes
                if over <= 0 and fits:
                    yield self._noted(made)
                    yield from map(self._noted, self._deeper(made.strategy))
                else:
                    overs.append((max(0, over), missing))
            if not overs or (guide.terms.host_bytes is None and all(m for _, m in overs)):
                return
            # A little more, since whole shards never fit exactly; or no more, where that is tight.
            shrunk = (_shrunk(guide.terms, *min(overs, key=sum), part) for part in (64, 0))
            tighter = (again(guide, terms, groups, effort) for terms in shrunk)
            smaller = next(filter(None, tighter), None)
            if smaller is None:
                return
            guide = smaller

    def _may_start(self, strategy: Strategy) -> bool:
        """True if its round may be among the shortest, from which the search goes on."""
        count = self.effort.limits.search_starts
        best = nsmallest(count, self.periods[strategy.packs])
        return len(best) < count or round_bound_us(strategy, self.rounds.links) <= best[-1]

    def _noted(self, made: DeviceRound) -> DeviceRound:
        """The round, once its period is in the list."""
        self.periods[made.strategy.packs].append(made.period_us)
        return made

    def _deeper(self, strategy: Strategy) -> Iterator[DeviceRound]:
        """The strategy with as many buffers for what it packs as fit: copies then wait less for
        each other."""
        depth = strategy.costs.microbatches if strategy.packs else 0
        while depth > strategy.depth:
            if made := self.rounds.fitting(replace(strategy, depth=depth)):
                yield made
                return
            depth //= 2


def _shrunk(terms: Terms, over: int, missing: int, part: int) -> Terms:
    """The terms with less memory on the device or the host, and an n-th of it less than that."""

    def less(size: int, by: int) -> int:
        return size - by - (size // part if part and by else 0)

    host = None if terms.host_bytes is None else less(terms.host_bytes, missing)
    return replace(terms, room_bytes=less(terms.room_bytes, over), host_bytes=host)
